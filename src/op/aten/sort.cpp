// sort, argsort, topk.
#include "kernel/index/sort.h"

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/dims.h"

namespace graft {
namespace {

std::vector<Shape> sort_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  wrap_dim(call.integer("dim"), self.rank());
  return std::vector<Shape>(call.output_count(), self.shape());
}

std::vector<Shape> topk_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const int dim = wrap_dim(call.integer("dim"), self.rank());
  const std::int64_t size = self.rank() > 0 ? self.size(dim) : 1, k = call.integer("k");
  GRAFT_CHECK(InvalidArgument, k >= 0 && k <= size, "k is ", k, ", but dimension ", dim, " has size ", size);
  Shape shape = self.shape();
  if (self.rank() > 0) shape[dim] = k;
  return {shape, shape};
}

std::vector<Tensor> launch_sort(const Call& call, std::span<const Shape> shapes, SortAttrs attrs, Lowering& lowering) {
  const Tensor& self = call.tensor("self");
  attrs.dim = wrap_dim(call.integer("dim"), self.rank());
  attrs.indices_only = shapes.size() == 1;
  std::vector<Tensor> outputs;
  if (!attrs.indices_only) outputs.push_back(lowering.allocate(self.dtype(), shapes[0]));
  outputs.push_back(lowering.allocate(DType::i64, shapes.back()));
  if (outputs[0].numel() == 0) return outputs;
  const std::int64_t size = self.rank() > 0 ? self.size(attrs.dim) : 1;
  lowering.launch(kSort, {self}, outputs, attrs, sort_scratch_bytes(self.numel() / size, size, lowering.max_tasks()));
  return outputs;
}

std::vector<Tensor> sort_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return launch_sort(call, shapes, {.descending = call.boolean("descending")}, lowering);
}

std::vector<Tensor> topk_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const SortAttrs attrs{.descending = call.boolean("largest"), .topk = true, .topk_sorted = call.boolean("sorted")};
  return launch_sort(call, shapes, attrs, lowering);
}

}  // namespace

std::span<const Operator> sort_operators() {
  static constexpr Operator operators[] = {
      {"aten.sort.default", refuse_rank, sort_shape, sort_lower, false},
      {"aten.sort.stable", refuse_rank, sort_shape, sort_lower, false},
      {"aten.argsort.default", refuse_rank, sort_shape, sort_lower, false},
      {"aten.argsort.stable", refuse_rank, sort_shape, sort_lower, false},
      {"aten.topk.default", refuse_rank, topk_shape, topk_lower, false},
  };
  return operators;
}

}  // namespace graft
