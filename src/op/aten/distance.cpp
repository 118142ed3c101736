// Distances between rows.
#include "kernel/reduce/distance.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/common.h"
#include "op/dims.h"

namespace graft {
namespace {

Refusal refuse_dtype(const ir::Value& value, std::string_view argument) {
  if (value.dtype != DType::f32 && value.dtype != DType::f64)
    return str(argument, " is ", name(value.dtype), ", expected f32 or f64 as in PyTorch");
  return refuse_rank_of(value);
}

// The kernel writes elements of the type that it reads.
Refusal refuse_result(const NodeView& node, const ir::Value& from) {
  if (node.output_count() == 1 && node.output(0).dtype == from.dtype) return {};
  return str("the result must be one tensor of ", name(from.dtype), ", found ", node.output_count(), " of ",
             node.output_count() > 0 ? name(node.output(0).dtype) : "nothing");
}

Refusal refuse_cdist(const NodeView& node) {
  const ir::Value &x1 = node.tensor("x1"), &x2 = node.tensor("x2");
  if (x1.rank() < 2 || x2.rank() < 2) return "x1 and x2 need two dimensions";
  if (x1.dtype != x2.dtype) return str("x1 is ", name(x1.dtype), ", x2 ", name(x2.dtype));
  if (Refusal reason = refuse_dtype(x1, "x1"); !reason.empty()) return reason;
  if (Refusal reason = refuse_result(node, x1); !reason.empty()) return reason;
  return refuse_rank_of(x2);
}

Refusal refuse_pdist(const NodeView& node) {
  if (node.tensor("self").rank() != 2) return str("self has rank ", node.tensor("self").rank(), ", expected 2");
  if (Refusal reason = refuse_dtype(node.tensor("self"), "self"); !reason.empty()) return reason;
  return refuse_result(node, node.tensor("self"));
}

double power_of(const Call& call) {
  const double p = call.real("p");
  GRAFT_CHECK(InvalidArgument, p >= 0, "p is ", p, ", expected a number that is not negative");
  return p;
}

Shape leading(const Shape& shape) {
  Shape result;
  for (int d = 0; d + 2 < shape.rank(); ++d) result.push_back(shape[d]);
  return result;
}

std::vector<Shape> cdist_shape(const Call& call) {
  const Shape &x1 = call.tensor("x1").shape(), &x2 = call.tensor("x2").shape();
  power_of(call);
  GRAFT_CHECK(InvalidArgument, x1[x1.rank() - 1] == x2[x2.rank() - 1], "rows of x1 ", x1.str(), " and x2 ", x2.str(),
              " have different sizes");
  Shape out = broadcast_shapes(leading(x1), leading(x2));
  out.push_back(x1[x1.rank() - 2]);
  out.push_back(x2[x2.rank() - 2]);
  return {out};
}

// [batch..., rows, size], broadcast to the result's batch, as [B, rows, size].
Tensor rows_of(const Tensor& x, const Shape& out, Lowering& lowering) {
  Shape shape = leading(out);
  shape.push_back(x.size(x.rank() - 2));
  shape.push_back(x.size(x.rank() - 1));
  const Tensor all = lowering.contiguous(expanded(x, shape));
  const std::int64_t batch = leading(out).numel();
  return *try_reshape(all, Shape{batch, shape[shape.rank() - 2], shape[shape.rank() - 1]});
}

std::vector<Tensor> cdist_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  if (out.numel() == 0) return {out};
  DistanceAttrs attrs;
  attrs.p = power_of(call);
  const Tensor x1 = rows_of(call.tensor("x1"), shapes[0], lowering);
  const Tensor x2 = rows_of(call.tensor("x2"), shapes[0], lowering);
  lowering.launch(kDistance, {x1, x2}, {*try_reshape(out, Shape{x1.size(0), x1.size(1), x2.size(1)})}, attrs);
  return {out};
}

std::vector<Shape> pdist_shape(const Call& call) {
  power_of(call);
  const std::int64_t n = call.tensor("self").size(0);
  GRAFT_CHECK(InvalidArgument, n <= (std::int64_t{1} << 31), "the pairs of ", n, " rows are too many");
  return {Shape{n > 0 ? n * (n - 1) / 2 : 0}};
}

std::vector<Tensor> pdist_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  if (out.numel() == 0) return {out};
  DistanceAttrs attrs;
  attrs.p = power_of(call);
  attrs.own = 1;
  lowering.launch(kDistance, {lowering.contiguous(call.tensor("self"))}, {out}, attrs);
  return {out};
}

}  // namespace

std::span<const Operator> distance_operators() {
  static constexpr Operator kOperators[] = {
      {"aten._cdist_forward.default", refuse_cdist, cdist_shape, cdist_lower},
      {"aten._pdist_forward.default", refuse_pdist, pdist_shape, pdist_lower},
  };
  return kOperators;
}

}  // namespace graft
