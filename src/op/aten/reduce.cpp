// Reductions over any dimensions, and running sums.
#include "kernel/reduce/reduce.h"
#include "kernel/reduce/scan.h"

#include <cmath>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/dims.h"
#include "op/ggml_ops.h"

namespace graft {
namespace {

std::int64_t reduced_count(const Shape& shape, const DimSet& dims) {
  std::int64_t count = 1;
  for (int d = 0; d < shape.rank(); ++d)
    if (dims.test(static_cast<std::size_t>(d))) count *= shape[d];
  return count;
}

void launch_reduce(ReduceOp op, const Tensor& x, const DimSet& dims, std::vector<Tensor> outputs, double parameter,
                   Lowering& lowering) {
  const ReduceAttrs attrs{op, static_cast<std::uint32_t>(dims.to_ulong()), parameter};
  const std::int64_t scratch = reduce_scratch_bytes(outputs[0].numel(), x.numel(), lowering.max_tasks());
  lowering.launch(kReduce, {x}, std::move(outputs), attrs, scratch);
}

// `x` in a dtype that the kernel may accumulate without first rounding values to `result`.
Tensor widened(const Tensor& x, DType result, Lowering& lowering) {
  if (is_float(x.dtype()) && is_float(result) && byte_size(result) >= byte_size(x.dtype())) return x;
  if (!is_float(x.dtype()) && !is_float(result)) return x;
  return lowering.cast(x, result);
}

// --- one output over a set of dimensions ---

// The dimensions that `dim` names: None and [] mean all of them, except for any and all, where [] means none.
DimSet reduced_dims(const Call& call) {
  const bool logical = call.target() == "aten.any.dims" || call.target() == "aten.all.dims";
  return dims_of(call, "dim", call.tensor("self").rank(), !logical);
}

bool keeps_dims(const Call& call) { return call.has("keepdim") && call.boolean("keepdim"); }

std::vector<Shape> reduce_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  return std::vector<Shape>(call.output_count(), reduced_shape(self.shape(), reduced_dims(call), keeps_dims(call)));
}

// For reductions that are undefined for no elements.
std::vector<Shape> nonempty_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const DimSet dims = reduced_dims(call);
  for (int d = 0; d < self.rank(); ++d)
    GRAFT_CHECK(InvalidArgument, !dims.test(static_cast<std::size_t>(d)) || self.size(d) > 0, "dimension ", d,
                " has size 0, and no elements have no extreme");
  return reduce_shape(call);
}

std::vector<Tensor> lower_reduce(const Call& call, std::span<const Shape> shapes, Lowering& lowering, ReduceOp op,
                                 double parameter = 0) {
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < shapes.size(); ++i) outputs.push_back(lowering.allocate(call.output_dtype(i), shapes[i]));
  launch_reduce(op, call.tensor("self"), reduced_dims(call), outputs, parameter, lowering);
  return outputs;
}

template <ReduceOp op>
std::vector<Tensor> lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return lower_reduce(call, shapes, lowering, op);
}

// The tensor with the dims that are reduced as the last ones, so that each result is the reduction of one row.
Tensor with_rows(const Tensor& tensor, const DimSet& dims) {
  std::vector<int> order;
  for (const bool reduced : {false, true})
    for (int d = 0; d < tensor.rank(); ++d)
      if (dims.test(static_cast<std::size_t>(d)) == reduced) order.push_back(d);
  return permuted(tensor, order);
}

// Computed in the output's dtype: sum, mean, prod, log_sum_exp.
template <ReduceOp op>
std::vector<Tensor> lower_arithmetic(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  if constexpr (op == ReduceOp::sum || op == ReduceOp::mean) {
    const DimSet dims = reduced_dims(call);
    if (dims.any() && device::reduce(lowering, op == ReduceOp::sum ? device::Reduction::sum : device::Reduction::mean,
                                     with_rows(call.tensor("self"), dims), out))
      return {out};
  }
  launch_reduce(op, widened(call.tensor("self"), out.dtype(), lowering), reduced_dims(call), {out}, 0, lowering);
  return {out};
}

template <ReduceOp op>
std::vector<Tensor> lower_variance(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  double correction = 1;
  if (call.has("correction")) correction = call.real("correction");
  if (call.has("unbiased")) correction = call.boolean("unbiased") ? 1 : 0;
  return lower_reduce(call, shapes, lowering, op, correction);
}

std::vector<Tensor> lower_aminmax(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor low = lowering.allocate(call.output_dtype(0), shapes[0]);
  const Tensor high = lowering.allocate(call.output_dtype(1), shapes[1]);
  launch_reduce(ReduceOp::amin, call.tensor("self"), reduced_dims(call), {low}, 0, lowering);
  launch_reduce(ReduceOp::amax, call.tensor("self"), reduced_dims(call), {high}, 0, lowering);
  return {low, high};
}

// --- norms ---

double order_of(const Call& call) {
  const std::string_view name = call.target() == "aten.linalg_vector_norm.default" ? "ord" : "p";
  return call.has(name) ? call.real(name) : 2;
}

std::vector<Shape> norm_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const double order = order_of(call);
  if (order < 0 || std::isinf(order))
    GRAFT_CHECK(InvalidArgument, reduced_count(self.shape(), reduced_dims(call)) > 0, "the norm of order ", order,
                " of no elements is not defined");
  return reduce_shape(call);
}

std::vector<Tensor> lower_norm(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const double order = order_of(call);
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  const ReduceOp op = order == 0          ? ReduceOp::count_nonzero
                      : order == 1        ? ReduceOp::abs_sum
                      : order == 2        ? ReduceOp::root_of_squares
                      : std::isinf(order) ? (order > 0 ? ReduceOp::abs_max : ReduceOp::abs_min)
                                          : ReduceOp::power_norm;
  if (const DimSet dims = reduced_dims(call);
      order == 2 && dims.any() &&
      device::reduce(lowering, device::Reduction::norm, with_rows(call.tensor("self"), dims), out))
    return {out};
  launch_reduce(op, widened(call.tensor("self"), out.dtype(), lowering), reduced_dims(call), {out}, order, lowering);
  return {out};
}

// --- running sums ---

std::vector<Shape> scan_shape(const Call& call) {
  wrap_dim(call.integer("dim"), call.tensor("self").rank());
  return {call.tensor("self").shape()};
}

template <ScanOp op>
std::vector<Tensor> lower_scan(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  const Tensor x = widened(call.tensor("self"), out.dtype(), lowering);
  const ScanAttrs attrs{op, wrap_dim(call.integer("dim"), x.rank())};
  lowering.launch(kScan, {x}, {out}, attrs, scan_scratch_bytes(x.desc, attrs));
  return {out};
}

// --- refusals ---

Refusal accept(const NodeView& node) { return refuse_rank(node); }

Refusal refuse_bool_result(const NodeView& node) {
  if (node.output().dtype == DType::b8) return "arithmetic with bool as result";
  return refuse_rank(node);
}

Refusal refuse_integers(const NodeView& node) {
  if (!is_float(node.tensor("self").dtype)) return str("dtype ", name(node.tensor("self").dtype));
  return refuse_rank(node);
}

Refusal refuse_integer_result(const NodeView& node) {
  if (!is_float(node.output().dtype)) return str("a result of dtype ", name(node.output().dtype));
  return refuse_rank(node);
}

// PyTorch itself fails for an empty list here.
Refusal refuse_empty_dims(const NodeView& node) {
  if (node.arg("dim").kind == ir::Arg::Kind::list && node.arg("dim").items.empty())
    return "an empty list of dimensions";
  return refuse_integer_result(node);
}

// The order selects the kernel: it must be constant.
Refusal refuse_norm(const NodeView& node) {
  const std::string_view name = node.target() == "aten.linalg_vector_norm.default" ? "ord" : "p";
  if (node.arg(name).is_value()) return "an order computed in the graph";
  return refuse_integer_result(node);
}

}  // namespace

std::span<const Operator> reduce_operators() {
  using enum ReduceOp;
  static constexpr Operator operators[] = {
      {"aten.sum.default", refuse_bool_result, reduce_shape, lower_arithmetic<sum>, false},
      {"aten.sum.dim_IntList", refuse_bool_result, reduce_shape, lower_arithmetic<sum>, false},
      {"aten.mean.default", refuse_integer_result, reduce_shape, lower_arithmetic<mean>, false},
      {"aten.mean.dim", refuse_integer_result, reduce_shape, lower_arithmetic<mean>, false},
      {"aten.prod.default", refuse_bool_result, reduce_shape, lower_arithmetic<prod>, false},
      {"aten.prod.dim_int", refuse_bool_result, reduce_shape, lower_arithmetic<prod>, false},
      {"aten.logsumexp.default", refuse_empty_dims, reduce_shape, lower_arithmetic<log_sum_exp>, true},
      {"aten.amax.default", accept, nonempty_shape, lower<amax>, false},
      {"aten.amin.default", accept, nonempty_shape, lower<amin>, false},
      {"aten.aminmax.default", accept, nonempty_shape, lower_aminmax, true},
      {"aten.max.default", accept, nonempty_shape, lower<amax>, false},
      {"aten.min.default", accept, nonempty_shape, lower<amin>, false},
      {"aten.max.dim", accept, nonempty_shape, lower<max_and_index>, false},
      {"aten.min.dim", accept, nonempty_shape, lower<min_and_index>, false},
      {"aten.argmax.default", accept, nonempty_shape, lower<argmax>, false},
      {"aten.argmin.default", accept, nonempty_shape, lower<argmin>, false},
      {"aten.any.default", accept, reduce_shape, lower<any>, false},
      {"aten.any.dim", accept, reduce_shape, lower<any>, false},
      {"aten.any.dims", accept, reduce_shape, lower<any>, false},
      {"aten.all.default", accept, reduce_shape, lower<all>, true},
      {"aten.all.dim", accept, reduce_shape, lower<all>, true},
      {"aten.all.dims", accept, reduce_shape, lower<all>, true},
      {"aten.count_nonzero.default", accept, reduce_shape, lower<count_nonzero>, true},
      {"aten.count_nonzero.dim_IntList", accept, reduce_shape, lower<count_nonzero>, true},
      {"aten.var.default", refuse_integers, reduce_shape, lower_variance<variance>, false},
      {"aten.var.dim", refuse_integers, reduce_shape, lower_variance<variance>, false},
      {"aten.var.correction", refuse_integers, reduce_shape, lower_variance<variance>, false},
      {"aten.std.default", refuse_integers, reduce_shape, lower_variance<deviation>, false},
      {"aten.std.dim", refuse_integers, reduce_shape, lower_variance<deviation>, false},
      {"aten.std.correction", refuse_integers, reduce_shape, lower_variance<deviation>, true},
      {"aten.var_mean.correction", refuse_integers, reduce_shape, lower_variance<mean_and_variance>, true},
      {"aten.linalg_vector_norm.default", refuse_norm, norm_shape, lower_norm, true},
      {"aten.norm.Scalar", refuse_norm, norm_shape, lower_norm, true},
      {"aten.norm.ScalarOpt_dim", refuse_norm, norm_shape, lower_norm, true},
      {"aten.norm.ScalarOpt_dim_dtype", refuse_norm, norm_shape, lower_norm, true},
      {"aten.norm.ScalarOpt_dtype", refuse_norm, norm_shape, lower_norm, true},
      {"aten.cumsum.default", refuse_bool_result, scan_shape, lower_scan<ScanOp::sum>, false},
      {"aten.cumprod.default", refuse_bool_result, scan_shape, lower_scan<ScanOp::prod>},
  };
  return operators;
}

}  // namespace graft
