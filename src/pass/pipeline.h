#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "lowering/launch.h"
#include "pass/graph/partition.h"
#include "pass/graph/passes.h"
#include "pass/graph/stored_weights.h"

// The one list of passes, over graphs at load and over the launches of a plan. To add a pass: its function in a file of
// its own in pass/graph or pass/launch, its declaration in passes.h there, and its line in pipeline.cpp.
namespace graft {

// When a pass runs. The passes of a stage run in the order of the list.
enum class PassStage : std::uint8_t {
  read,      // on the graph of a whole method, before its operators are checked
  cut,       // after that check
  stored,    // on the graph of a part, once it is known how each weight is stored
  placed,    // once weights have their addresses
  fold,      // once no pass changes the graph any more but by folding constants
  launches,  // on what the nodes were lowered to, for every plan
};
std::string_view name(PassStage stage);

// What passes depend on besides graphs and launches.
struct PassOptions {
  bool on_device = false;  // the program runs on a device other than the CPU
  bool plain = false;      // ggml's ops are wanted in the place of graft's kernels
  bool pack_linear_layers = true;
  bool in_bf16 = false;  // linear layers that are packed round their operands to bf16
  int threads = 1;       // launches: the most that will run them
  // ggml has the parts of a rotary embedding, of products with quantized weights, of convolutions and linear layers and
  // not the whole: they stay as they are.
  bool keeps_parts() const { return on_device || plain; }
};

// A graph with one method on its way through the stages of its load, and what passes need or make besides.
struct GraphPasses {
  ir::Program& graph;
  PassOptions options;
  PartitionOptions partition = {};
  UniformWeight uniform = [](std::uint32_t) { return std::nullopt; };  // `placed`
  std::function<std::size_t()> fold = {};                              // `fold`: folds constants, see load/fold.h
  std::vector<Part> parts = {};                                        // made by `cut`, which leaves no graph
  std::vector<ConvertedWeight> converted = {};                         // made by `stored`
};

struct Pass {
  std::string_view name;
  PassStage stage;
  std::string_view condition;           // in words; empty: it always runs
  bool (*applies)(const PassOptions&);  // null: always
  // One of the two. Returns the number of rewrites.
  std::size_t (*graph)(GraphPasses&) = nullptr;
  std::size_t (*launches)(LaunchSequence&, const PassOptions&) = nullptr;
};
std::span<const Pass> pass_list();

// What a pass did; for `graft inspect --passes`.
struct PassReport {
  const Pass* pass;
  bool ran = false;  // false: its condition kept it out
  std::size_t rewrites = 0;
  std::size_t before = 0, after = 0;  // nodes of the graph, or launches
};

// Runs the passes of a stage before `launches`. The graph is valid afterwards, but for the stages `cut` and `stored`,
// whose result is completed first.
std::vector<PassReport> run_graph_passes(PassStage stage, GraphPasses& passes);
std::vector<PassReport> run_launch_passes(LaunchSequence& sequence, const PassOptions& options);

}  // namespace graft
