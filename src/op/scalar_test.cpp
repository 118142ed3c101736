#include "op/scalar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graft/error.h"

namespace graft {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min(), kMax = std::numeric_limits<std::int64_t>::max();

ir::Arg argument(const Scalar& s) {
  ir::Arg arg;
  arg.kind = s.is_real()                        ? ir::Arg::Kind::real
             : s.kind == ir::ValueKind::boolean ? ir::Arg::Kind::boolean
                                                : ir::Arg::Kind::integer;
  arg.i = s.i;
  arg.f = s.f;
  return arg;
}

Scalar evaluate(std::string_view target, const std::vector<ir::Arg>& args, std::span<const Binding> bindings = {},
                std::vector<std::string> names = {"a", "b", "c"}) {
  ir::Program program;
  program.ops.push_back(
      {std::string(target), {names.begin(), names.begin() + static_cast<std::ptrdiff_t>(args.size())}});
  ir::Method method;
  ir::Node node;
  node.name = "node";
  node.args = args;
  for (const ScalarOperator& op : scalar_operators()) {
    if (op.target != target) continue;
    EXPECT_EQ(op.refuse(NodeView(program, method, node)), "");
    return op.evaluate(Call(program, method, node, bindings));
  }
  ADD_FAILURE() << "no operator " << target;
  return {};
}

template <typename... Numbers>
Scalar python(std::string_view name, Numbers... numbers) {
  return evaluate("python." + std::string(name), {argument(Scalar::of(numbers))...});
}

using I = std::int64_t;

void expect_int(const Scalar& s, I expected) {
  EXPECT_EQ(s.kind, ir::ValueKind::integer);
  EXPECT_EQ(s.i, expected);
}

void expect_real(const Scalar& s, double expected) {
  EXPECT_TRUE(s.is_real());
  EXPECT_EQ(s.f, expected);
  EXPECT_EQ(std::signbit(s.f), std::signbit(expected));
}

void expect_bool(const Scalar& s, bool expected) {
  EXPECT_EQ(s.kind, ir::ValueKind::boolean);
  EXPECT_EQ(s.i, expected ? 1 : 0);
}

TEST(Scalar, FloorDivisionAndRemainderAsInPython) {
  expect_int(python("floordiv", I{7}, I{2}), 3);
  expect_int(python("floordiv", I{-7}, I{2}), -4);
  expect_int(python("floordiv", I{7}, I{-2}), -4);
  expect_int(python("floordiv", I{-7}, I{-2}), 3);
  expect_int(python("floordiv", I{-6}, I{2}), -3);
  expect_int(python("mod", I{7}, I{3}), 1);
  expect_int(python("mod", I{-7}, I{3}), 2);
  expect_int(python("mod", I{7}, I{-3}), -2);
  expect_int(python("mod", I{-7}, I{-3}), -1);
  expect_int(python("mod", I{6}, I{-3}), 0);
  expect_int(python("mod", kMin, I{-1}), 0);
  expect_real(python("floordiv", -7.5, I{2}), -4.0);
  expect_real(python("mod", -7.5, I{2}), 0.5);
  expect_real(python("mod", 7.5, I{-2}), -0.5);
  expect_real(python("floordiv", 1.0, 0.1), 9.0);  // though 1.0 / 0.1 rounds to 10.0
  expect_real(python("truediv", I{7}, I{2}), 3.5);
}

TEST(Scalar, DivisionByZeroIsAnError) {
  for (const char* name : {"floordiv", "mod", "truediv"}) {
    EXPECT_THROW(python(name, I{1}, I{0}), InvalidArgument) << name;
    EXPECT_THROW(python(name, 1.0, 0.0), InvalidArgument) << name;
  }
  EXPECT_THROW(python("pow", I{0}, I{-1}), InvalidArgument);
}

TEST(Scalar, OverflowIsAnErrorAndNotAWrap) {
  EXPECT_THROW(python("add", kMax, I{1}), InvalidArgument);
  EXPECT_THROW(python("sub", kMin, I{1}), InvalidArgument);
  EXPECT_THROW(python("mul", kMax, I{2}), InvalidArgument);
  EXPECT_THROW(python("neg", kMin), InvalidArgument);
  EXPECT_THROW(python("abs", kMin), InvalidArgument);
  EXPECT_THROW(python("floordiv", kMin, I{-1}), InvalidArgument);
  EXPECT_THROW(python("pow", I{2}, I{63}), InvalidArgument);
  EXPECT_THROW(python("lshift", I{1}, I{63}), InvalidArgument);
  expect_int(python("add", kMax, I{-1}), kMax - 1);
  expect_int(python("pow", I{2}, I{62}), I{1} << 62);
  expect_int(python("pow", I{-2}, I{63}), kMin);
  expect_int(python("pow", I{10}, I{0}), 1);
  expect_int(python("lshift", I{-1}, I{62}), -(I{1} << 62));
}

TEST(Scalar, FloatsAndIntegersMix) {
  expect_real(python("add", I{1}, 0.5), 1.5);
  expect_real(python("mul", 2.0, I{3}), 6.0);
  expect_real(python("pow", I{2}, I{-1}), 0.5);
  expect_real(python("pow", 2.0, 0.5), std::sqrt(2.0));
  EXPECT_THROW(python("pow", -8.0, 0.5), InvalidArgument);
  expect_int(python("add", true, true), 2);
}

TEST(Scalar, ComparisonsAreExact) {
  expect_bool(python("eq", (I{1} << 53) + 1, std::ldexp(1.0, 53)), false);
  expect_bool(python("gt", (I{1} << 53) + 1, std::ldexp(1.0, 53)), true);
  expect_bool(python("lt", kMax, 0x1p63), true);
  expect_bool(python("le", I{3}, I{3}), true);
  expect_bool(python("ge", 2.5, I{3}), false);
  expect_bool(python("ne", I{3}, 3.0), false);
}

TEST(Scalar, Rounding) {
  expect_int(python("floor", -1.5), -2);
  expect_int(python("ceil", -1.5), -1);
  expect_int(python("trunc", -1.5), -1);
  expect_int(python("int", 1.9), 1);
  expect_int(python("round", 2.5), 2);
  expect_int(python("round", 3.5), 4);
  expect_int(python("ceil", I{7}), 7);
  EXPECT_THROW(python("floor", 1e30), InvalidArgument);
  EXPECT_THROW(python("int", std::nan("")), InvalidArgument);
  EXPECT_THROW(python("trunc", 0x1p63), InvalidArgument);
  expect_int(python("trunc", -0x1p63), kMin);
}

TEST(Scalar, MinMaxAndChoice) {
  expect_int(python("max", I{3}, I{5}), 5);
  expect_real(python("sym_max", I{3}, 2.5), 3.0);
  expect_int(python("sym_min", I{3}, I{-5}), -5);
  expect_int(python("sym_ite", true, I{1}, I{2}), 1);
  expect_int(python("sym_ite", false, I{1}, I{2}), 2);
  expect_bool(python("sym_not", I{0}), true);
  expect_real(python("sym_float", I{3}), 3.0);
  expect_bool(python("and_", true, false), false);
  expect_int(python("or_", I{6}, I{1}), 7);
  expect_int(python("rshift", I{-8}, I{70}), -1);
  ir::Arg list;
  list.kind = ir::Arg::Kind::list;
  for (I v : {I{1}, I{2}, I{3}}) list.items.push_back(argument(Scalar::of(v)));
  expect_int(evaluate("python.sym_sum", {list}), 6);
}

TEST(Scalar, SizesOfTensors) {
  Binding binding;
  binding.tensor = Tensor{0, 0, TensorDesc(DType::f32, Shape{3, 0, 7})};
  const std::span<const Binding> bindings(&binding, 1);
  const ir::Arg self = ir::Arg::of_value(0);
  expect_int(evaluate("aten.sym_size.int", {self, argument(Scalar::of(I{-1}))}, bindings, {"self", "dim"}), 7);
  expect_int(evaluate("aten.sym_size.int", {self, argument(Scalar::of(I{0}))}, bindings, {"self", "dim"}), 3);
  expect_int(evaluate("aten.sym_numel.default", {self}, bindings, {"self"}), 0);
  EXPECT_THROW(evaluate("aten.sym_size.int", {self, argument(Scalar::of(I{3}))}, bindings, {"self", "dim"}),
               InvalidArgument);
}

}  // namespace
}  // namespace graft
