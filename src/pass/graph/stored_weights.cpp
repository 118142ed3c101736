#include "pass/graph/stored_weights.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "op/operator.h"
#include "weight/stored_weight.h"

namespace graft {
namespace {

class Converter {
 public:
  Converter(ir::Program& graph, bool only_blocks)
      : graph_(graph), method_(graph.methods[0]), only_blocks_(only_blocks) {}

  std::vector<ConvertedWeight> run() {
    const auto count = static_cast<std::uint32_t>(graph_.weights.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      const bool block = graph_.weights[i].storage != ir::Storage::plain;
      // Only f32 values are stored in another type.
      const bool half = graph_.weights[i].dtype == DType::f16 || graph_.weights[i].dtype == DType::bf16;
      none_as_stored_ = only_blocks_ && graph_.weights[i].storage != ir::Storage::ggml_block;
      if (block || half) convert_uses(i);
    }
    return std::move(converted_);
  }

 private:
  // Converts the inputs of one weight; there may be several, with values of the same or of different dtypes.
  void convert_uses(std::uint32_t weight) {
    bool as_stored = false;
    std::vector<ir::ValueId> converted;  // values whose uses all read the conversion
    const std::size_t inputs = method_.inputs.size();
    for (std::size_t i = 0; i < inputs; ++i) {
      const ir::Input input = method_.inputs[i];
      if (input.kind != ir::InputKind::weight || input.index != weight) continue;
      const ir::Weight& stored = graph_.weights[weight];
      if (stored.storage == ir::Storage::plain && method_.values[input.value].dtype == stored.dtype) {
        as_stored = true;
        continue;
      }
      const Uses uses = uses_of(input.value);
      as_stored = as_stored || uses.as_stored || !uses.other;
      if (uses.other && !uses.as_stored) {
        converted.push_back(input.value);
      } else if (uses.other) {
        const ir::ValueId value = copy_of(input.value);
        redirect(input.value, value);
        method_.inputs.push_back({value, ir::InputKind::weight, weight});
        converted.push_back(value);
      }
    }
    std::vector<ir::State*> states;
    for (ir::State& state : graph_.states)
      if (state.initial == static_cast<std::int32_t>(weight) && state.dtype != stored_dtype(weight))
        states.push_back(&state);
    if (converted.empty() && states.empty()) return;

    std::uint32_t target = weight;
    if (as_stored) {
      target = static_cast<std::uint32_t>(graph_.weights.size());
      graph_.weights.push_back(graph_.weights[weight]);
    }
    graph_.weights[target].key += " as f32";  // equal keys mean equal sizes
    for (ir::Input& input : method_.inputs)
      if (input.kind == ir::InputKind::weight && std::ranges::find(converted, input.value) != converted.end())
        input.index = target;
    for (ir::State* state : states) state->initial = static_cast<std::int32_t>(target);
    set_stored(graph_.weights[target], Stored::as(DType::f32));
    graph_.weights[target].sha256.clear();
    converted_.push_back({target, weight});
  }

  std::optional<DType> stored_dtype(std::uint32_t weight) const {
    const ir::Weight& w = graph_.weights[weight];
    return w.storage == ir::Storage::plain ? std::optional(w.dtype) : std::nullopt;
  }

  // How an argument uses a value that is stored in another type.
  StoredUse use(const ir::Node& node, std::size_t argument) const {
    const ir::Op& op = graph_.op_of(node);
    const Operator* found = find_operator(op.target);
    if (!found || !found->stored_use) return StoredUse::none;
    return found->stored_use(NodeView(graph_, method_, node), op.arg_names[argument]);
  }

  static bool holds(const ir::Arg& arg, ir::ValueId value) {
    if (arg.is_value()) return arg.value() == value;
    return std::ranges::any_of(arg.items, [&](const ir::Arg& item) { return holds(item, value); });
  }

  // Whether all uses of a transposed view take the weight as it is stored.
  bool reads_columns(ir::ValueId view) const {
    for (const ir::Node& node : method_.nodes)
      for (std::size_t a = 0; a < node.args.size(); ++a)
        if (holds(node.args[a], view) && (!node.args[a].is_value() || use(node, a) != StoredUse::columns)) return false;
    return !is_output(view);
  }

  bool is_output(ir::ValueId value) const {
    return std::ranges::any_of(method_.outputs, [&](const ir::Output& out) { return holds(out.arg, value); });
  }

  bool takes_as_stored(const ir::Node& node, std::size_t a) const {
    if (none_as_stored_ || !node.args[a].is_value()) return false;
    const ir::Value& value = method_.values[node.args[a].value()];
    // An empty matrix has no rows to read, nor does a stack of them (graft.expert_linear).
    const auto empty = [](const ir::Dim& dim) { return dim.min == 0; };
    if (value.rank() < 2 || value.rank() > 3 || std::ranges::any_of(value.dims, empty)) return false;
    const StoredUse how = use(node, a);
    return how == StoredUse::rows || (how == StoredUse::transposes && reads_columns(node.outputs[0]));
  }

  struct Uses {
    bool as_stored = false;
    bool other = false;
  };
  Uses uses_of(ir::ValueId value) const {
    Uses uses;
    for (const ir::Node& node : method_.nodes)
      for (std::size_t a = 0; a < node.args.size(); ++a)
        if (holds(node.args[a], value)) (takes_as_stored(node, a) ? uses.as_stored : uses.other) = true;
    uses.other = uses.other || is_output(value);
    return uses;
  }

  ir::ValueId copy_of(ir::ValueId value) {
    ir::Value copy = method_.values[value];
    copy.name += " as f32";
    method_.values.push_back(std::move(copy));
    return static_cast<ir::ValueId>(method_.values.size() - 1);
  }

  static void replace(ir::Arg& arg, ir::ValueId from, ir::ValueId to) {
    if (arg.is_value() && arg.value() == from) arg = ir::Arg::of_value(to);
    for (ir::Arg& item : arg.items) replace(item, from, to);
  }

  // Redirects uses that do not take the weight as it is stored to `to`.
  void redirect(ir::ValueId from, ir::ValueId to) {
    for (ir::Node& node : method_.nodes)
      for (std::size_t a = 0; a < node.args.size(); ++a)
        if (holds(node.args[a], from) && !takes_as_stored(node, a)) replace(node.args[a], from, to);
    for (ir::Output& output : method_.outputs) replace(output.arg, from, to);
  }

  ir::Program& graph_;
  ir::Method& method_;
  const bool only_blocks_;
  bool none_as_stored_ = false;  // of the weight whose uses are converted
  std::vector<ConvertedWeight> converted_;
};

}  // namespace

std::vector<ConvertedWeight> convert_stored_weights(ir::Program& graph, bool only_blocks) {
  return Converter(graph, only_blocks).run();
}

}  // namespace graft
