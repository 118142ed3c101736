#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graft/flow.h"

namespace graft {

inline constexpr std::size_t kNoStage = SIZE_MAX;

// What stages read: an input of the flow, or an output of a stage.
struct FlowSource {
  std::string name;               // "image", "detect.boxes"
  std::optional<ValueInfo> type;  // as far as known
  std::size_t origin = kNoStage;  // the fan-out whose items it has, one value each; else it has one value per run
  std::vector<std::size_t> readers = {};  // stages, once for each input
  bool is_output = false;                 // of the flow
  bool has_items() const { return origin != kNoStage; }
};

struct FlowNode {
  FlowStage stage;
  std::vector<std::string> input_names, output_names;  // "crop.boxes"
  std::vector<std::size_t> inputs;                     // sources
  std::size_t first_output = 0;                        // its outputs are this source and those after it
  std::size_t origin = kNoStage;                       // the fan-out for whose items it runs, once each
  std::size_t workers = 1;
  bool in_segments = false;  // of the method

  bool per_item() const { return origin != kNoStage; }
  // One worker takes calls in the order of runs and items.
  bool ordered() const { return workers == 1; }
  // It gets the source's values one by one with its calls; else all, or the same in each.
  bool reads_each(const FlowSource& source) const { return source.has_items() && per_item(); }
};

// A graph whose names are resolved and whose rules are checked.
struct CheckedFlow {
  std::size_t input_count = 0;
  std::vector<FlowSource> sources;  // inputs of the flow first
  std::vector<FlowNode> nodes;      // in the graph's order
  std::vector<std::size_t> outputs;
};

// Throws what Flow's constructor does for its graph.
CheckedFlow check_flow(FlowGraph graph);

// "f32[1..8, 3]", "an integer"
std::string describe(const ValueInfo& type);
// Throws InvalidArgument when the value is not of the type; `name` is that of the input or output.
void check_value(const std::string& name, const std::optional<ValueInfo>& type, const Value& value);

}  // namespace graft
