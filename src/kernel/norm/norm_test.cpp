#define GRAFT_ISA test_reference
#include "kernel/norm/norm.h"
#include "kernel/attention/rope.h"
#include "kernel/norm/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel/attention/rope.h"
#include "kernel/norm/softmax.h"
#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double ulp_of(DType dtype) { return dtype == DType::f32 ? 0x1p-23 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }

void expect_close(double got, double want, DType dtype, double f32_tolerance) {
  const double tolerance = f32_tolerance + (dtype == DType::f32 ? 0 : ulp_of(dtype) * std::fabs(want) + 1e-7);
  EXPECT_LE(std::fabs(got - want), tolerance) << "got " << got << ", expected " << want;
}

// For every instruction set and dtype, row lengths around the vector sizes, and one and two threads.
template <typename F>
void everywhere(F f) {
  for (const simd::Isa isa : simd::available_isas_of<simd::RowsTable>()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const i64 n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130, 384, 1001}) {
        for (const int threads : {1, 2}) {
          SCOPED_TRACE(testing::Message()
                       << simd::name(isa) << " " << name(dtype) << " row " << n << " threads " << threads);
          f(simd::rows(isa), dtype, n, threads);
        }
      }
    }
  }
}

TEST(LayerNorm, MatchesDoubleReference) {
  everywhere([](const simd::RowsTable& table, DType dtype, i64 n, int threads) {
    const i64 rows = 5;
    std::mt19937 rng(static_cast<unsigned>(n));
    // With a mean of 100 deviations, a sum of squares minus a squared mean would lose all digits.
    for (const float offset : {0.f, dtype == DType::f32 ? 100.f : 2.f}) {
      TestTensor x(TensorDesc(dtype, Shape{rows, n})), w(TensorDesc(dtype, Shape{n})),
          b(TensorDesc(DType::f32, Shape{n}));
      TestTensor y(x.desc), mean(TensorDesc(DType::f32, Shape{rows, 1})), rstd(mean.desc);
      x.fill(rng, offset - 1, offset + 1);
      w.fill(rng, -2, 2);
      b.fill(rng, -2, 2);
      for (const int affine : {0, 1, 2}) {
        NormAttrs attrs;
        attrs.row = n;
        attrs.eps = 1e-5;
        attrs.has_weight = affine > 0;
        attrs.has_bias = affine > 1;
        std::vector<const TestTensor*> inputs = {&x};
        if (affine > 0) inputs.push_back(&w);
        if (affine > 1) inputs.push_back(&b);
        run_on_threads(inputs, {&y, &mean, &rstd}, attrs, 0, threads,
                       [&](const KernelContext& ctx) { run_layer_norm(ctx, table); });
        EXPECT_TRUE(y.guards_intact() && mean.guards_intact() && rstd.guards_intact());
        for (i64 r = 0; r < rows; ++r) {
          double m = 0, v = 0;
          for (i64 i = 0; i < n; ++i) m += x.get(r * n + i) / static_cast<double>(n);
          for (i64 i = 0; i < n; ++i) v += std::pow(x.get(r * n + i) - m, 2) / static_cast<double>(n);
          const double scale = 1 / std::sqrt(v + 1e-5);
          EXPECT_NEAR(mean.get(r), m, 1.2e-7 * (std::fabs(m) + 1));
          EXPECT_NEAR(rstd.get(r), scale, scale * 2e-6 + scale * scale * 2e-7);
          for (i64 i = 0; i < n; ++i) {
            double want = (x.get(r * n + i) - m) * scale;
            if (affine > 0) want *= w.get(i);
            if (affine > 1) want += b.get(i);
            expect_close(y.get(r * n + i), want, dtype,
                         4e-6 + scale * 4e-7 * static_cast<double>(1 + std::fabs(offset)));
          }
        }
      }
    }
  });
}

TEST(RmsNorm, MatchesDoubleReference) {
  everywhere([](const simd::RowsTable& table, DType dtype, i64 n, int threads) {
    const i64 rows = 3;
    std::mt19937 rng(static_cast<unsigned>(n));
    TestTensor x(TensorDesc(dtype, Shape{rows, n})), w(TensorDesc(DType::f32, Shape{n})), y(x.desc);
    x.fill(rng, -3, 3);
    w.fill(rng, -2, 2);
    NormAttrs attrs;
    attrs.row = n;
    attrs.eps = 1e-6;
    attrs.has_weight = 1;
    run_on_threads({&x, &w}, {&y}, attrs, 0, threads, [&](const KernelContext& ctx) { run_rms_norm(ctx, table); });
    EXPECT_TRUE(y.guards_intact());
    for (i64 r = 0; r < rows; ++r) {
      double square = 0;
      for (i64 i = 0; i < n; ++i) square += std::pow(x.get(r * n + i), 2) / static_cast<double>(n);
      for (i64 i = 0; i < n; ++i) {
        expect_close(y.get(r * n + i), x.get(r * n + i) / std::sqrt(square + 1e-6) * w.get(i), dtype, 2e-6);
      }
    }
  });
}

TEST(GroupNorm, MatchesDoubleReference) {
  everywhere([](const simd::RowsTable& table, DType dtype, i64 inner, int threads) {
    const i64 samples = 2, channels = 6, groups = 3;
    std::mt19937 rng(static_cast<unsigned>(inner));
    TestTensor x(TensorDesc(dtype, Shape{samples, channels, inner})), y(x.desc);
    TestTensor w(TensorDesc(dtype, Shape{channels})), b(w.desc);
    x.fill(rng, -3, 3);
    w.fill(rng, -2, 2);
    b.fill(rng, -2, 2);
    w.set(1, 0);
    NormAttrs attrs;
    attrs.row = channels / groups * inner;
    attrs.inner = inner;
    attrs.channels = channels;
    attrs.eps = 1e-3;
    attrs.has_weight = attrs.has_bias = 1;
    run_on_threads({&x, &w, &b}, {&y}, attrs, 0, threads,
                   [&](const KernelContext& ctx) { run_group_norm(ctx, table); });
    EXPECT_TRUE(y.guards_intact());
    for (i64 r = 0; r < samples * groups; ++r) {
      double m = 0, v = 0;
      for (i64 i = 0; i < attrs.row; ++i) m += x.get(r * attrs.row + i) / static_cast<double>(attrs.row);
      for (i64 i = 0; i < attrs.row; ++i)
        v += std::pow(x.get(r * attrs.row + i) - m, 2) / static_cast<double>(attrs.row);
      for (i64 i = 0; i < attrs.row; ++i) {
        const i64 channel = (r * attrs.row + i) / inner % channels;
        const double want = (x.get(r * attrs.row + i) - m) / std::sqrt(v + 1e-3) * w.get(channel) + b.get(channel);
        expect_close(y.get(r * attrs.row + i), want, dtype, 2e-5);
      }
    }
  });
}

TEST(Softmax, MatchesDoubleReference) {
  everywhere([](const simd::RowsTable& table, DType dtype, i64 n, int threads) {
    const i64 rows = 5;
    std::mt19937 rng(static_cast<unsigned>(n));
    TestTensor x(TensorDesc(dtype, Shape{rows, n}));
    x.fill(rng, -20, 20);
    if (n > 4) x.set(3, -kInf);  // contributes nothing
    for (const DType to : {dtype, DType::f32}) {
      for (const int logarithm : {0, 1}) {
        TestTensor y(TensorDesc(to, Shape{rows, n}));
        run_on_threads({&x}, {&y}, SoftmaxAttrs{n, 1, logarithm}, 0, threads,
                       [&](const KernelContext& ctx) { run_softmax(ctx, table); });
        EXPECT_TRUE(y.guards_intact());
        for (i64 r = 0; r < rows; ++r) {
          double top = -kInf, total = 0;
          for (i64 i = 0; i < n; ++i) top = std::max(top, x.get(r * n + i));
          for (i64 i = 0; i < n; ++i) total += std::exp(x.get(r * n + i) - top);
          for (i64 i = 0; i < n; ++i) {
            const double difference = x.get(r * n + i) - top;
            const double got = y.get(r * n + i);
            if (logarithm != 0) {
              if (std::isinf(difference)) {
                EXPECT_EQ(got, -kInf);
              } else {
                expect_close(got, difference - std::log(total), to, 1e-5);
              }
            } else {
              const double want = std::exp(difference) / total;
              // Rounding x - top is an error relative to the result.
              expect_close(got, want, to, want * (1e-6 + std::min(std::fabs(difference), 200.) * 1.2e-7) + 1e-30);
            }
          }
        }
      }
    }
  });
}

TEST(Softmax, RowsWithoutFiniteValuesAreNanAndStayAlone) {
  for (const simd::Isa isa : simd::available_isas_of<simd::RowsTable>()) {
    for (const i64 n : {5, 40, 130}) {
      for (const double poison : {kNan, kInf, -kInf}) {
        for (const int logarithm : {0, 1}) {
          TestTensor x(TensorDesc(DType::f32, Shape{2, n})), y(x.desc);
          for (i64 i = 0; i < n; ++i) x.set(i, std::isnan(poison) ? 1 : poison);
          x.set(n - 1, poison);
          for (i64 i = n; i < 2 * n; ++i) x.set(i, 0);
          run_on_threads({&x}, {&y}, SoftmaxAttrs{n, 1, logarithm}, 0, 1,
                         [&](const KernelContext& ctx) { run_softmax(ctx, simd::rows(isa)); });
          for (i64 i = 0; i < n; ++i) {
            EXPECT_TRUE(std::isnan(y.get(i))) << n << " " << poison;
            EXPECT_NEAR(y.get(n + i), logarithm != 0 ? -std::log(n) : 1.0 / static_cast<double>(n), 1e-6);
          }
        }
      }
    }
  }
}

// Adjacent columns, and long rows, which are divided into parts: f32, f16 and f64.
TEST(Softmax, ColumnsAndLongRowsMatchADoubleReference) {
  struct Sizes {
    i64 outer, row, inner;
  };
  for (const auto& [outer, row, inner] :
       {Sizes{2, 7, 3}, {1, 64, 257}, {3, 5, 600}, {1, 1, 300}, {2, 70000, 1}, {1, 65536, 1}, {1, 81921, 1}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const DType to : {dtype, DType::f32}) {
        for (const int logarithm : {0, 1}) {
          const SoftmaxAttrs attrs{row, inner, logarithm};
          std::mt19937 rng(static_cast<unsigned>(row));
          TestTensor x(TensorDesc(dtype, Shape{outer, row, inner}));
          x.fill(rng, -8, 8);
          if (row > 1) x.set(0, -kInf);
          const i64 bytes = softmax_scratch_bytes(attrs, outer * row * inner);
          std::vector<double> first;
          for (const int threads : {1, 2, 3}) {
            SCOPED_TRACE(testing::Message() << outer << "x" << row << "x" << inner << " " << name(dtype) << " to "
                                            << name(to) << " threads " << threads << " log " << logarithm);
            TestTensor y(TensorDesc(to, x.desc.shape));
            run_on_threads({&x}, {&y}, attrs, bytes, threads, kSoftmax.run, kSoftmax.phases);
            ASSERT_TRUE(y.guards_intact());
            std::vector<double> got;
            for (i64 i = 0; i < y.elements(); ++i) got.push_back(y.get(i));
            if (threads > 1) {
              ASSERT_EQ(got, first) << "depends on the number of threads";
            }
            first = got;
          }
          for (i64 o = 0; o < outer; ++o)
            for (i64 c = 0; c < inner; ++c) {
              const auto at = [&](i64 r) { return (o * row + r) * inner + c; };
              double total = 0;
              for (i64 r = 0; r < row; ++r) total += std::exp(x.get(at(r)));
              for (i64 r = 0; r < row; ++r) {
                const double want = logarithm != 0 ? x.get(at(r)) - std::log(total) : std::exp(x.get(at(r))) / total;
                if (std::isinf(want)) {
                  ASSERT_EQ(first[static_cast<std::size_t>(at(r))], want);
                  continue;
                }
                const double tolerance = (logarithm != 0 ? 1e-5 : want * 4e-6 + 1e-9) +
                                         (to == DType::f32 ? 0 : ulp_of(to) * std::fabs(want));
                ASSERT_NEAR(first[static_cast<std::size_t>(at(r))], want, tolerance);
              }
            }
        }
      }
    }
  }
}

TEST(Softmax, ALongRowWithNanOrWithoutFiniteValuesIsNan) {
  const i64 n = 70000;
  const SoftmaxAttrs attrs{n, 1, 0};
  for (const double poison : {kNan, kInf, -kInf}) {
    TestTensor x(TensorDesc(DType::f32, Shape{n})), y(x.desc);
    for (i64 i = 0; i < n; ++i) x.set(i, poison == -kInf ? poison : 0);
    x.set(n - 1, poison);
    run_on_threads({&x}, {&y}, attrs, softmax_scratch_bytes(attrs, n), 2, kSoftmax.run, kSoftmax.phases);
    for (i64 i = 0; i < n; ++i) ASSERT_TRUE(std::isnan(y.get(i))) << poison;
  }
}

TEST(Rope, EverySizeAndHeadsSideBySide) {
  for (const simd::Isa isa : simd::available_isas_of<simd::RowsTable>()) {
    for (const i64 n : {2, 6, 16, 30, 34, 64, 128}) {
      const i64 heads = 3, tokens = 2;
      TensorDesc by_token(DType::f32, Shape{1, heads, tokens, n});  // memory [1, tokens, heads, n]
      by_token.strides = {heads * tokens * n, n, heads * n, 1};
      TensorDesc shared(DType::f32, Shape{1, heads, tokens, n});
      shared.strides = {0, 0, n, 1};
      TestTensor x(by_token, heads * tokens * n), y(by_token, heads * tokens * n);
      TestTensor cos(shared, tokens * n), sin(shared, tokens * n);
      std::mt19937 rng(static_cast<unsigned>(n));
      for (TestTensor* t : {&x, &cos, &sin}) t->fill(rng, -1, 1);
      run_on_threads({&x, &cos, &sin}, {&y}, 0, 0, 2,
                     [&](const KernelContext& ctx) { run_rope(ctx, simd::rows(isa)); });
      EXPECT_TRUE(y.guards_intact());
      for (i64 t = 0; t < tokens; ++t)
        for (i64 i = 0; i < heads * n; ++i) {
          const i64 d = i % n, row = t * heads * n + i - d;
          const double turned = d < n / 2 ? -x.get(row + d + n / 2) : x.get(row + d - n / 2);
          EXPECT_NEAR(y.get(row + d), x.get(row + d) * cos.get(t * n + d) + turned * sin.get(t * n + d), 2e-7);
        }
    }
  }
}

TEST(LayerNorm, NanStaysInItsRow) {
  for (const simd::Isa isa : simd::available_isas_of<simd::RowsTable>()) {
    TestTensor x(TensorDesc(DType::f32, Shape{2, 37})), y(x.desc);
    for (i64 i = 0; i < 74; ++i) x.set(i, static_cast<double>(i % 5));
    x.set(36, kNan);
    NormAttrs attrs;
    attrs.row = 37;
    run_on_threads({&x}, {&y}, attrs, 0, 1, [&](const KernelContext& ctx) { run_layer_norm(ctx, simd::rows(isa)); });
    for (i64 i = 0; i < 37; ++i) {
      EXPECT_TRUE(std::isnan(y.get(i)));
      EXPECT_FALSE(std::isnan(y.get(37 + i)));
    }
  }
}

}  // namespace
}  // namespace graft
