#include "plan/state_updates.h"

#include <algorithm>
#include <string_view>

#include "op/operator.h"

namespace graft {
namespace {

constexpr std::size_t kNever = static_cast<std::size_t>(-1);

class Finder {
 public:
  Finder(const ir::Program& program, const ir::Method& method)
      : program_(program),
        method_(method),
        producer_(method.values.size(), kNever),
        root_(method.values.size()),
        reads_(method.values.size()),
        is_output_(method.values.size(), false) {
    for (ir::ValueId id = 0; id < root_.size(); ++id) root_[id] = id;
    for (std::size_t n = 0; n < method.nodes.size(); ++n) {
      const ir::Node& node = method.nodes[n];
      const Operator* op = find_operator(program.op_of(node).target);
      for (const ir::ValueId id : node.outputs) producer_[id] = n;
      // The results of a view share memory with its first argument.
      if (op && op->view && !node.args.empty() && node.args[0].is_value())
        for (const ir::ValueId id : node.outputs) root_[id] = root_[node.args[0].value()];
      const bool is_view = op && op->view;
      if (!is_view) ir::for_each_value(node, [&](ir::ValueId id) { reads_[root_[id]].push_back(n); });
    }
    for (const ir::Output& output : method.outputs)
      if (output.arg.is_value() && output.kind == ir::OutputKind::user) is_output_[root_[output.arg.value()]] = true;
  }

  std::vector<bool> run() {
    std::vector<bool> in_place(method_.nodes.size(), false);
    for (const ir::Output& output : method_.outputs) {
      if (output.kind != ir::OutputKind::state_mutation || !output.arg.is_value()) continue;
      for (const std::size_t node : chain(output)) in_place[node] = true;
    }
    return in_place;
  }

 private:
  // The updates that lead from the state's value at entry to `output`; empty when one of them needs a copy.
  std::vector<std::size_t> chain(const ir::Output& output) const {
    std::vector<std::size_t> updates;
    ir::ValueId value = output.arg.value();
    // Another state or input that takes this value reads it at the end of the run.
    const auto takers = std::count_if(method_.outputs.begin(), method_.outputs.end(), [&](const ir::Output& o) {
      return o.kind != ir::OutputKind::user && o.arg.is_value() && root_[o.arg.value()] == value;
    });
    if (takers != 1) return {};
    while (!is_state(value, output.index)) {
      const std::size_t node = producer_[value];
      if (node == kNever || !may_overwrite(node)) return {};
      updates.push_back(node);
      value = self_of(node)->value();
    }
    return updates;
  }

  bool is_state(ir::ValueId value, std::uint32_t index) const {
    return std::any_of(method_.inputs.begin(), method_.inputs.end(), [&](const ir::Input& input) {
      return input.kind == ir::InputKind::state && input.index == index && input.value == value;
    });
  }

  const ir::Arg* self_of(std::size_t node) const {
    const std::vector<std::string>& names = program_.op_of(method_.nodes[node]).arg_names;
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i] == "self" && method_.nodes[node].args[i].is_value()) return &method_.nodes[node].args[i];
    return nullptr;
  }

  bool may_overwrite(std::size_t node) const {
    const Operator* op = find_operator(program_.op_of(method_.nodes[node]).target);
    const ir::Arg* self = self_of(node);
    if (!op || !op->updates || !self) return false;
    const ir::ValueId before = self->value();
    // A view, a user output, or another state's next value: the old elements are still needed.
    if (root_[before] != before || is_output_[before]) return false;
    for (const ir::Output& output : method_.outputs)
      if (output.arg.is_value() && root_[output.arg.value()] == before) return false;
    // Read once, as self here, and nowhere later; as another argument it would be read while it is written.
    const std::vector<std::size_t>& reads = reads_[before];
    return std::count(reads.begin(), reads.end(), node) == 1 &&
           std::all_of(reads.begin(), reads.end(), [&](std::size_t reader) { return reader <= node; });
  }

  const ir::Program& program_;
  const ir::Method& method_;
  std::vector<std::size_t> producer_;            // by value: the node that makes it
  std::vector<ir::ValueId> root_;                // by value: the value whose memory it shares
  std::vector<std::vector<std::size_t>> reads_;  // by root: the nodes that read it
  std::vector<bool> is_output_;                  // by root: a user output
};

}  // namespace

std::vector<bool> find_state_updates(const ir::Program& program, const ir::Method& method) {
  if (program.states.empty()) return std::vector<bool>(method.nodes.size(), false);
  return Finder(program, method).run();
}

}  // namespace graft
