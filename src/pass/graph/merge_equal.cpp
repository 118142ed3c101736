#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "op/operator.h"
#include "pass/graph/graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

// Of ATen, whose operators are functions of their arguments but where they draw numbers; graft's own may have states.
bool is_function(std::string_view target) {
  const Operator* op = target.starts_with("aten.") ? find_operator(target) : nullptr;
  return op != nullptr && !op->random;
}

struct Less {
  const ir::Program* program;

  bool operator()(const ir::Arg& a, const ir::Arg& b) const {
    // Numbers by their bits: 0.0 is not -0.0, and NaN is itself.
    const auto key = [](const ir::Arg& arg) {
      return std::tuple(arg.kind, arg.i, std::bit_cast<std::uint64_t>(arg.f), std::string_view(arg.s));
    };
    if (key(a) != key(b)) return key(a) < key(b);
    return std::ranges::lexicographical_compare(a.items, b.items, *this);
  }
  bool operator()(const ir::Node* a, const ir::Node* b) const {
    const ir::Op &one = program->op_of(*a), &other = program->op_of(*b);
    const auto op = std::tie(one.target, one.arg_names) <=> std::tie(other.target, other.arg_names);
    if (op != 0) return op < 0;
    return std::ranges::lexicographical_compare(a->args, b->args, *this);
  }
};

bool alike(const ir::Value& a, const ir::Value& b) { return a.dtype == b.dtype && same_sizes(a, b); }

class Merger {
 public:
  Merger(const ir::Program& program, ir::Method& method)
      : program_(program), method_(method), is_output_(method.values.size(), false) {
    for (ir::ValueId id = 0; id < method.values.size(); ++id) stands_for_.push_back(id);
    for (const ir::Output& output : method.outputs)
      ir::for_each_value(output.arg, [&](ir::ValueId id) { is_output_[id] = true; });
  }

  std::size_t run() {
    std::map<const ir::Node*, ir::ValueId, Less> first(Less{&program_});
    std::size_t count = 0;
    for (ir::Node& node : method_.nodes) {
      for (ir::Arg& arg : node.args) rename(arg);
      if (!is_function(program_.op_of(node).target) || node.outputs.size() != 1) continue;
      const ir::ValueId result = node.outputs[0];
      const ir::Value& value = method_.values[result];
      // Results of a call are tensors of their own. Floats are left alone: a value that two read is written to memory,
      // where one that each computes may stay in a chain of operators.
      if (is_output_[result] || value.kind != ir::ValueKind::tensor || is_float(value.dtype)) continue;
      if (const ir::Arg* same = adds_nothing(node)) {
        stands_for_[result] = same->value();
        ++count;
        continue;
      }
      const auto [known, is_new] = first.emplace(&node, result);
      if (is_new || !alike(method_.values[known->second], value)) continue;
      stands_for_[result] = known->second;
      ++count;
    }
    return count;
  }

 private:
  void rename(ir::Arg& arg) const {
    if (arg.is_value()) arg.i = stands_for_[arg.value()];
    for (ir::Arg& item : arg.items) rename(item);
  }

  // The operand that an integer sum equals, as in `arange(n) + 0`; null if it is none.
  const ir::Arg* adds_nothing(const ir::Node& node) const {
    const ir::Op& op = program_.op_of(node);
    if (op.target != "aten.add.Tensor" && op.target != "aten.sub.Tensor") return nullptr;
    if (op.arg_names.size() < 2 || op.arg_names[0] != "self" || op.arg_names[1] != "other") return nullptr;
    const ir::Arg &self = node.args[0], &other = node.args[1];
    const bool zero = other.kind == ir::Arg::Kind::integer && other.i == 0;
    return zero && self.is_value() && alike(method_.values[self.value()], method_.values[node.outputs[0]]) ? &self
                                                                                                           : nullptr;
  }

  const ir::Program& program_;
  ir::Method& method_;
  std::vector<bool> is_output_;          // by value
  std::vector<ir::ValueId> stands_for_;  // by value: an earlier one that equals it, or itself
};

}  // namespace

std::size_t merge_equal_nodes(ir::Program& program) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += Merger(program, method).run();
  drop_dead_nodes(program);
  return count;
}

}  // namespace graft
