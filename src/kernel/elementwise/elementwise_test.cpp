#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>

#include "kernel/elementwise/elementwise.h"
#include "kernel/kernel_test_util.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using simd::BlockClass;
using simd::ElementwiseOp;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

ElementwiseAttrs attrs_of(ElementwiseOp op, BlockClass compute = BlockClass::f32) {
  ElementwiseAttrs attrs;
  attrs.op = op;
  attrs.compute = compute;
  attrs.params[0] = {1, 1};
  return attrs;
}

// Distance in units of the last place of the exact result rounded to float.
double ulps(float got, double exact) {
  const float rounded = static_cast<float>(exact);
  if (std::isnan(exact)) return std::isnan(got) ? 0 : kInf;
  if (std::isinf(rounded) || rounded == 0) return got == rounded ? 0 : std::abs(got - rounded) / 0x1p-149;
  const float next = std::nextafter(std::abs(rounded), kInf);
  const double unit = std::max(static_cast<double>(next) - std::abs(rounded), 0x1p-149);
  return std::abs(static_cast<double>(got) - exact) / unit;
}

struct Accuracy {
  ElementwiseOp op;
  double (*exact)(double);
  double limit;
  float low, high;  // magnitude of the arguments
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class AccuracyTest : public testing::TestWithParam<Accuracy> {};

TEST_P(AccuracyTest, StaysWithinUlps) {
  const Accuracy& a = GetParam();
  for (const simd::Isa isa : simd::available_isas_of<simd::ElementwiseTable>()) {
    const simd::BlockFn f = simd::elementwise(isa).function(BlockClass::f32, a.op);
    double worst = 0;
    float where = 0;
    std::vector<float> x, y(kBlock);
    const auto flush = [&] {
      const void* in[] = {x.data()};
      f(in, y.data(), static_cast<std::int64_t>(x.size()), nullptr);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = ulps(y[i], a.exact(x[i]));
        if (!(error <= worst)) {
          worst = error;
          where = x[i];
        }
      }
      x.clear();
    };
    // Every 7919th positive float of the range, and its negative.
    for (std::uint32_t bits = std::bit_cast<std::uint32_t>(a.low); bits < std::bit_cast<std::uint32_t>(a.high);
         bits += 7919) {
      x.push_back(std::bit_cast<float>(bits));
      x.push_back(-x.back());
      if (x.size() == kBlock) flush();
    }
    flush();
    EXPECT_LE(worst, a.limit) << simd::name(a.op) << " on " << simd::name(isa) << " at " << where;
  }
}

INSTANTIATE_TEST_SUITE_P(
    F32, AccuracyTest,
    testing::Values(
        Accuracy{ElementwiseOp::exp, std::exp, 2, 0, 200}, Accuracy{ElementwiseOp::expm1, std::expm1, 2.5, 0, 200},
        Accuracy{ElementwiseOp::log, std::log, 2, 0, kInf}, Accuracy{ElementwiseOp::log1p, std::log1p, 2.5, 0, kInf},
        Accuracy{ElementwiseOp::tanh, std::tanh, 2.5, 0, kInf}, Accuracy{ElementwiseOp::erf, std::erf, 2.5, 0, kInf},
        Accuracy{ElementwiseOp::sigmoid, sigmoid, 3, 0, 80}, Accuracy{ElementwiseOp::sin, std::sin, 2, 0, 1e9f},
        Accuracy{ElementwiseOp::cos, std::cos, 2, 0, 1e9f}, Accuracy{ElementwiseOp::sqrt, std::sqrt, 0.5, 0, kInf},
        Accuracy{ElementwiseOp::floor, std::floor, 0, 0, kInf}, Accuracy{ElementwiseOp::ceil, std::ceil, 0, 0, kInf},
        Accuracy{ElementwiseOp::trunc, std::trunc, 0, 0, kInf},
        Accuracy{ElementwiseOp::round, std::nearbyint, 0, 0, kInf}),
    [](const auto& tested) { return simd::name(tested.param.op); });

std::vector<float> apply(simd::Isa isa, ElementwiseOp op, std::vector<float> x) {
  const void* in[] = {x.data()};
  std::vector<float> y(x.size());
  simd::elementwise(isa).function(BlockClass::f32, op)(in, y.data(), static_cast<std::int64_t>(x.size()), nullptr);
  return y;
}

// Half of x is added to half of x * erf: for negative x they cancel, as in PyTorch.
TEST(Elementwise, GeluIsAsNearAsItsLastAddition) {
  for (const simd::Isa isa : simd::available_isas_of<simd::ElementwiseTable>()) {
    double above = 0, below = 0;
    for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(200.f); bits += 7919) {
      const float x = std::bit_cast<float>(bits);
      const auto gelu = [](double v) { return 0.5 * v * std::erfc(-v / std::sqrt(2.0)); };
      const std::vector<float> y = apply(isa, ElementwiseOp::gelu_erf, {x, -x});
      above = std::max(above, ulps(y[0], gelu(x)));
      if (x > 1e-30f) below = std::max(below, std::abs(y[1] - gelu(-x)) / x);
    }
    EXPECT_LE(above, 2) << simd::name(isa);
    EXPECT_LE(below, 0x1p-23) << simd::name(isa);
    const std::vector<float> y = apply(isa, ElementwiseOp::gelu_erf, {0, kInf, kNan, -100});
    EXPECT_EQ(y[0], 0) << simd::name(isa);
    EXPECT_EQ(y[1], kInf) << simd::name(isa);
    EXPECT_TRUE(std::isnan(y[2])) << simd::name(isa);
    EXPECT_EQ(y[3], 0) << simd::name(isa);
  }
}

// A CPU takes 180 cycles for a vector in which a number underflows, and a mask may put most scores of a softmax there.
TEST(Elementwise, ExpOfWhatIsMaskedDoesNotUnderflow) {
  const std::vector<float> masked = {-kInf, std::numeric_limits<float>::lowest(), -1e9f, -1e4f, -700, -200, -104.1f};
  for (const simd::Isa isa : simd::available_isas_of<simd::ElementwiseTable>()) {
    std::feclearexcept(FE_ALL_EXCEPT);
    const std::vector<float> y = apply(isa, ElementwiseOp::exp, masked);
    EXPECT_FALSE(std::fetestexcept(FE_UNDERFLOW)) << simd::name(isa);
    for (std::size_t i = 0; i < masked.size(); ++i) EXPECT_EQ(y[i], 0) << masked[i] << " on " << simd::name(isa);
    EXPECT_EQ(apply(isa, ElementwiseOp::exp, {-103.9f})[0], std::numeric_limits<float>::denorm_min())
        << simd::name(isa);
  }
}

TEST(Elementwise, SpecialValues) {
  const std::vector<float> special = {0.f, -0.f, kInf, -kInf, kNan};
  struct Case {
    ElementwiseOp op;
    std::vector<float> expected;
  };
  const Case cases[] = {
      {ElementwiseOp::exp, {1, 1, kInf, 0, kNan}},
      {ElementwiseOp::expm1, {0, -0.f, kInf, -1, kNan}},
      {ElementwiseOp::log, {-kInf, -kInf, kInf, kNan, kNan}},
      {ElementwiseOp::log1p, {0, -0.f, kInf, kNan, kNan}},
      {ElementwiseOp::tanh, {0, -0.f, 1, -1, kNan}},
      {ElementwiseOp::erf, {0, -0.f, 1, -1, kNan}},
      {ElementwiseOp::sigmoid, {.5f, .5f, 1, 0, kNan}},
      {ElementwiseOp::sin, {0, -0.f, kNan, kNan, kNan}},
      {ElementwiseOp::cos, {1, 1, kNan, kNan, kNan}},
      {ElementwiseOp::floor, {0, -0.f, kInf, -kInf, kNan}},
      {ElementwiseOp::round, {0, -0.f, kInf, -kInf, kNan}},
      {ElementwiseOp::relu, {0, -0.f, kInf, 0, kNan}},
      {ElementwiseOp::sign, {0, 0, 1, -1, 0}},
      {ElementwiseOp::sqrt, {0, -0.f, kInf, kNan, kNan}},
      {ElementwiseOp::silu, {0, -0.f, kInf, kNan, kNan}},
      {ElementwiseOp::reciprocal, {kInf, -kInf, 0, -0.f, kNan}},
  };
  for (const simd::Isa isa : simd::available_isas_of<simd::ElementwiseTable>()) {
    for (const Case& c : cases) {
      const std::vector<float> got = apply(isa, c.op, special);
      for (std::size_t i = 0; i < special.size(); ++i) {
        if (std::isnan(c.expected[i])) {
          EXPECT_TRUE(std::isnan(got[i])) << simd::name(c.op) << " of " << special[i] << " is " << got[i];
        } else {
          EXPECT_EQ(got[i], c.expected[i]) << simd::name(c.op) << " of " << special[i];
          const bool zeros = special[i] == 0 && c.expected[i] == 0;
          EXPECT_TRUE(!zeros || std::signbit(got[i]) == std::signbit(c.expected[i]))
              << simd::name(c.op) << " of " << special[i];
        }
      }
    }
  }
}

TEST(Elementwise, EveryLengthOfBlockAndTail) {
  for (const simd::Isa isa : simd::available_isas_of<simd::ElementwiseTable>()) {
    for (std::int64_t n = 0; n < 70; ++n) {
      std::vector<float> a(static_cast<std::size_t>(n)), b(a), out(a.size() + 1, -7.f);
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<float>(i);
        b[i] = 3.f - static_cast<float>(i * i);
      }
      const void* in[] = {a.data(), b.data()};
      simd::elementwise(isa).function(BlockClass::f32, ElementwiseOp::mul)(in, out.data(), n, nullptr);
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(out[i], a[i] * b[i]);
      ASSERT_EQ(out[a.size()], -7.f);
      std::vector<std::uint8_t> mask(a.size() + 1, 9);
      simd::elementwise(isa).function(BlockClass::f32, ElementwiseOp::gt)(in, mask.data(), n, nullptr);
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(mask[i], a[i] > b[i]);
      ASSERT_EQ(mask[a.size()], 9);
    }
  }
}

TEST(Elementwise, BroadcastsBothWays) {  // [T, 1] - [1, T], which guessing by size would get wrong
  for (const std::int64_t t : {1, 3, 31, 40, 257}) {
    for (const int threads : {1, 2}) {
      std::vector<std::int64_t> a(static_cast<std::size_t>(t)), out(static_cast<std::size_t>(t * t));
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::int64_t>(i);
      ASSERT_EQ(run_kernel(kElementwise, {{{DType::i64, {t, 1}}, a.data()}, {{DType::i64, {t}}, a.data()}},
                           {{DType::i64, {t, t}}, out.data()}, threads, attrs_of(ElementwiseOp::sub, BlockClass::i64)),
                "");
      for (std::int64_t i = 0; i < t * t; ++i) ASSERT_EQ(out[static_cast<std::size_t>(i)], i / t - i % t);
    }
  }
}

TEST(Elementwise, MixedDTypesShortRowsAndThreads) {
  // i32 transposed, f16 broadcast along the last dimension, result f32 with a gap between rows.
  const std::int64_t columns = 5;
  for (const std::int64_t rows : {31, 40, 400, 4000}) {
    std::vector<std::int32_t> a(static_cast<std::size_t>(rows * columns));
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::int32_t>(i);
    const std::vector<std::uint16_t> b(static_cast<std::size_t>(rows), 0x3800);  // 0.5
    TensorDesc transposed(DType::i32, {rows, columns});
    transposed.strides = {1, rows};
    TensorDesc gapped(DType::f32, {rows, columns});
    gapped.strides = {7, 1};
    for (const int threads : {1, 2}) {
      std::vector<float> out(static_cast<std::size_t>(rows * 7), -1.f);
      ASSERT_EQ(run_kernel(kElementwise, {{transposed, a.data()}, {{DType::f16, {rows, 1}}, b.data()}},
                           {gapped, out.data()}, threads, attrs_of(ElementwiseOp::mul)),
                "");
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < 7; ++c)
          ASSERT_EQ(out[static_cast<std::size_t>(r * 7 + c)], c < 5 ? static_cast<float>(c * rows + r) * 0.5f : -1.f);
    }
  }
}

TEST(Elementwise, InPlaceAndImmediates) {
  std::vector<float> x(10000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  ElementwiseAttrs attrs = attrs_of(ElementwiseOp::sub);
  attrs.immediate_mask = 1;  // 1.5 - x
  attrs.immediates[0].f = 1.5;
  const TensorDesc desc(DType::f32, {10000});
  ASSERT_EQ(run_kernel(kElementwise, {{desc, x.data()}}, {desc, x.data()}, 2, attrs), "");
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], 1.5f - static_cast<float>(i));
}

TEST(Elementwise, WhereSelectsAndNeverMultiplies) {
  const std::vector<std::uint8_t> condition = {1, 0, 1, 0};
  const std::vector<float> a = {1, kInf, kNan, kNan}, b = {kInf, 2, 3, -0.f};
  std::vector<float> out(4);
  const Shape shape{4};
  ASSERT_EQ(
      run_kernel(
          kElementwise,
          {{{DType::b8, shape}, condition.data()}, {{DType::f32, shape}, a.data()}, {{DType::f32, shape}, b.data()}},
          {{DType::f32, shape}, out.data()}, 1, attrs_of(ElementwiseOp::where)),
      "");
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 2);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_TRUE(out[3] == 0 && std::signbit(out[3]));
}

std::int64_t integer_op(ElementwiseOp op, std::int64_t a, std::int64_t b, DType dtype = DType::i64) {
  std::int64_t out = 0;
  ElementwiseAttrs attrs = attrs_of(op, BlockClass::i64);
  attrs.immediate_mask = 3;
  attrs.params[0].i = op != ElementwiseOp::pow;
  attrs.immediates[0].i = a;
  attrs.immediates[1].i = b;
  EXPECT_EQ(run_kernel(kElementwise, {}, {{dtype, {}}, &out}, 1, attrs), "");
  return out;
}

TEST(Elementwise, IntegerArithmeticIsExact) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(integer_op(ElementwiseOp::add, kMax, 1), kMin);
  EXPECT_EQ(integer_op(ElementwiseOp::mul, (1LL << 53) + 1, 3), 3 * (1LL << 53) + 3);
  EXPECT_EQ(integer_op(ElementwiseOp::div_floor, -7, 2), -4);
  EXPECT_EQ(integer_op(ElementwiseOp::div_trunc, -7, 2), -3);
  EXPECT_EQ(integer_op(ElementwiseOp::remainder, -7, 3), 2);
  EXPECT_EQ(integer_op(ElementwiseOp::remainder, 7, -3), -2);
  EXPECT_EQ(integer_op(ElementwiseOp::fmod, -7, 3), -1);
  EXPECT_EQ(integer_op(ElementwiseOp::div_floor, kMin, -1), kMin);
  EXPECT_EQ(integer_op(ElementwiseOp::remainder, kMin, -1), 0);
  EXPECT_EQ(integer_op(ElementwiseOp::pow, -3, 5), -243);
  EXPECT_EQ(integer_op(ElementwiseOp::pow, 2, -1), 0);
  EXPECT_EQ(integer_op(ElementwiseOp::pow, -1, -3), -1);
  EXPECT_EQ(integer_op(ElementwiseOp::shift_left, 1, 64), 0);
  EXPECT_EQ(integer_op(ElementwiseOp::shift_right, -8, 70), -1);
  EXPECT_EQ(integer_op(ElementwiseOp::add, 200, 100, DType::u8), 44);
}

TEST(Elementwise, IntegerDivisionByZeroFailsTheRun) {
  const std::vector<std::int32_t> a = {1, 2}, b = {1, 0};
  std::vector<std::int32_t> out(2);
  for (const ElementwiseOp op :
       {ElementwiseOp::div_floor, ElementwiseOp::div_trunc, ElementwiseOp::remainder, ElementwiseOp::fmod})
    EXPECT_EQ(run_kernel(kElementwise, {{{DType::i32, {2}}, a.data()}, {{DType::i32, {2}}, b.data()}},
                         {{DType::i32, {2}}, out.data()}, 1, attrs_of(op, BlockClass::i64)),
              "node: ZeroDivisionError: integer division by zero");
}

}  // namespace
}  // namespace graft
