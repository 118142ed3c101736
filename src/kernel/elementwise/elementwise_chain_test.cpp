#define GRAFT_ISA test_reference
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>

#include "kernel/elementwise/elementwise.h"
#include "kernel/simd/simd_test_util.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using simd::BlockClass;
using simd::ElementwiseOp;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The result of step `s` as an operand.
constexpr std::int32_t result_of(int s) { return kMaxChainInputs + s; }

struct Case {
  ElementwiseChainAttrs attrs;
  std::deque<TestTensor> inputs;
  TensorDesc out;

  Case(const Shape& shape, DType dtype) : out(dtype, shape) {}

  TestTensor& input(const TensorDesc& desc, std::int64_t elements) {
    attrs.inputs = static_cast<std::int32_t>(inputs.size()) + 1;
    return inputs.emplace_back(desc, elements);
  }
  void random_input(const TensorDesc& desc, std::mt19937& rng) { input(desc, desc.numel()).fill(rng, -4, 4); }
  ChainStep& step(ElementwiseOp op, std::array<std::int32_t, 3> from, DType result,
                  BlockClass compute = BlockClass::f32) {
    ChainStep& step = attrs.step[static_cast<std::size_t>(attrs.steps++)];
    step.what.op = op;
    step.what.compute = compute;
    step.what.params[0] = {1, 1};
    step.from = from;
    step.result = result;
    return step;
  }
  void immediate(ChainStep& step, int k, double value) {
    step.what.immediate_mask |= 1u << k;
    step.what.immediates[k] = {value, static_cast<std::int64_t>(value)};
  }
};

// The reference: a launch per step, each into its own tensor.
TestTensor by_launches(const Case& c) {
  std::deque<TestTensor> results;
  for (int s = 0; s < c.attrs.steps; ++s) {
    const ChainStep& step = c.attrs.step[static_cast<std::size_t>(s)];
    TestTensor& out = results.emplace_back(TensorDesc(step.result, c.out.shape));
    std::vector<TestOperand> operands;
    for (int k = 0; k < simd::operand_count(step.what.op); ++k) {
      if (step.what.immediate_mask >> k & 1u) continue;
      const std::int32_t from = step.from[static_cast<std::size_t>(k)];
      const bool is_input = from < kMaxChainInputs;
      const TestTensor& t = is_input ? c.inputs[static_cast<std::size_t>(from)]
                                     : results[static_cast<std::size_t>(from - kMaxChainInputs)];
      operands.push_back({t.desc, t.data()});
    }
    const bool copies = step.what.op == ElementwiseOp::identity;
    EXPECT_EQ(run_kernel(copies ? kCopy : kElementwise, operands, {out.desc, out.data()}, 1, step.what), "");
  }
  return results.back();
}

// The same bits; any NaN equals any other, as which one results depends on where in a vector an element is.
bool same(const TestTensor& a, const TestTensor& b) {
  const auto bytes = static_cast<std::size_t>(a.desc.byte_count());
  if (std::memcmp(a.data(), b.data(), bytes) == 0) return true;
  for (std::int64_t i = 0; i < a.desc.numel(); ++i) {
    const double x = a.get(i), y = b.get(i);
    if (!(std::isnan(x) && std::isnan(y)) && (x != y || std::signbit(x) != std::signbit(y))) return false;
  }
  return true;
}

void expect_same(Case& c) {
  const TestTensor expected = by_launches(c);
  std::vector<TestOperand> operands;
  for (const TestTensor& t : c.inputs) operands.push_back({t.desc, t.data()});
  for (const int threads : {1, 2, 3}) {
    TestTensor out(c.out);
    ASSERT_EQ(run_kernel(kElementwiseChain, operands, {out.desc, out.data()}, threads, c.attrs), "");
    ASSERT_TRUE(same(out, expected)) << c.out.str() << ", " << threads << " threads";
    ASSERT_TRUE(out.guards_intact());
  }
  // In place of the first input.
  TestTensor& first = c.inputs[0];
  if (first.desc.dtype != c.out.dtype || first.desc.shape != c.out.shape || first.desc.strides != c.out.strides) return;
  ASSERT_EQ(run_kernel(kElementwiseChain, operands, {first.desc, first.data()}, 2, c.attrs), "");
  ASSERT_TRUE(same(first, expected)) << c.out.str() << " in place";
}

// tanh((x * 0.5 + row) * sigmoid(x - 1)) / column + x
Case gate(std::int64_t rows, std::int64_t columns, DType dtype, std::mt19937& rng) {
  const Shape shape{rows, columns};
  Case c(shape, dtype);
  c.random_input(TensorDesc(dtype, shape), rng);
  c.random_input(TensorDesc(dtype, {columns}), rng);
  c.random_input(TensorDesc(dtype, {rows, 1}), rng);
  for (const auto& [i, value] : {std::pair{0, kInf}, {1, kNan}, {2, -0.0}, {3, -kInf}, {4, 1e30}})
    if (i < rows * columns) c.inputs[0].set(rows * columns - 1 - i, value);
  c.immediate(c.step(ElementwiseOp::mul, {0}, dtype), 1, 0.5);
  c.step(ElementwiseOp::add, {result_of(0), 1}, dtype);
  c.immediate(c.step(ElementwiseOp::sub, {0}, dtype), 1, 1);
  c.step(ElementwiseOp::sigmoid, {result_of(2)}, dtype);
  c.step(ElementwiseOp::mul, {result_of(1), result_of(3)}, dtype);
  c.step(ElementwiseOp::tanh, {result_of(4)}, dtype);
  c.step(ElementwiseOp::div, {result_of(5), 2}, dtype);
  c.step(ElementwiseOp::add, {result_of(6), 0}, dtype);
  return c;
}

TEST(ElementwiseChain, GivesTheBitsOfSeparateLaunches) {
  std::mt19937 rng(0);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t rows : {1, 2, 70})
      for (const std::int64_t columns : {1, 5, 31, 32, 33, 511, 512, 513, 1030}) {
        Case c = gate(rows, columns, dtype, rng);
        expect_same(c);
        if (HasFatalFailure()) return;
      }
}

TEST(ElementwiseChain, ReadsAnyStrides) {
  std::mt19937 rng(1);
  for (const std::int64_t n : {3, 40, 600}) {
    Case c = gate(n, n + 1, DType::f32, rng);
    TensorDesc& desc = c.inputs[0].desc;
    desc.strides = {1, n};
    expect_same(c);
  }
}

// where(x > y, float(x > 1), y) of numbers, and of integers whose comparison is read as a float.
TEST(ElementwiseChain, GoesThroughBoolAndIntegers) {
  std::mt19937 rng(2);
  for (const std::int64_t n : {1, 511, 513, 9000}) {
    Case c({n}, DType::f32);
    c.random_input(TensorDesc(DType::f32, {n}), rng);
    c.random_input(TensorDesc(DType::f32, {n}), rng);
    TestTensor& indices = c.input(TensorDesc(DType::i64, {n}), n);
    for (std::int64_t i = 0; i < n; ++i) static_cast<std::int64_t*>(indices.data())[i] = i - n / 2;
    c.step(ElementwiseOp::gt, {0, 1}, DType::b8);
    c.immediate(c.step(ElementwiseOp::mul, {2}, DType::i32, BlockClass::i64), 1, 3e9);  // wraps
    c.immediate(c.step(ElementwiseOp::gt, {result_of(1)}, DType::b8, BlockClass::i64), 1, 1);
    c.step(ElementwiseOp::identity, {result_of(2)}, DType::f32);
    c.step(ElementwiseOp::identity, {result_of(1)}, DType::f32);
    c.step(ElementwiseOp::add, {result_of(3), result_of(4)}, DType::f32);
    c.step(ElementwiseOp::where, {result_of(0), result_of(5), 1}, DType::f32);
    expect_same(c);
  }
}

TEST(ElementwiseChain, FailsTheRunAsTheLaunchWould) {
  Case c({4}, DType::i64);
  TestTensor& x = c.input(TensorDesc(DType::i64, {4}), 4);
  for (std::int64_t i = 0; i < 4; ++i) static_cast<std::int64_t*>(x.data())[i] = i;
  c.immediate(c.step(ElementwiseOp::sub, {0}, DType::i64, BlockClass::i64), 1, 2);
  c.step(ElementwiseOp::div_floor, {0, result_of(0)}, DType::i64, BlockClass::i64);
  TestTensor out(c.out);
  EXPECT_EQ(run_kernel(kElementwiseChain, {{x.desc, x.data()}}, {out.desc, out.data()}, 2, c.attrs),
            "node: ZeroDivisionError: integer division by zero");
}

}  // namespace
}  // namespace graft
