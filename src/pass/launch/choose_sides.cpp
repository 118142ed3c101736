#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "ggml.h"
#include "lowering/lowering.h"
#include "lowering/uses.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

// In bytes that a transfer moves meanwhile. What a transfer costs beside its bytes, since one side waits for the other;
// what is there before the device begins, and what is read after it ended, have theirs together.
constexpr std::int64_t kTransfer = 65536;
// A launch that the device could run costs on the CPU so much, and a share of the bytes that it touches and of its
// operations.
constexpr std::int64_t kLaunch = 6144, kTouchedPerByte = 8, kOperationsPerByte = 16;
constexpr std::int64_t kForbidden = std::int64_t{1} << 48;

std::int64_t operations(const Launch& launch) {
  const std::int64_t results = launch.outputs[0].numel();
  const Tensor& first = launch.inputs[0];
  if (launch.ggml_op == GGML_OP_MUL_MAT) return 2 * results * first.size(first.rank() - 1);
  if (launch.ggml_op == GGML_OP_CONV_2D || launch.ggml_op == GGML_OP_CONV_2D_DW)
    return 2 * results * (first.numel() / std::max<std::int64_t>(first.size(0), 1));
  return results;
}

std::int64_t cost_on_host(const Launch& launch) {
  return kLaunch + static_cast<std::int64_t>(touched_bytes(launch)) / kTouchedPerByte +
         operations(launch) / kOperationsPerByte;
}

// Read on either side without a transfer, or on the device alone.
bool never_crosses(const Buffer& buffer) {
  return buffer.memory == MemoryKind::weight || buffer.memory == MemoryKind::constant || buffer.kept_on_device;
}

// Whether the device has this launch, which may write a finished value to a state that it keeps.
bool runs_there(const LaunchSequence& sequence, std::size_t i) {
  const Launch& launch = sequence.launches[i];
  return launch.on_device && (i < sequence.commit_begin || touches_kept(sequence, launch));
}

constexpr std::int64_t kHost = -1;  // what the host makes before the run, and reads after it

// What a buffer holds from one write to the next.
struct Version {
  std::int64_t bytes = 0;
  std::int64_t producer = kHost;
  std::vector<std::int64_t> readers;
  bool early = true;  // made by launches of the host, of nothing that the device can make
  bool late = true;   // read by launches of the host, of whose results nothing is read that the device can run

  std::int64_t cost() const { return bytes + (early || late ? 0 : kTransfer); }
};

// Sets `early` and `late`; versions are in the order of their producers.
void find_ends(const LaunchSequence& sequence, std::vector<Version>& versions) {
  std::vector<bool> early(sequence.launches.size()), late(sequence.launches.size());
  for (std::size_t i = 0; i < early.size(); ++i) early[i] = late[i] = !runs_there(sequence, i);
  const auto is = [](const std::vector<bool>& which, std::int64_t launch) {
    return launch == kHost || which[static_cast<std::size_t>(launch)];
  };
  for (Version& version : versions) {
    version.early = is(early, version.producer);
    if (version.early) continue;
    for (const std::int64_t reader : version.readers)
      if (reader != kHost) early[static_cast<std::size_t>(reader)] = false;
  }
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    version->late = std::ranges::all_of(version->readers, [&](std::int64_t reader) { return is(late, reader); });
    if (!version->late && version->producer != kHost) late[static_cast<std::size_t>(version->producer)] = false;
  }
}

std::vector<Version> versions_of(const LaunchSequence& sequence) {
  constexpr std::int64_t kNone = -1;
  std::vector<Version> out;
  std::vector<std::int64_t> current(sequence.buffers.size(), kNone);
  const auto make = [&](BufferId id, std::int64_t producer) {
    current[id] = std::ssize(out);
    out.push_back({sequence.buffers[id].bytes, producer, {}});
  };
  const auto read = [&](BufferId id, std::int64_t reader) {
    if (current[id] == kNone) return;
    std::vector<std::int64_t>& readers = out[static_cast<std::size_t>(current[id])].readers;
    if (readers.empty() || readers.back() != reader) readers.push_back(reader);
  };
  for (BufferId id = 0; id < current.size(); ++id)
    if (sequence.buffers[id].memory == MemoryKind::input ||
        (sequence.buffers[id].memory == MemoryKind::state && !sequence.buffers[id].kept_on_device))
      make(id, kHost);
  for (std::size_t i = 0; i < sequence.launches.size(); ++i) {
    const Launch& launch = sequence.launches[i];
    const auto reader = static_cast<std::int64_t>(i);
    for (const Tensor& t : launch.inputs)
      if (t.numel() > 0 && !never_crosses(sequence.buffers[t.buffer])) read(t.buffer, reader);
    for (const Tensor& t : launch.outputs) {
      if (t.numel() == 0 || never_crosses(sequence.buffers[t.buffer])) continue;
      if (writes_a_part(launch, t, sequence.buffers[t.buffer])) read(t.buffer, reader);
      make(t.buffer, reader);
    }
  }
  for (BufferId id = 0; id < current.size(); ++id)
    if (sequence.buffers[id].memory != MemoryKind::arena) read(id, kHost);
  find_ends(sequence, out);
  return out;
}

// By launch: what it costs on the CPU; of those that the device lacks, nothing. Launches that no value connects with
// one of these stay on the device, whatever their inputs and results cost: it was asked for.
std::vector<std::int64_t> costs_on_host(const LaunchSequence& sequence, const std::vector<Version>& versions) {
  const std::size_t count = sequence.launches.size();
  std::vector<std::size_t> group(count);
  for (std::size_t i = 0; i < count; ++i) group[i] = i;
  const auto find = [&](std::int64_t launch) {
    auto i = static_cast<std::size_t>(launch);
    while (group[i] != i) i = group[i] = group[group[i]];
    return i;
  };
  for (const Version& version : versions)
    for (const std::int64_t reader : version.readers)
      if (version.producer != kHost && reader != kHost) group[find(reader)] = find(version.producer);
  const auto lacks = [&](std::size_t i) { return !runs_there(sequence, i); };
  std::vector<bool> mixed(count, false);
  for (std::size_t i = 0; i < count; ++i)
    if (lacks(i)) mixed[find(static_cast<std::int64_t>(i))] = true;
  std::vector<std::int64_t> costs(count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    if (lacks(i)) continue;
    const Launch& launch = sequence.launches[i];
    const bool may_move = launch.on_host_too && !touches_kept(sequence, launch);
    costs[i] = may_move && mixed[find(static_cast<std::int64_t>(i))] ? cost_on_host(launch) : kForbidden;
  }
  return costs;
}

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using Network = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS,
    boost::property<
        boost::vertex_index_t, long,
        boost::property<boost::vertex_color_t, boost::default_color_type,
                        boost::property<boost::vertex_distance_t, long,
                                        boost::property<boost::vertex_predecessor_t, Traits::edge_descriptor>>>>,
    boost::property<boost::edge_capacity_t, std::int64_t,
                    boost::property<boost::edge_residual_capacity_t, std::int64_t,
                                    boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;

// The source's side of the cut is the device, the sink's the host. A version that is made on one side and read on the
// other crosses once, however many read it there: it has a vertex that goes with its readers, and the capacity between
// it and the producer is what crossing costs.
class Cut {
 public:
  Cut(const std::vector<std::int64_t>& costs, const std::vector<Version>& versions)
      : network_(costs.size() + 2 + 2 * versions.size()) {
    for (std::size_t i = 0; i < costs.size(); ++i) {
      if (costs[i] == 0) {
        edge(vertex(i), kSink, kForbidden);
      } else {
        edge(kSource, vertex(i), costs[i]);
      }
    }
    std::size_t next = costs.size() + 2;
    for (const Version& version : versions) {
      const std::size_t down = next++, up = next++;
      if (version.readers.empty()) continue;
      const std::size_t producer = vertex_of(version.producer);
      if (producer != kSink) edge(producer, down, version.cost());
      edge(up, producer, version.cost());
      for (const std::int64_t reader : version.readers) {
        edge(down, vertex_of(reader), kForbidden);
        edge(vertex_of(reader), up, kForbidden);
      }
    }
    boost::boykov_kolmogorov_max_flow(network_, kSource, kSink);
  }

  bool on_host(std::size_t launch) const {
    return boost::get(boost::vertex_color, network_, vertex(launch)) == boost::white_color;
  }

 private:
  static constexpr std::size_t kSource = 0, kSink = 1;

  static std::size_t vertex(std::size_t launch) { return launch + 2; }
  static std::size_t vertex_of(std::int64_t launch) {
    return launch == kHost ? kSink : vertex(static_cast<std::size_t>(launch));
  }
  void edge(std::size_t from, std::size_t to, std::int64_t capacity) {
    const auto there = boost::add_edge(from, to, network_).first, back = boost::add_edge(to, from, network_).first;
    boost::put(boost::edge_capacity, network_, there, capacity);
    boost::put(boost::edge_capacity, network_, back, std::int64_t{0});
    boost::put(boost::edge_reverse, network_, there, back);
    boost::put(boost::edge_reverse, network_, back, there);
  }

  Network network_;
};

void to_host(Launch& launch) {
  if (is_ggml_copy(launch)) return copy_on_host(launch);
  launch.on_device = false;
}

}  // namespace

SideCost cost_of_sides(const LaunchSequence& sequence, const std::vector<bool>& on_device) {
  SideCost cost;
  const std::vector<Version> versions = versions_of(sequence);
  const std::vector<std::int64_t> costs = costs_on_host(sequence, versions);
  for (std::size_t i = 0; i < costs.size(); ++i)
    if (!on_device[i]) cost.total += costs[i];
  const auto there = [&](std::int64_t launch) {
    return launch != kHost && on_device[static_cast<std::size_t>(launch)];
  };
  for (const Version& version : versions) {
    const bool made_there = there(version.producer);
    if (std::ranges::none_of(version.readers, [&](std::int64_t reader) { return there(reader) != made_there; }))
      continue;
    cost.bytes += version.bytes;
    cost.total += version.cost();
  }
  return cost;
}

std::size_t choose_sides(LaunchSequence& sequence) {
  std::vector<std::size_t> moved;
  const std::vector<Version> versions = versions_of(sequence);
  const std::vector<std::int64_t> costs = costs_on_host(sequence, versions);
  if (std::ranges::any_of(costs, [](std::int64_t cost) { return cost > 0 && cost < kForbidden; })) {
    const Cut cut(costs, versions);
    for (std::size_t i = 0; i < costs.size(); ++i)
      if (costs[i] > 0 && cut.on_host(i)) moved.push_back(i);
  }
  for (std::size_t i = sequence.commit_begin; i < sequence.launches.size(); ++i)
    if (sequence.launches[i].on_device && !runs_there(sequence, i)) moved.push_back(i);
  for (const std::size_t i : moved) to_host(sequence.launches[i]);
  return moved.size();
}

}  // namespace graft
