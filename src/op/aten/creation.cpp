// Operators that make tensors out of numbers.
#include <cmath>

#include "base/check.h"
#include "kernel/elementwise/elementwise.h"
#include "lowering/lowering.h"
#include "op/common.h"

namespace graft {
namespace {

Refusal accept(const NodeView& node) { return refuse_rank_of(node.output()); }

std::vector<Shape> shape_of_size(const Call& call) { return {Shape(call.integers("size"))}; }
std::vector<Shape> shape_of_nothing(const Call&) { return {Shape()}; }

template <int kValue>
std::vector<Tensor> lower_constant(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return {lowering.full(call.output_dtype(), shapes[0], Scalar::of(std::int64_t{kValue}))};
}

std::vector<Tensor> lower_full(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return {lowering.full(call.output_dtype(), shapes[0], call.scalar("fill_value"))};
}

std::vector<Tensor> lower_fill(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const DType dtype = call.output_dtype();
  if (!call.is_tensor("value")) return {lowering.full(dtype, shapes[0], call.scalar("value"))};
  const Tensor& value = call.tensor("value");
  GRAFT_CHECK(InvalidArgument, value.rank() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.rank(), " dimensions.");
  const Tensor out = lowering.allocate(dtype, shapes[0]);
  lowering.copy(expanded(value, shapes[0]), out);
  return {out};
}

std::vector<Tensor> lower_scalar_tensor(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return {lowering.full(call.output_dtype(), shapes[0], call.scalar("s"))};
}

// Uninitialized, as PyTorch promises no values.
std::vector<Tensor> lower_empty(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return {lowering.allocate(call.output_dtype(), shapes[0])};
}

// --- arange ---

struct Steps {
  Scalar start = Scalar::of(std::int64_t{0});
  Scalar end;
  Scalar step = Scalar::of(std::int64_t{1});
  bool integral() const { return !start.is_real() && !end.is_real() && !step.is_real(); }
};

// Doubles hold all integers up to 2^53.
bool is_whole(double x) { return std::trunc(x) == x && std::fabs(x) <= 0x1p53; }

Steps steps_of(const Call& call) {
  Steps s;
  if (call.has("start")) s.start = call.scalar("start");
  s.end = call.scalar("end");
  if (call.has("step")) s.step = call.scalar("step");
  if (!is_float(call.output_dtype())) {
    for (Scalar* x : {&s.start, &s.end, &s.step}) *x = Scalar::of(x->to_integer());
  }
  return s;
}

Refusal refuse_arange(const NodeView& node) {
  if (is_float(node.output().dtype)) return {};
  for (const std::string_view name : {"start", "end", "step"}) {
    const ir::Arg& arg = node.arg(name);
    const bool fraction = (arg.kind == ir::Arg::Kind::real && !is_whole(arg.f)) ||
                          (arg.is_value() && node.value_kind(name) == ir::ValueKind::real);
    if (fraction) return str("argument ", name, " is a fraction and the result is of an integer dtype");
  }
  return {};
}

std::vector<Shape> shape_arange(const Call& call) {
  const Steps s = steps_of(call);
  const double step = s.step.to_double();
  GRAFT_CHECK(InvalidArgument, step != 0, "step must be nonzero");
  const double start = s.start.to_double();
  const double end = s.end.to_double();
  GRAFT_CHECK(InvalidArgument, std::isfinite(start) && std::isfinite(end), "unsupported range: ", start, " -> ", end);
  const bool ordered = s.integral() ? (s.step.i > 0 ? s.start.i <= s.end.i : s.start.i >= s.end.i)
                                    : (step > 0 ? start <= end : start >= end);
  GRAFT_CHECK(InvalidArgument, ordered, "upper bound and lower bound inconsistent with step sign");
  if (!s.integral()) {
    const double count = std::ceil((end - start) / step);
    GRAFT_CHECK(InvalidArgument, count >= 0 && count < 0x1p62, "invalid size, possible overflow");
    return {Shape{static_cast<std::int64_t>(count)}};
  }
  std::int64_t distance = 0;
  const bool fits = s.step.i > 0 ? !__builtin_sub_overflow(s.end.i, s.start.i, &distance)
                                 : !__builtin_sub_overflow(s.start.i, s.end.i, &distance);
  GRAFT_CHECK(InvalidArgument, fits && s.step.i != std::numeric_limits<std::int64_t>::min(),
              "invalid size, possible overflow");
  const std::int64_t stride = s.step.i > 0 ? s.step.i : -s.step.i;
  return {Shape{distance / stride + (distance % stride != 0 ? 1 : 0)}};
}

std::vector<Tensor> lower_arange(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Steps s = steps_of(call);
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  ArangeAttrs attrs;
  attrs.start = {s.start.to_double(), s.start.i};
  attrs.step = {s.step.to_double(), s.step.i};
  lowering.launch(kArange, {}, {out}, attrs);
  return {out};
}

const Operator kOperators[] = {
    {"aten.full.default", accept, shape_of_size, lower_full},
    {"aten.full_like.default", accept, shape_of_self, lower_full},
    {"aten.new_full.default", accept, shape_of_size, lower_full},
    {"aten.zeros.default", accept, shape_of_size, lower_constant<0>},
    {"aten.zeros_like.default", accept, shape_of_self, lower_constant<0>},
    {"aten.new_zeros.default", accept, shape_of_size, lower_constant<0>},
    {"aten.ones.default", accept, shape_of_size, lower_constant<1>},
    {"aten.ones_like.default", accept, shape_of_self, lower_constant<1>},
    {"aten.new_ones.default", accept, shape_of_size, lower_constant<1>},
    {"aten.empty.memory_format", accept, shape_of_size, lower_empty},
    {"aten.empty_like.default", accept, shape_of_self, lower_empty},
    {"aten.empty_strided.default", accept, shape_of_size, lower_empty},
    {"aten.empty_permuted.default", accept, shape_of_size, lower_empty},
    {"aten.new_empty.default", accept, shape_of_size, lower_empty},
    {"aten.new_empty_strided.default", accept, shape_of_size, lower_empty},
    {"aten.fill.Scalar", accept, shape_of_self, lower_fill},
    {"aten.fill.Tensor", accept, shape_of_self, lower_fill},
    {"aten.scalar_tensor.default", accept, shape_of_nothing, lower_scalar_tensor},
    {"aten.arange.default", refuse_arange, shape_arange, lower_arange},
    {"aten.arange.start", refuse_arange, shape_arange, lower_arange},
    {"aten.arange.start_step", refuse_arange, shape_arange, lower_arange},
};

}  // namespace

std::span<const Operator> creation_operators() { return kOperators; }

}  // namespace graft
