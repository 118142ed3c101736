// Linear attention: graft.gated_delta_rule and graft.selective_scan (python/graft/llm/recurrence.py).
#include "kernel/recurrent/linear_attention.h"

#include <array>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/operator.h"

namespace graft {
namespace {

struct Operand {
  std::string_view name;
  int rank, other_rank;  // either
};
constexpr std::array<Operand, 6> kDelta = {
    {{"query", 4, 4}, {"key", 4, 4}, {"value", 4, 4}, {"decay", 3, 4}, {"beta", 3, 3}, {"state", 4, 4}}};
constexpr std::array<Operand, 6> kScan = {
    {{"x", 4, 4}, {"dt", 3, 3}, {"a", 2, 2}, {"b", 4, 4}, {"c", 4, 4}, {"state", 4, 4}}};

template <const std::array<Operand, 6>& operands>
Refusal refuse_operands(const NodeView& node) {
  for (const Operand& operand : operands) {
    const ir::Value& value = node.tensor(operand.name);
    if (value.rank() != operand.rank && value.rank() != operand.other_rank)
      return str(operand.name, " has rank ", value.rank(), ", expected ", operand.rank);
    if (value.dtype != DType::f32) return str(operand.name, " is ", name(value.dtype), ", expected f32");
  }
  return {};
}

void check_size(std::string_view what, const Shape& found, const Shape& expected) {
  GRAFT_CHECK(InvalidArgument, found == expected, what, " has size ", found.str(), ", expected ", expected.str());
}

void check_groups(std::string_view what, std::int64_t groups, std::int64_t heads) {
  GRAFT_CHECK(InvalidArgument, groups > 0 ? heads % groups == 0 : heads == 0, what, " has ", groups,
              " heads, expected a divisor of ", heads);
}

std::vector<Shape> delta_shape(const Call& call) {
  const Shape &value = call.tensor("value").shape(), &key = call.tensor("key").shape();
  const std::int64_t batch = value[0], steps = value[1], heads = value[2];
  check_size("key", key, {batch, steps, key[2], key[3]});
  check_size("query", call.tensor("query").shape(), key);
  check_groups("key", key[2], heads);
  const Shape& decay = call.tensor("decay").shape();
  check_size("decay", decay, decay.rank() == 3 ? Shape{batch, steps, heads} : Shape{batch, steps, heads, key[3]});
  check_size("beta", call.tensor("beta").shape(), {batch, steps, heads});
  const Shape state = {batch, heads, key[3], value[3]};
  check_size("state", call.tensor("state").shape(), state);
  return {value, state};
}

std::vector<Shape> scan_shape(const Call& call) {
  const Shape &x = call.tensor("x").shape(), &b = call.tensor("b").shape(), &a = call.tensor("a").shape();
  check_size("dt", call.tensor("dt").shape(), {x[0], x[1], x[2]});
  check_size("b", b, {x[0], x[1], b[2], b[3]});
  check_size("c", call.tensor("c").shape(), b);
  check_groups("b", b[2], x[2]);
  check_size("a", a, {x[2], a[1] == 1 ? 1 : b[3]});
  const Shape state = {x[0], x[2], x[3], b[3]};
  check_size("state", call.tensor("state").shape(), state);
  return {x, state};
}

// `rows`: operands whose last dimension the kernel walks; the state, the last operand, is contiguous.
std::vector<Tensor> launch(const Kernel& kernel, const std::array<Operand, 6>& operands, const Call& call,
                           std::span<const Shape> shapes, std::int64_t scratch, Lowering& lowering) {
  std::vector<Tensor> outputs;
  for (const Shape& shape : shapes) outputs.push_back(lowering.allocate(DType::f32, shape));
  const Tensor& state = call.tensor("state");
  if (outputs[0].numel() == 0) {  // no steps, or nothing in them
    if (state.numel() != 0) lowering.copy(state, outputs[1]);
    return outputs;
  }
  if (state.numel() == 0) return {lowering.full(DType::f32, shapes[0], Scalar::of(0.0)), outputs[1]};
  std::vector<Tensor> inputs;
  for (const Operand& operand : operands) {
    const Tensor& tensor = call.tensor(operand.name);
    const bool by_rows = operand.rank == 4 || tensor.rank() == 4 || operand.name == "a";
    inputs.push_back(operand.name == "state" ? lowering.contiguous(tensor)
                     : by_rows               ? lowering.with_contiguous_rows(tensor)
                                             : tensor);
  }
  lowering.launch(kernel, std::move(inputs), outputs, std::int64_t{0}, scratch);
  return outputs;
}

std::vector<Tensor> delta_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const std::int64_t scratch = gated_delta_scratch_bytes(call.tensor("key").size(3), lowering.max_tasks());
  return launch(kGatedDelta, kDelta, call, shapes, scratch, lowering);
}

std::vector<Tensor> scan_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const std::int64_t scratch = selective_scan_scratch_bytes(call.tensor("x").size(1), lowering.max_tasks());
  return launch(kSelectiveScan, kScan, call, shapes, scratch, lowering);
}

}  // namespace

std::span<const Operator> linear_attention_operators() {
  static constexpr Operator kTable[] = {
      {"graft.gated_delta_rule.default", refuse_operands<kDelta>, delta_shape, delta_lower, true},
      {"graft.selective_scan.default", refuse_operands<kScan>, scan_shape, scan_lower, true},
  };
  return kTable;
}

}  // namespace graft
