#include "pass/graph/partition.h"

#include <algorithm>

#include "op/common.h"

namespace graft {
namespace {

class MaskWriter {
 public:
  MaskWriter(ir::Program& program, ir::Method& method) : program_(program), method_(method) {}

  // Returns the number of nodes that it rewrote.
  std::size_t run() {
    std::size_t count = 0;
    std::vector<ir::Node> nodes = std::move(method_.nodes);
    method_.nodes.clear();
    method_.nodes.reserve(nodes.size());  // exact, for the many methods that this pass leaves unchanged
    for (ir::Node& node : nodes) {
      const std::string target = program_.op_of(node).target;
      if (target == "aten.index.Tensor" || target == "aten.index_put.default") count += rewrite(node, target);
      method_.nodes.push_back(std::move(node));
    }
    return count;
  }

 private:
  bool rewrite(ir::Node& node, const std::string& target) {
    const std::vector<std::string>& names = program_.op_of(node).arg_names;
    const auto position = std::ranges::find(names, "indices") - names.begin();
    if (position == static_cast<std::ptrdiff_t>(names.size())) return false;
    const ir::Arg indices = node.args[static_cast<std::size_t>(position)];
    const auto masked = [&](const ir::Arg& item) {
      return item.is_value() && is_mask(method_.values[item.value()].dtype);
    };
    if (std::ranges::none_of(indices.items, masked)) return false;
    if (target == "aten.index_put.default" && writes_by_mask(node, indices)) return false;
    ir::Arg positions;
    positions.kind = ir::Arg::Kind::list;
    for (const ir::Arg& item : indices.items) {
      if (masked(item)) {
        append_positions(node, item.value(), positions.items);
      } else {
        positions.items.push_back(item);
      }
    }
    node.args[static_cast<std::size_t>(position)] = std::move(positions);
    return true;
  }

  // self[mask] = values keeps the size of self, and has its own kernel (op/aten/index.cpp).
  bool writes_by_mask(const ir::Node& node, const ir::Arg& indices) const {
    const std::vector<std::string>& names = program_.op_of(node).arg_names;
    const auto position = static_cast<std::size_t>(std::ranges::find(names, "accumulate") - names.begin());
    return is_masked_put(indices.items.size(), method_.values[indices.items[0].value()].dtype) &&
           position < names.size() && node.args[position].i == 0;
  }

  // nonzero(mask), column by column.
  void append_positions(const ir::Node& owner, ir::ValueId mask, std::vector<ir::Arg>& positions) {
    const int rank = method_.values[mask].rank();
    const std::string name = owner.name + "_positions_" + std::to_string(positions.size());
    const ir::ValueId all = value(name, {ir::Dim{}, ir::Dim{rank, rank, {}}});
    add(owner, name, "aten.nonzero.default", {"self"}, {ir::Arg::of_value(mask)}, all);
    for (int d = 0; d < rank; ++d) {
      const std::string column_name = name + "_" + std::to_string(d);
      const ir::ValueId column = value(column_name, {ir::Dim{}});
      add(owner, column_name, "aten.select.int", {"self", "dim", "index"},
          {ir::Arg::of_value(all), ir::Arg::of_integer(1), ir::Arg::of_integer(d)}, column);
      positions.push_back(ir::Arg::of_value(column));
    }
  }

  ir::ValueId value(const std::string& name, std::vector<ir::Dim> dims) {
    method_.values.push_back({name, ir::ValueKind::tensor, DType::i64, std::move(dims)});
    return static_cast<ir::ValueId>(method_.values.size() - 1);
  }

  void add(const ir::Node& owner, const std::string& name, const std::string& target, std::vector<std::string> names,
           std::vector<ir::Arg> args, ir::ValueId output) {
    method_.nodes.push_back({op(target, std::move(names)), name, std::move(args), {output}, owner.origin});
  }

  std::uint32_t op(const std::string& target, std::vector<std::string> names) {
    for (std::uint32_t i = 0; i < program_.ops.size(); ++i)
      if (program_.ops[i].target == target && program_.ops[i].arg_names == names) return i;
    program_.ops.push_back({target, std::move(names)});
    return static_cast<std::uint32_t>(program_.ops.size() - 1);
  }

  ir::Program& program_;
  ir::Method& method_;
};

}  // namespace

std::size_t expand_masks(ir::Program& program) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += MaskWriter(program, method).run();
  for (ir::Method& method : program.subgraphs) count += MaskWriter(program, method).run();
  return count;
}

}  // namespace graft
