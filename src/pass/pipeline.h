#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "lowering/launch.h"
#include "pass/graph/adapters.h"
#include "pass/graph/partition.h"
#include "pass/graph/passes.h"
#include "pass/graph/stored_weights.h"

// The one list of passes, over graphs at load and over the launches of a plan. To add a pass: write its function in a
// new file in pass/graph or pass/launch, declare it in passes.h there, and add its line to pipeline.cpp.
namespace graft {

// When a pass runs. Passes of a stage run in list order.
enum class PassStage : std::uint8_t {
  read,      // on the graph of a whole method, before its operators are checked
  cut,       // after that check
  stored,    // on the graph of a part, once each weight's stored type is known
  placed,    // once weights have their addresses
  fold,      // once only constant folding still changes the graph
  launches,  // on the lowered launches, for every plan
};
std::string_view name(PassStage stage);

// Options of the passes, besides graphs and launches.
struct PassOptions {
  bool on_device = false;  // the program runs on a device other than the CPU
  bool plain = false;      // ggml's ops replace graft's kernels
  bool pack_linear_layers = true;
  const OtherStages* others = nullptr;  // of a model in stages
  AdapterLayers* adapters = nullptr;    // filled by the load; null: runs have no adapters
  bool in_bf16 = false;                 // packed linear layers round their operands to bf16
  bool halves_as_stored = false;        // devices read weights of halves as they are, which rounds what they multiply
  bool computes_angles = false;         // the device has sines and cosines of positions as exact as the CPU's
  int threads = 1;                      // launches: the most threads that will run them
  std::size_t streams = 1;              // launches: the most streams of the device, with events between them
  // ggml has no rotary embedding of given angles, quantized product, convolution or linear layer, only their parts:
  // leave these unfused.
  bool keeps_parts() const { return on_device || plain; }
};

// A graph with one method on its way through the stages of its load, with the inputs and results of the passes.
struct GraphPasses {
  ir::Program& graph;
  PassOptions options;
  PartitionOptions partition = {};
  UniformWeight uniform = [](std::uint32_t) { return std::nullopt; };  // `placed`
  std::function<std::size_t()> fold = {};                              // `fold`: folds constants, see load/fold.h
  std::vector<Part> parts = {};                                        // made by `cut`, which leaves `graph` empty
  std::vector<ConvertedWeight> converted = {};                         // made by `stored`
};

struct Pass {
  std::string_view name;
  PassStage stage;
  std::string_view condition;           // in words; empty: always runs
  bool (*applies)(const PassOptions&);  // null: always
  // Exactly one is set. Returns the number of rewrites.
  std::size_t (*graph)(GraphPasses&) = nullptr;
  std::size_t (*launches)(LaunchSequence&, const PassOptions&) = nullptr;
};
std::span<const Pass> pass_list();

// What a pass did; for `graft inspect --passes`.
struct PassReport {
  const Pass* pass;
  bool ran = false;  // false: its condition did not hold
  std::size_t rewrites = 0;
  std::size_t before = 0, after = 0;  // nodes of the graph, or launches
};

// Runs the passes of a stage before `launches`. The graph is valid afterwards, except after `cut` and `stored`, whose
// results are completed first.
std::vector<PassReport> run_graph_passes(PassStage stage, GraphPasses& passes);
std::vector<PassReport> run_launch_passes(LaunchSequence& sequence, const PassOptions& options);

}  // namespace graft
