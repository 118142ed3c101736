// Random numbers: those of a session (SessionOptions::seed), not of PyTorch's generator.
#include "kernel/random/random.h"

#include <limits>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/common.h"

namespace graft {
namespace {

Refusal refuse_float(const NodeView& node) {
  if (!is_float(node.output().dtype)) return str("the result is ", name(node.output().dtype), ", expected a float");
  return refuse_rank_of(node.output());
}

Refusal refuse_bool(const NodeView& node) {
  if (node.output().dtype == DType::b8) return "the result is bool";
  return refuse_rank_of(node.output());
}

std::vector<Shape> shape_of_size(const Call& call) { return {Shape(call.integers("size"))}; }

std::vector<Tensor> drawn(const Call& call, DType dtype, const Shape& shape, const RandomAttrs& attrs,
                          Lowering& lowering) {
  const Tensor out = lowering.allocate(dtype, shape);
  if (out.numel() > 0) lowering.launch(kRandom, {}, {out}, attrs);
  return {lowering.cast(out, call.output_dtype())};
}

template <Draw draw>
std::vector<Tensor> lower_float(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const DType dtype = call.output_dtype();
  RandomAttrs attrs;
  attrs.draw = draw;
  // With only as many digits as the dtype has: rounding must not turn a number below 1 into 1.
  attrs.digits = dtype == DType::f16 ? 11 : dtype == DType::bf16 ? 8 : 24;
  return drawn(call, dtype == DType::f64 ? DType::f64 : DType::f32, shapes[0], attrs, lowering);
}

std::vector<Tensor> lower_integers(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  RandomAttrs attrs;
  attrs.draw = Draw::integers;
  attrs.low = call.target() == "aten.randint.low" ? call.integer("low") : 0;
  const std::int64_t high = call.integer("high");
  GRAFT_CHECK(InvalidArgument, attrs.low < high, "random integers are drawn from [", attrs.low, ", ", high,
              "), which is empty");
  attrs.range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(attrs.low);
  return drawn(call, DType::i64, shapes[0], attrs, lowering);
}

std::vector<Shape> randperm_shape(const Call& call) {
  const std::int64_t n = call.integer("n");
  GRAFT_CHECK(InvalidArgument, n >= 0, "n is ", n, ", expected a number that is not negative");
  return {Shape{n}};
}

std::vector<Tensor> lower_randperm(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  RandomAttrs attrs;
  attrs.draw = Draw::order;
  return drawn(call, DType::i64, shapes[0], attrs, lowering);
}

constexpr Operator random_operator(std::string_view target, Refusal (*refuse)(const NodeView&),
                                   std::vector<Shape> (*shape)(const Call&),
                                   std::vector<Tensor> (*lower)(const Call&, std::span<const Shape>, Lowering&)) {
  Operator op{target, refuse, shape, lower};
  op.random = true;
  return op;
}

}  // namespace

std::span<const Operator> random_operators() {
  static constexpr Operator kOperators[] = {
      random_operator("aten.rand.default", refuse_float, shape_of_size, lower_float<Draw::uniform>),
      random_operator("aten.rand_like.default", refuse_float, shape_of_self, lower_float<Draw::uniform>),
      random_operator("aten.randn.default", refuse_float, shape_of_size, lower_float<Draw::normal>),
      random_operator("aten.randn_like.default", refuse_float, shape_of_self, lower_float<Draw::normal>),
      random_operator("aten.randint.default", refuse_bool, shape_of_size, lower_integers),
      random_operator("aten.randint.low", refuse_bool, shape_of_size, lower_integers),
      random_operator("aten.randperm.default", refuse_bool, randperm_shape, lower_randperm),
  };
  return kOperators;
}

}  // namespace graft
