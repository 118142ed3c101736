// Copies and dtype conversions. A value of the graph never changes, so a copy with the same dtype is the value itself.
#include "lowering/lowering.h"
#include "op/common.h"

namespace graft {
namespace {

Refusal accept(const NodeView& node) { return refuse_rank_of(node.tensor("self")); }

std::vector<Tensor> lower_cast(const Call& call, std::span<const Shape>, Lowering& lowering) {
  return {lowering.cast(call.tensor("self"), call.output_dtype())};
}

// copy(self, src): the elements of `src`, broadcast, as a tensor like `self`.
std::vector<Tensor> lower_copy(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& src = call.tensor("src");
  if (src.dtype() == call.output_dtype() && src.shape() == shapes[0]) return {src};
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  lowering.copy(expanded(src, shapes[0]), out);
  return {out};
}

const Operator kOperators[] = {
    {"aten._to_copy.default", accept, shape_of_self, lower_cast},
    {"aten.to.dtype", accept, shape_of_self, lower_cast},
    {"aten.to.device", accept, shape_of_self, lower_cast},
    {"aten.to.dtype_layout", accept, shape_of_self, lower_cast},
    {"aten.to.other", accept, shape_of_self, lower_cast},
    {"aten.type_as.default", accept, shape_of_self, lower_cast},
    {"aten.clone.default", accept, shape_of_self, lower_cast},
    {"aten.positive.default", accept, shape_of_self, lower_cast},
    {"aten.contiguous.default", accept, shape_of_self, lower_cast},
    {"aten.lift.default", accept, shape_of_self, lower_cast},
    {"aten.lift_fresh.default", accept, shape_of_self, lower_cast},
    {"aten.copy.default", accept, shape_of_self, lower_copy},
};

}  // namespace

std::span<const Operator> cast_operators() { return kOperators; }

}  // namespace graft
