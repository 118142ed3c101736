#define GRAFT_ISA test_reference
#include "kernel/recurrent/linear_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// A call of either kernel with all its operands.
struct Sizes {
  i64 batch, steps, groups, heads, rows, columns;
};

TestTensor filled(const Shape& shape, std::mt19937& rng, float low, float high) {
  TestTensor t(TensorDesc(DType::f32, shape));
  t.fill(rng, low, high);
  return t;
}

struct Delta {
  Sizes s;
  bool per_key;
  TestTensor query, key, value, decay, beta, state, out, last;

  Delta(const Sizes& sizes, bool keys, std::mt19937& rng)
      : s(sizes),
        per_key(keys),
        query(filled({s.batch, s.steps, s.groups, s.rows}, rng, -0.5f, 0.5f)),
        key(filled({s.batch, s.steps, s.groups, s.rows}, rng, -0.2f, 0.2f)),
        value(filled({s.batch, s.steps, s.heads, s.columns}, rng, -1.f, 1.f)),
        decay(
            filled(keys ? Shape{s.batch, s.steps, s.heads, s.rows} : Shape{s.batch, s.steps, s.heads}, rng, 0.5f, 1.f)),
        beta(filled({s.batch, s.steps, s.heads}, rng, 0.f, 1.f)),
        state(filled({s.batch, s.heads, s.rows, s.columns}, rng, -1.f, 1.f)),
        out(value.desc),
        last(state.desc) {}

  void run(simd::Isa isa, int threads) {
    run_on_threads({&query, &key, &value, &decay, &beta, &state}, {&out, &last}, i64{0},
                   gated_delta_scratch_bytes(s.rows, threads), threads,
                   [&](const KernelContext& ctx) { run_gated_delta(ctx, simd::linear_attention(isa), false); });
    EXPECT_TRUE(out.guards_intact() && last.guards_intact());
  }

  void expect() const {
    for (i64 b = 0; b < s.batch; ++b)
      for (i64 h = 0; h < s.heads; ++h)
        for (i64 c = 0; c < s.columns; ++c) {
          const i64 at = (b * s.heads + h) * s.rows * s.columns + c, group = h / (s.heads / s.groups);
          std::vector<double> column;
          for (i64 i = 0; i < s.rows; ++i) column.push_back(state.get(at + i * s.columns));
          for (i64 t = 0; t < s.steps; ++t) {
            const i64 head = (b * s.steps + t) * s.heads + h, keys = ((b * s.steps + t) * s.groups + group) * s.rows;
            double seen = 0, y = 0;
            for (i64 i = 0; i < s.rows; ++i) {
              double& x = column[static_cast<std::size_t>(i)];
              x *= decay.get(per_key ? head * s.rows + i : head);
              seen += x * key.get(keys + i);
            }
            const double change = (value.get(head * s.columns + c) - seen) * beta.get(head);
            for (i64 i = 0; i < s.rows; ++i) {
              double& x = column[static_cast<std::size_t>(i)];
              x += key.get(keys + i) * change;
              y += x * query.get(keys + i);
            }
            ASSERT_NEAR(out.get(head * s.columns + c), y, 2e-5) << "step " << t << " column " << c;
          }
          for (i64 i = 0; i < s.rows; ++i)
            ASSERT_NEAR(last.get(at + i * s.columns), column[static_cast<std::size_t>(i)], 2e-5);
        }
  }
};

struct Scan {
  Sizes s;
  bool one;
  TestTensor x, dt, a, b, c, state, out, last;

  Scan(const Sizes& sizes, bool one_decay, std::mt19937& rng)
      : s(sizes),
        one(one_decay),
        x(filled({s.batch, s.steps, s.heads, s.rows}, rng, -1.f, 1.f)),
        dt(filled({s.batch, s.steps, s.heads}, rng, 0.f, 2.f)),
        a(filled({s.heads, one ? 1 : s.columns}, rng, -2.f, 0.f)),
        b(filled({s.batch, s.steps, s.groups, s.columns}, rng, -0.5f, 0.5f)),
        c(filled(b.desc.shape, rng, -0.5f, 0.5f)),
        state(filled({s.batch, s.heads, s.rows, s.columns}, rng, -1.f, 1.f)),
        out(x.desc),
        last(state.desc) {}

  void run(simd::Isa isa, int threads) {
    run_on_threads({&x, &dt, &a, &b, &c, &state}, {&out, &last}, i64{0}, selective_scan_scratch_bytes(s.steps, threads),
                   threads,
                   [&](const KernelContext& ctx) { run_selective_scan(ctx, simd::linear_attention(isa), false); });
    EXPECT_TRUE(out.guards_intact() && last.guards_intact());
  }

  void expect() const {
    for (i64 i = 0; i < s.batch; ++i)
      for (i64 h = 0; h < s.heads; ++h)
        for (i64 p = 0; p < s.rows; ++p) {
          const i64 at = ((i * s.heads + h) * s.rows + p) * s.columns, group = h / (s.heads / s.groups);
          std::vector<double> row;
          for (i64 n = 0; n < s.columns; ++n) row.push_back(state.get(at + n));
          for (i64 t = 0; t < s.steps; ++t) {
            const i64 head = (i * s.steps + t) * s.heads + h;
            const i64 shared = ((i * s.steps + t) * s.groups + group) * s.columns;
            double y = 0;
            for (i64 n = 0; n < s.columns; ++n) {
              double& value = row[static_cast<std::size_t>(n)];
              value = value * std::exp(dt.get(head) * a.get(one ? h : h * s.columns + n)) +
                      dt.get(head) * x.get(head * s.rows + p) * b.get(shared + n);
              y += value * c.get(shared + n);
            }
            ASSERT_NEAR(out.get(head * s.rows + p), y, 2e-5) << "step " << t << " row " << p;
          }
          for (i64 n = 0; n < s.columns; ++n) ASSERT_NEAR(last.get(at + n), row[static_cast<std::size_t>(n)], 2e-5);
        }
  }
};

constexpr i64 kColumns[] = {1, 7, 16, 17, 63, 64, 65, 130};

TEST(LinearAttention, DeltaRuleMatchesDoubleReference) {
  std::mt19937 rng(1);
  int variant = 0;
  for (const simd::Isa isa : simd::available_isas_of<simd::LinearAttentionTable>())
    for (const i64 columns : kColumns) {
      ++variant;
      Delta call({1 + variant % 2, 1 + variant % 6, 1 + variant % 3, 2 * (1 + variant % 3), 1 + variant % 19, columns},
                 variant % 2 == 0, rng);
      SCOPED_TRACE(testing::Message() << simd::name(isa) << " columns " << columns << " variant " << variant);
      call.run(isa, 1 + variant % 3);
      ASSERT_NO_FATAL_FAILURE(call.expect());
    }
}

TEST(LinearAttention, ScanMatchesDoubleReference) {
  std::mt19937 rng(2);
  int variant = 0;
  for (const simd::Isa isa : simd::available_isas_of<simd::LinearAttentionTable>())
    for (const i64 columns : kColumns) {
      ++variant;
      Scan call({1 + variant % 2, 1 + variant % 6, 1 + variant % 3, 2 * (1 + variant % 3), 1 + variant % 5, columns},
                variant % 2 == 0, rng);
      SCOPED_TRACE(testing::Message() << simd::name(isa) << " columns " << columns << " variant " << variant);
      call.run(isa, 1 + variant % 3);
      ASSERT_NO_FATAL_FAILURE(call.expect());
    }
}

TEST(LinearAttention, ThreadsDoNotShowInTheBits) {
  std::mt19937 rng(3);
  Delta delta({1, 9, 1, 3, 24, 200}, false, rng);
  Scan scan({1, 9, 1, 7, 5, 40}, true, rng);
  delta.run(simd::active_isa(), 1);
  scan.run(simd::active_isa(), 1);
  const Delta one_delta = delta;
  const Scan one_scan = scan;
  delta.run(simd::active_isa(), 4);
  scan.run(simd::active_isa(), 4);
  for (i64 i = 0; i < delta.out.elements(); ++i) ASSERT_EQ(delta.out.get(i), one_delta.out.get(i));
  for (i64 i = 0; i < scan.out.elements(); ++i) ASSERT_EQ(scan.out.get(i), one_scan.out.get(i));
}

}  // namespace
}  // namespace graft
