// What the adapters of a run add to a linear layer, put behind each by src/pass/graph/adapters.cpp.
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernel/matmul/low_rank.h"
#include "lowering/lowering.h"
#include "op/operator.h"

namespace graft {
namespace {

// --- graft.add_adapter(self, input, batch?, layer, most_rank): a linear layer's result and operand; a tensor whose
// first size is the batch's, given where the layer's rows are those of the batch; which layer; the largest rank ---

bool is_matrix(const ir::Value& value) {
  return value.rank() >= 1 && (value.dtype == DType::f32 || value.dtype == DType::f16 || value.dtype == DType::bf16);
}

Refusal refuse_add_adapter(const NodeView& node) {
  const ir::Value &self = node.tensor("self"), &input = node.tensor("input");
  if (!is_matrix(self) || input.dtype != self.dtype || input.rank() != self.rank())
    return str("self is ", self.str(), " and input ", input.str(), ", expected f32, f16 or bf16 of one rank");
  if (const auto layer = node.constant("layer"); !layer || *layer < 0) return "layer must be known and not negative";
  if (const auto rank = node.constant("most_rank"); !rank || *rank < 1 || *rank > kMaxAdapterRank)
    return str("most_rank must be from 1 to ", kMaxAdapterRank);
  return {};
}

std::vector<Shape> add_adapter_shape(const Call& call) { return {call.tensor("self").shape()}; }

// As a matrix with contiguous rows: without a copy for what products write, as a rule.
Tensor rows_of(const Tensor& tensor, Lowering& lowering) {
  const std::int64_t columns = tensor.size(tensor.rank() - 1);
  const Shape matrix{tensor.numel() / columns, columns};
  const std::optional<Tensor> view = try_reshape(tensor, matrix);
  return view && view->stride(1) == 1 ? *view : *try_reshape(lowering.contiguous(tensor), matrix);
}

std::vector<Tensor> lower_add_adapter(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor &self = call.tensor("self"), &input = call.tensor("input");
  const Tensor out = lowering.allocate(self.dtype(), shapes[0]);
  if (out.numel() == 0 || input.numel() == 0) return {self};
  const Tensor product = rows_of(self, lowering);
  const std::int64_t rows = product.size(0);
  AddAdapterAttrs attrs;
  attrs.layer = call.integer("layer");
  attrs.most_rank = call.integer("most_rank");
  if (call.has("batch")) {
    const std::int64_t batch = call.tensor("batch").size(0);
    if (batch > 0 && rows % batch == 0) attrs.batch = batch;
  }
  GRAFT_CHECK(Unsupported, rows <= INT64_MAX / add_adapter_scratch_bytes(attrs, 1), "a layer of ", rows,
              " rows is too large for adapters");
  lowering.launch(kAddAdapter, {product, rows_of(input, lowering)}, {rows_of(out, lowering)}, attrs,
                  add_adapter_scratch_bytes(attrs, rows), 1u);
  return {out};
}

}  // namespace

std::span<const Operator> add_adapter_operators() {
  // `random`: the adapters are the run's, so that it is never folded.
  static constexpr Operator kOperators[] = {{"graft.add_adapter", refuse_add_adapter, add_adapter_shape,
                                             lower_add_adapter, false, false, false, nullptr, true}};
  return kOperators;
}

}  // namespace graft
