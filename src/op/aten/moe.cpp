// Mixtures of experts: graft.expert_linear (python/graft/llm/ops.py).
#include "kernel/matmul/moe.h"

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/operator.h"

namespace graft {
namespace {

constexpr std::array<std::pair<std::string_view, int>, 4> kRanks = {
    {{"input", 3}, {"experts", 2}, {"weight", 3}, {"bias", 2}}};

Refusal refuse_expert_linear(const NodeView& node) {
  for (const auto& [argument, rank] : kRanks) {
    if (!node.has(argument)) continue;
    const ir::Value& value = node.tensor(argument);
    if (value.rank() != rank) return str(argument, " has rank ", value.rank(), ", expected ", rank);
    const bool fits =
        argument == "experts" ? value.dtype == DType::i64 || value.dtype == DType::i32 : value.dtype == DType::f32;
    if (!fits) return str(argument, " is ", name(value.dtype));
  }
  return {};
}

std::vector<Shape> expert_linear_shape(const Call& call) {
  const Shape &input = call.tensor("input").shape(), &experts = call.tensor("experts").shape(),
              &weight = call.tensor("weight").shape();
  GRAFT_CHECK(InvalidArgument, input[0] == experts[0] && (input[1] == 1 || input[1] == experts[1]), "input ",
              input.str(), " does not have one row, or one for each expert, for each row of experts ", experts.str());
  GRAFT_CHECK(InvalidArgument, input[2] == weight[2], "input ", input.str(), " and weight ", weight.str(),
              " cannot be multiplied: ", input[2], " columns against ", weight[2]);
  if (call.has("bias")) {
    const Shape& bias = call.tensor("bias").shape();
    GRAFT_CHECK(InvalidArgument, bias == Shape({weight[0], weight[1]}), "bias must have sizes [", weight[0], ", ",
                weight[1], "], got ", bias.str());
  }
  return {Shape{experts[0], experts[1], weight[1]}};
}

std::vector<Tensor> expert_linear_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(DType::f32, shapes[0]);
  if (out.numel() == 0) return {out};
  const Tensor& weight = call.tensor("weight");
  ExpertLinearAttrs attrs{weight.size(0), weight.size(1), weight.size(2), -1, 0};
  if (weight.stored && !weight.stored->is_plain()) {
    attrs.block = weight.stored->block;
    attrs.panels = weight.stored->kind == Stored::Kind::panels ? 1 : 0;
  }
  std::vector<Tensor> inputs = {lowering.contiguous(call.tensor("input")), lowering.contiguous(call.tensor("experts")),
                                attrs.block >= 0 ? lowering.bytes_of(weight) : lowering.contiguous(as_stored(weight))};
  if (call.has("bias")) {
    inputs.push_back(lowering.contiguous(call.tensor("bias")));
    attrs.has_bias = 1;
  }
  const std::int64_t scratch = expert_linear_scratch_bytes(attrs, inputs[0].desc, inputs[1].desc, lowering.max_tasks());
  lowering.launch(kExpertLinear, std::move(inputs), {out}, attrs, scratch);
  return {out};
}

StoredUse stored_use_of_expert_linear(const NodeView&, std::string_view argument) {
  return argument == "weight" ? StoredUse::rows : StoredUse::none;
}

}  // namespace

std::span<const Operator> moe_operators() {
  static constexpr Operator kTable[] = {
      {"graft.expert_linear.default", refuse_expert_linear, expert_linear_shape, expert_linear_lower, true, false,
       false, stored_use_of_expert_linear},
  };
  return kTable;
}

}  // namespace graft
