#include <span>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "op/host.h"
#include "op/operator.h"
#include "op/user.h"

// The list of all operator families. A new one is one entry here.
namespace graft {

#define GRAFT_OPERATOR_FAMILIES(X)   \
  X(activation_operators)            \
  X(add_adapter_operators)           \
  X(arithmetic_operators)            \
  X(attention_operators)             \
  X(batch_norm_operators)            \
  X(cast_operators)                  \
  X(conv_operators)                  \
  X(creation_operators)              \
  X(distance_operators)              \
  X(embedding_bag_operators)         \
  X(index_operators)                 \
  X(kv_attention_operators)          \
  X(linear_attention_operators)      \
  X(linear_operators)                \
  X(logic_operators)                 \
  X(moe_operators)                   \
  X(movement_operators)              \
  X(norm_operators)                  \
  X(pool_operators)                  \
  X(quantize_operators)              \
  X(random_operators)                \
  X(recurrent_operators)             \
  X(reduce_operators)                \
  X(resample_operators)              \
  X(packed_conv_operators)           \
  X(packed_linear_operators)         \
  X(packed_quantized_conv_operators) \
  X(rope_operators)                  \
  X(softmax_operators)               \
  X(sort_operators)                  \
  X(cross_attention_operators)       \
  X(unary_operators)                 \
  X(view_operators)

#define GRAFT_DECLARE(family) std::span<const Operator> family();
GRAFT_OPERATOR_FAMILIES(GRAFT_DECLARE)
#undef GRAFT_DECLARE

std::span<const ScalarOperator> scalar_operators();

namespace {

template <typename Op>
using Table = std::unordered_map<std::string_view, const Op*>;

const Table<Operator>& operator_table() {
  static const Table<Operator> table = [] {
    Table<Operator> t;
    for (const Operator* op : all_operators()) GRAFT_ASSERT(t.emplace(op->target, op).second);
    return t;
  }();
  return table;
}

const Table<ScalarOperator>& scalar_table() {
  static const Table<ScalarOperator> table = [] {
    Table<ScalarOperator> t;
    for (const ScalarOperator* op : all_scalar_operators()) GRAFT_ASSERT(t.emplace(op->target, op).second);
    return t;
  }();
  return table;
}

}  // namespace

std::vector<const Operator*> all_operators() {
  std::vector<const Operator*> out;
#define GRAFT_APPEND(family) \
  for (const Operator& op : family()) out.push_back(&op);
  GRAFT_OPERATOR_FAMILIES(GRAFT_APPEND)
#undef GRAFT_APPEND
  return out;
}

std::vector<const ScalarOperator*> all_scalar_operators() {
  std::vector<const ScalarOperator*> out;
  for (const ScalarOperator& op : scalar_operators()) out.push_back(&op);
  return out;
}

const Operator* find_operator(std::string_view target) {
  const auto it = operator_table().find(target);
  return it == operator_table().end() ? find_user_operator(target) : it->second;
}

const ScalarOperator* find_scalar_operator(std::string_view target) {
  const auto it = scalar_table().find(target);
  return it == scalar_table().end() ? nullptr : it->second;
}

Refusal refuse(const NodeView& node) {
  if (const ScalarOperator* op = find_scalar_operator(node.target())) return op->refuse ? op->refuse(node) : Refusal();
  if (node.output_count() == 0) return "a node without outputs";
  if (node.target() == kCond || node.target() == kWhileLoop) return refuse_control_flow(node);
  if (const HostOperator* op = find_host_operator(node.target())) return op->refuse ? op->refuse(node) : Refusal();
  const Operator* op = find_operator(node.target());
  if (!op) return "graft has no such operator";
  for (std::size_t i = 0; i < node.output_count(); ++i)
    if (node.output(i).rank() > kMaxRank)
      return str("output ", i, " has rank ", node.output(i).rank(), ", at most ", kMaxRank, " is supported");
  return op->refuse ? op->refuse(node) : Refusal();
}

}  // namespace graft
