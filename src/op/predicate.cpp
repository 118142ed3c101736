#include "graft/predicate.h"

#include "base/rethrow.h"
#include "ir/program.h"
#include "op/host.h"
#include "op/operator.h"
#include "op/user.h"

namespace graft {

std::vector<RefusedNode> refused_nodes(std::span<const std::byte> blob) try {
  const ir::Program program = ir::parse(blob);
  ir::verify(program);
  std::vector<RefusedNode> out;
  for (std::size_t m = 0; m < program.methods.size(); ++m) {
    for (const ir::Node& node : program.methods[m].nodes) {
      const NodeView view(program, program.methods[m], node);
      Refusal refusal = refuse(view);
      if (!refusal.empty()) out.push_back({m, node.name, std::string(view.target()), std::move(refusal)});
    }
  }
  return out;
} catch (...) {
  rethrow_typed();
}

std::vector<std::string> preserved_targets() try {
  std::vector<std::string> out;
  for (const Operator* op : all_operators())
    if (op->preserve) out.emplace_back(op->target);
  for (const Operator* op : user_operators()) out.emplace_back(op->target);
  return out;
} catch (...) {
  rethrow_typed();
}

std::vector<std::string> operator_targets() try {
  std::vector<std::string> out;
  for (const Operator* op : all_operators()) out.emplace_back(op->target);
  for (const ScalarOperator* op : all_scalar_operators()) out.emplace_back(op->target);
  for (const Operator* op : user_operators()) out.emplace_back(op->target);
  return out;
} catch (...) {
  rethrow_typed();
}

std::vector<std::string> host_operator_targets() try {
  std::vector<std::string> out = {std::string(kCond), std::string(kWhileLoop)};
  for (const HostOperator& op : host_operators()) out.emplace_back(op.target);
  return out;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
