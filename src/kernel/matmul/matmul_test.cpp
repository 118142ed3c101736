#define GRAFT_ISA test_reference
#include "kernel/matmul/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;

struct Case {
  i64 batch = 1, m = 1, n = 1, k = 1;
  bool a_transposed = false;  // a is stored as [K, M]
  bool b_transposed = true;   // b is stored as [N, K], as a weight of torch's linear
  DType a_dtype = DType::f32, b_dtype = DType::f32, out_dtype = DType::f32;
  bool share_b = false;  // one b for all batches: stride 0
  enum { kNoBias, kPerColumn, kPerRow, kFull } bias = kNoBias;
  float alpha = 1, beta = 1;
  simd::Activation activation = simd::Activation::none;
  i64 gap = 0;  // extra elements between rows
  bool in_bf16 = false;
};

TensorDesc matrix(DType dtype, i64 batch, i64 rows, i64 cols, bool transposed, i64 gap, bool shared, i64* elements) {
  TensorDesc d(dtype, Shape{batch, rows, cols});
  const i64 line = (transposed ? rows : cols) + gap;
  const i64 lines = transposed ? cols : rows;
  d.strides[0] = shared ? 0 : line * lines;
  d.strides[1] = transposed ? 1 : line;
  d.strides[2] = transposed ? line : 1;
  *elements = line * lines * (shared ? 1 : batch);
  return d;
}

double activated(double x, simd::Activation activation) {
  switch (activation) {
    case simd::Activation::none:
      return x;
    case simd::Activation::relu:
      return x < 0 ? 0 : x;
    case simd::Activation::silu:
      return x / (1 + std::exp(-x));
    case simd::Activation::gelu_erf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case simd::Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  }
  return x;
}

i64 place(const TensorDesc& d, i64 x, i64 r, i64 c) { return x * d.strides[0] + r * d.strides[1] + c * d.strides[2]; }

double rounding(DType dtype) { return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1.0 / 256 : 1.0 / 2048; }

void check(const Case& c, simd::Isa isa, int threads) {
  SCOPED_TRACE(testing::Message() << simd::name(isa) << " threads " << threads << " batch " << c.batch << " M " << c.m
                                  << " N " << c.n << " K " << c.k << " aT " << c.a_transposed << " bT "
                                  << c.b_transposed << " dtypes " << name(c.a_dtype) << name(c.b_dtype)
                                  << name(c.out_dtype) << " bias " << static_cast<int>(c.bias));
  std::mt19937 rng(static_cast<unsigned>(c.m * 7919 + c.n * 104729 + c.k));
  i64 elements = 0;
  const TensorDesc a_desc = matrix(c.a_dtype, c.batch, c.m, c.k, c.a_transposed, c.gap, false, &elements);
  TestTensor a(a_desc, elements);
  const TensorDesc b_desc = matrix(c.b_dtype, c.batch, c.k, c.n, c.b_transposed, c.gap, c.share_b, &elements);
  TestTensor b(b_desc, elements);
  TensorDesc bias_desc(c.out_dtype, Shape{c.batch, c.m, c.n});
  if (c.bias == Case::kPerColumn) bias_desc.strides = {0, 0, 1};
  if (c.bias == Case::kPerRow) bias_desc.strides = {0, 1, 0};
  TestTensor bias(bias_desc, c.batch * c.m * c.n);
  TestTensor out(TensorDesc(c.out_dtype, Shape{c.batch, c.m, c.n}));
  a.fill(rng, -1, 1);
  b.fill(rng, -1, 1);
  bias.fill(rng, -1, 1);
  MatmulAttrs attrs{c.alpha, c.beta, c.activation, c.bias != Case::kNoBias, c.in_bf16};
  std::vector<const TestTensor*> inputs = {&a, &b};
  if (c.bias != Case::kNoBias) inputs.push_back(&bias);
  const MatmulKernels kernels(isa);
  run_on_threads(
      inputs, {&out}, attrs, matmul_scratch_bytes(attrs, a_desc, b_desc, kernels), threads,
      [&](const KernelContext& ctx) { run_matmul(ctx, kernels); },
      [&](const KernelContext& ctx) { return matmul_phases(ctx, kernels); });
  EXPECT_TRUE(out.guards_intact());
  const bool rounds = c.in_bf16 && kernels.pairs != nullptr && c.m > simd::kMaxDotRows && c.n > simd::kMaxDotRows;
  const auto operand = [&](double x) { return rounds ? rounded_to_bf16(x) : x; };
  i64 wrong = 0;
  for (i64 x = 0; x < c.batch; ++x) {
    for (i64 r = 0; r < c.m; ++r) {
      for (i64 col = 0; col < c.n; ++col) {
        double sum = 0, size = 0;
        for (i64 k = 0; k < c.k; ++k) {
          const double term = operand(a.get(place(a_desc, x, r, k))) * operand(b.get(place(b_desc, x, k, col)));
          sum += term;
          size += std::fabs(term);
        }
        sum *= static_cast<double>(c.alpha);
        if (c.bias != Case::kNoBias) {
          sum += static_cast<double>(c.beta) * bias.get(place(bias_desc, x, r, col));
          size += 1;
        }
        const double want = activated(sum, c.activation);
        const double got = out.get(place(out.desc, x, r, col));
        const double tolerance =
            4e-7 * (size * std::fabs(static_cast<double>(c.alpha)) + 1) + rounding(c.out_dtype) * std::fabs(want);
        if (!(std::fabs(got - want) <= tolerance) && ++wrong < 4) {
          ADD_FAILURE() << "at [" << x << ", " << r << ", " << col << "]: got " << got << ", expected " << want;
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

void check_everywhere(const Case& c) {
  for (const simd::Isa isa : simd::available_isas_of<simd::MatmulTable, simd::PairProducts>()) {
    check(c, isa, 1);
    check(c, isa, 2);
  }
}

TEST(Matmul, EverySizeAroundTheTiles) {
  for (const i64 m : {1, 2, 5, 7, 8, 9, 12, 13, 16, 17, 31, 33, 49}) {
    for (const i64 n : {1, 3, 8, 11, 12, 13, 16, 17, 32, 33, 65}) {
      for (const i64 k : {1, 3, 16, 17, 67}) {
        check_everywhere({.m = m, .n = n, .k = k});
        check_everywhere({.m = m, .n = n, .k = k, .b_transposed = false});
      }
    }
  }
}

TEST(Matmul, EveryLayout) {
  for (const bool at : {false, true}) {
    for (const bool bt : {false, true}) {
      for (const i64 m : {1, 6, 30}) {
        for (const i64 n : {1, 6, 30, 70}) {
          check_everywhere({.batch = 3, .m = m, .n = n, .k = 21, .a_transposed = at, .b_transposed = bt, .gap = 5});
          check_everywhere(
              {.batch = 3, .m = m, .n = n, .k = 21, .a_transposed = at, .b_transposed = bt, .share_b = true});
        }
      }
    }
  }
}

TEST(Matmul, LongSumsAndManyPanels) {
  check_everywhere({.m = 20, .n = 300, .k = 513});
  check_everywhere({.m = 100, .n = 61, .k = 1100});
  check_everywhere({.m = 7, .n = 50, .k = 1300});
  check_everywhere({.m = 300, .n = 21, .k = 1025, .b_transposed = false});
}

TEST(Matmul, OperandsTooLargeToPackAtOnce) {
  // Larger than the chunk that is packed at once: ten panels of 32 x 9000 f32, and three batches of 600 x 1500.
  check({.m = 290, .n = 20, .k = 9000, .a_transposed = true, .b_transposed = true}, simd::available_isas().back(), 2);
  check({.batch = 3, .m = 40, .n = 600, .k = 1500, .b_transposed = false}, simd::available_isas().back(), 2);
}

TEST(Matmul, EveryBiasAndActivation) {
  for (const auto bias : {Case::kPerColumn, Case::kPerRow, Case::kFull}) {
    for (const i64 m : {3, 25}) {
      for (const bool bt : {false, true}) {
        check_everywhere(
            {.batch = 2, .m = m, .n = 37, .k = 19, .b_transposed = bt, .bias = bias, .alpha = 0.5f, .beta = -2});
        for (const auto activation : {simd::Activation::relu, simd::Activation::silu, simd::Activation::gelu_erf,
                                      simd::Activation::gelu_tanh}) {
          check_everywhere({.m = m, .n = 37, .k = 19, .b_transposed = bt, .bias = bias, .activation = activation});
        }
      }
    }
  }
}

// Up to MatmulTable::half_dot_rows rows are dot products.
TEST(Matmul, HalfPrecisionAccumulatesInF32AndRoundsOnce) {
  for (const DType t : {DType::f16, DType::bf16}) {
    for (const i64 m : {1, 5, 8, 9, 24, 25, 40, 41}) {
      for (const bool bt : {false, true}) {
        for (const i64 n : {5, 41, 45}) {
          check_everywhere({.m = m,
                            .n = n,
                            .k = 83,
                            .b_transposed = bt,
                            .a_dtype = t,
                            .b_dtype = t,
                            .out_dtype = t,
                            .bias = Case::kPerColumn});
          check_everywhere({.m = m, .n = n, .k = 83, .b_transposed = bt, .b_dtype = t});
          check_everywhere({.m = m, .n = n, .k = 259, .b_transposed = bt, .b_dtype = t});
          check_everywhere({.m = n, .n = m, .k = 259, .b_transposed = bt, .a_dtype = t, .bias = Case::kPerRow});
        }
      }
    }
  }
}

// Pairs of two steps: odd depths, depths around a block of 1024 steps and around a chunk of packing, rows of odd
// strides (whose pairs are not aligned), either operand as S or V, the tails of tiles and panels.
TEST(Matmul, Bf16AroundTheBordersOfPairs) {
  const auto bf16 = [](Case c) {
    c.a_dtype = c.b_dtype = c.out_dtype = DType::bf16;
    for (const i64 gap : {0, 1, 2}) {
      c.gap = gap;
      check_everywhere(c);
    }
  };
  for (const i64 k : {1, 2, 3, 127, 128, 129, 1023, 1024, 1025, 1026}) {
    for (const bool at : {false, true}) {
      for (const bool bt : {false, true}) {
        bf16({.m = 25, .n = 45, .k = k, .a_transposed = at, .b_transposed = bt});
      }
    }
  }
  for (const i64 m : {9, 12, 13, 24, 49, 61}) {
    for (const i64 n : {9, 15, 16, 17, 32, 33, 64, 290}) {
      bf16({.m = m, .n = n, .k = 38, .bias = Case::kPerColumn});
      bf16({.batch = 3, .m = m, .n = n, .k = 33, .b_transposed = false, .activation = simd::Activation::gelu_erf});
    }
  }
  bf16({.batch = 2, .m = 40, .n = 20, .k = 66, .share_b = true, .alpha = 0.5f});
}

TEST(Matmul, MediumPrecisionRoundsOperandsToBf16WhereTheCpuMultipliesIt) {
  for (const DType a : {DType::f32, DType::bf16}) {
    for (const DType b : {DType::f32, DType::bf16}) {
      for (const bool at : {false, true}) {
        for (const bool bt : {false, true}) {
          for (const i64 m : {9, 31, 70}) {
            check_everywhere({.m = m,
                              .n = 45,
                              .k = 131,
                              .a_transposed = at,
                              .b_transposed = bt,
                              .a_dtype = a,
                              .b_dtype = b,
                              .bias = Case::kPerColumn,
                              .gap = 3,
                              .in_bf16 = true});
          }
          check_everywhere(
              {.batch = 2, .m = 20, .n = 40, .k = 64, .a_transposed = at, .b_transposed = bt, .in_bf16 = true});
        }
      }
    }
  }
  // Computed in f32 even with in_bf16: skinny products, and operands in f16.
  check_everywhere({.m = 8, .n = 45, .k = 131, .in_bf16 = true});
  check_everywhere({.m = 45, .n = 5, .k = 131, .in_bf16 = true});
}

TEST(Matmul, NothingToSum) {
  check_everywhere({.m = 3, .n = 5, .k = 0});
  check_everywhere({.m = 3, .n = 5, .k = 0, .bias = Case::kPerColumn, .beta = 3});
  check_everywhere({.batch = 2, .m = 20, .n = 50, .k = 0, .bias = Case::kFull});
}

TEST(Matmul, NothingToDo) {
  check_everywhere({.m = 0, .n = 5, .k = 4});
  check_everywhere({.m = 5, .n = 0, .k = 4});
  check_everywhere({.batch = 0, .m = 5, .n = 5, .k = 4});
}

TEST(Matmul, NanAndInfinityReachTheirResultsAndNoOther) {
  for (const simd::Isa isa : simd::available_isas_of<simd::MatmulTable, simd::PairProducts>()) {
    for (const auto& [m, dtype] : {std::pair<i64, DType>{4, DType::f32}, {30, DType::f32}, {30, DType::bf16}}) {
      const i64 n = 35, k = 33;
      TestTensor a(TensorDesc(dtype, Shape{m, k})), w(TensorDesc(dtype, Shape{n, k}));
      TestTensor out(TensorDesc(DType::f32, Shape{m, n}));
      for (i64 i = 0; i < m * k; ++i) a.set(i, 1);
      for (i64 i = 0; i < n * k; ++i) w.set(i, 1);
      a.set(2 * k + 32, std::numeric_limits<double>::quiet_NaN());
      w.set(34 * k + 5, std::numeric_limits<double>::infinity());
      TestTensor b = w;
      b.desc = TensorDesc(dtype, Shape{k, n});
      b.desc.strides = {1, k};
      const MatmulKernels kernels(isa);
      run_on_threads(
          {&a, &b}, {&out}, MatmulAttrs{}, matmul_scratch_bytes({}, a.desc, b.desc, kernels), 1,
          [&](const KernelContext& ctx) { run_matmul(ctx, kernels); },
          [&](const KernelContext& ctx) { return matmul_phases(ctx, kernels); });
      for (i64 r = 0; r < m; ++r) {
        for (i64 c = 0; c < n; ++c) {
          const double x = out.get(r * n + c);
          if (r == 2) {
            EXPECT_TRUE(std::isnan(x)) << r << " " << c;
          } else if (c == 34) {
            EXPECT_TRUE(std::isinf(x)) << r << " " << c;
          } else {
            EXPECT_EQ(x, static_cast<double>(k)) << r << " " << c;
          }
        }
      }
    }
  }
}

template <typename T>
void check_plain(DType dtype, const std::vector<T>& a, const std::vector<T>& b, const std::vector<T>& want, i64 m,
                 i64 n, i64 k) {
  std::vector<T> out(static_cast<std::size_t>(m * n));
  const std::vector<TensorDesc> in = {TensorDesc(dtype, Shape{m, k}), TensorDesc(dtype, Shape{k, n})};
  const std::vector<TensorDesc> out_desc = {TensorDesc(dtype, Shape{m, n})};
  const void* inputs[] = {a.data(), b.data()};
  void* outputs[] = {out.data()};
  const PlainMatmulAttrs attrs;
  KernelContext ctx;
  ctx.input_descs = in;
  ctx.output_descs = out_desc;
  ctx.inputs = inputs;
  ctx.outputs = outputs;
  ctx.attr_bytes = reinterpret_cast<const std::byte*>(&attrs);
  kPlainMatmul.run(ctx);
  EXPECT_EQ(out, want);
}

TEST(PlainMatmul, IntegersAreExactAndWrap) {
  // 2^53 + 1 is no double, 2^62 * 4 wraps to 0.
  const i64 big = (i64{1} << 53) + 1;
  check_plain<i64>(DType::i64, {big, 1, i64{1} << 62, 0}, {1, 4, 2, 3}, {big + 2, 4 * big + 3, i64{1} << 62, 0}, 2, 2,
                   2);
  check_plain<std::int32_t>(DType::i32, {1 << 30, 1}, {4, 7}, {7}, 1, 1, 2);
  check_plain<std::int8_t>(DType::i8, {100, 100}, {2, 1}, {44}, 1, 1, 2);
  check_plain<double>(DType::f64, {1, 1e-12}, {1, 1}, {1 + 1e-12}, 1, 1, 2);
}

}  // namespace
}  // namespace graft
