#include "cli/counters.h"

#include "cli/text.h"

namespace graft::cli {

std::vector<std::pair<std::string, std::uint64_t>> counter_list(const Counters& c) {
  return {{"runs", c.runs},
          {"plan_hits", c.plan_hits},
          {"plan_misses", c.plan_misses},
          {"graphs_built", c.graphs_built},
          {"rewrites", c.rewrites},
          {"kernels_launched", c.kernels_launched},
          {"inputs_described", c.inputs_described},
          {"inputs_padded", c.inputs_padded},
          {"io_copies", c.io_copies},
          {"io_bytes_copied", c.io_bytes_copied},
          {"arena_allocations", c.arena_allocations},
          {"arena_bytes", c.arena_bytes},
          {"state_bytes", c.state_bytes},
          {"staging_bytes", c.staging_bytes},
          {"state_bytes_written", c.state_bytes_written},
          {"stages", c.stages},
          {"uploads", c.uploads},
          {"upload_bytes", c.upload_bytes},
          {"downloads", c.downloads},
          {"download_bytes", c.download_bytes},
          {"state_uploads", c.state_uploads},
          {"state_downloads", c.state_downloads},
          {"device_bytes", c.device_bytes},
          {"device_streams", c.device_streams},
          {"device_graphs", c.device_graphs},
          {"device_events", c.device_events},
          {"device_losses", c.device_losses}};
}

std::string counter_table(const Counters& counters) {
  Table table({{"counter"}, {"value", Table::Align::right}});
  for (const auto& [name, value] : counter_list(counters)) table.add({name, std::to_string(value)});
  return table.text(2);
}

}  // namespace graft::cli
