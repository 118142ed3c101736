#include "pass/pipeline.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "pass/graph/kv_cache.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

constexpr std::string_view kKernels = "graft's kernels run the program, not ggml's ops";
constexpr std::string_view kNotPlain = "the lowering is not plain";

bool kernels(const PassOptions& options) { return !options.keeps_parts(); }
bool not_plain(const PassOptions& options) { return !options.plain; }
bool packs_linear_layers(const PassOptions& options) { return kernels(options) && options.pack_linear_layers; }
bool takes_adapters(const PassOptions& options) { return options.adapters != nullptr; }
bool on_device(const PassOptions& options) { return options.on_device; }

bool computes_angles(const PassOptions& options) { return options.computes_angles; }

bool has_threads(const PassOptions& options) { return options.threads > 1 && !options.on_device && !options.plain; }

bool has_streams(const PassOptions& options) { return options.streams > 1; }

template <std::size_t (*pass)(ir::Program&)>
std::size_t graph_pass(GraphPasses& passes) {
  return pass(passes.graph);
}
template <std::size_t (*pass)(ir::Program&, const UniformWeight&)>
std::size_t weight_pass(GraphPasses& passes) {
  return pass(passes.graph, passes.uniform);
}
template <std::size_t (*pass)(LaunchSequence&)>
std::size_t launch_pass(LaunchSequence& sequence, const PassOptions&) {
  return pass(sequence);
}

std::size_t adapt(GraphPasses& passes) { return add_adapters(passes.graph, *passes.options.adapters); }
std::size_t run_partition(GraphPasses& passes) {
  passes.parts = partition(std::exchange(passes.graph, {}), passes.partition);
  return passes.parts.size() - 1;
}
std::size_t convert(GraphPasses& passes) {
  passes.converted = convert_stored_weights(passes.graph, passes.options.on_device && !passes.options.halves_as_stored);
  return passes.converted.size();
}
std::size_t pack_linears(GraphPasses& passes) {
  const PassOptions& options = passes.options;
  return pack_linear_layers(passes.graph, options.in_bf16, options.others ? *options.others : OtherStages());
}
std::size_t run_fold(GraphPasses& passes) { return passes.fold(); }
std::size_t separate(LaunchSequence& sequence, const PassOptions& options) {
  return fuse_separable(sequence, options.threads);
}

std::size_t group(LaunchSequence& sequence, const PassOptions& options) {
  return group_branches(sequence, options.threads);
}

std::size_t divide(LaunchSequence& sequence, const PassOptions& options) {
  return divide_streams(sequence, options.streams);
}

using enum PassStage;
constexpr auto kList = std::to_array<Pass>({
    // name, stage, condition in words, condition, over graphs, over launches
    {"add_kv_cache", read, "", nullptr, graph_pass<add_kv_cache>},
    {"add_encoder_cache", read, "", nullptr, graph_pass<add_encoder_cache>},
    {"add_adapters", read, "runs may have adapters", takes_adapters, adapt},
    {"expand_masks", cut, "", nullptr, graph_pass<expand_masks>},
    {"partition", cut, "", nullptr, run_partition},
    {"convert_stored_weights", stored, "", nullptr, convert},
    {"inline_scalars", placed, "", nullptr, weight_pass<inline_scalars>},
    {"fuse_quantized", placed, kKernels, kernels, graph_pass<fuse_quantized>},
    {"pack_quantized_convolutions", placed, kKernels, kernels, weight_pass<pack_quantized_convolutions>},
    {"fuse_rms_norm", placed, "", nullptr, graph_pass<fuse_rms_norm>},
    {"fuse_rope", placed, kKernels, kernels, graph_pass<fuse_rope>},
    {"rope_at_positions", placed, "the program runs on a device that computes exact angles", computes_angles,
     graph_pass<rope_at_positions>},
    {"pack_convolutions", placed, kKernels, kernels, graph_pass<pack_convolutions>},
    {"fold_batch_norms", placed, "the program runs on a device", on_device, graph_pass<fold_batch_norms>},
    {"pack_linear_layers", placed, "graft's kernels run the program, and weights may be packed", packs_linear_layers,
     pack_linears},
    {"merge_equal_nodes", placed, "", nullptr, graph_pass<merge_equal_nodes>},
    {"fold_constants", fold, "", nullptr, run_fold},
    {"fuse_epilogues", launches, kNotPlain, not_plain, nullptr, launch_pass<fuse_epilogues>},
    {"drop_dead_launches", launches, "", nullptr, nullptr, launch_pass<drop_dead_launches>},
    {"fuse_separable", launches, kNotPlain, not_plain, nullptr, separate},
    {"merge_products", launches, kNotPlain, not_plain, nullptr, launch_pass<merge_products>},
    {"fuse_chains", launches, kNotPlain, not_plain, nullptr, launch_pass<fuse_chains>},
    {"drop_dead_launches", launches, kNotPlain, not_plain, nullptr, launch_pass<drop_dead_launches>},
    {"keep_states", launches, "the program runs on a device", on_device, nullptr, launch_pass<keep_states>},
    {"choose_sides", launches, "the program runs on a device", on_device, nullptr, launch_pass<choose_sides>},
    {"order_for_stages", launches, "the program runs on a device", on_device, nullptr, launch_pass<order_for_stages>},
    {"order_for_fusion", launches, "the program runs on a device", on_device, nullptr, launch_pass<order_for_fusion>},
    {"divide_streams", launches, "the program runs on a device that has streams with events", has_streams, nullptr,
     divide},
    {"group_branches", launches, "several threads run the program, and no device", has_threads, nullptr, group},
    {"merge_inplace", launches, "", nullptr, nullptr, launch_pass<merge_inplace>},
});

std::size_t node_count(const GraphPasses& passes) {
  std::size_t count = 0;
  for (const ir::Method& method : passes.graph.methods) count += method.nodes.size();
  for (const Part& part : passes.parts)
    for (const ir::Method& method : part.graph.methods) count += method.nodes.size();
  return count;
}

// Runs the passes of a stage by run(pass), measuring graph or launches by count().
template <typename Count, typename Run>
std::vector<PassReport> run_stage(PassStage stage, const PassOptions& options, const Count& count, const Run& run) {
  std::vector<PassReport> reports;
  for (const Pass& pass : kList) {
    if (pass.stage != stage) continue;
    PassReport report{&pass};
    report.before = report.after = count();
    report.ran = pass.applies == nullptr || pass.applies(options);
    if (report.ran) {
      report.rewrites = run(pass);
      report.after = count();
    }
    reports.push_back(report);
  }
  return reports;
}

}  // namespace

std::string_view name(PassStage stage) {
  constexpr std::string_view names[] = {"read", "cut", "stored", "placed", "fold", "launches"};
  return names[static_cast<std::size_t>(stage)];
}

std::span<const Pass> pass_list() { return kList; }

std::vector<PassReport> run_graph_passes(PassStage stage, GraphPasses& passes) {
  GRAFT_ASSERT(stage != PassStage::launches);
  const bool verifies = stage != PassStage::cut && stage != PassStage::stored;
  std::vector<PassReport> reports = run_stage(
      stage, passes.options, [&] { return node_count(passes); },
      [&](const Pass& pass) {
        const std::size_t rewrites = pass.graph(passes);
#ifndef NDEBUG
        if (verifies) ir::verify(passes.graph, UINT64_MAX);
#endif
        return rewrites;
      });
  if (verifies) ir::verify(passes.graph, UINT64_MAX);
  return reports;
}

std::vector<PassReport> run_launch_passes(LaunchSequence& sequence, const PassOptions& options) {
  return run_stage(
      PassStage::launches, options, [&] { return sequence.launches.size(); },
      [&](const Pass& pass) { return pass.launches(sequence, options); });
}

}  // namespace graft
