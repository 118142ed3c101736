#define GRAFT_ISA test_reference
#include "kernel/recurrent/channel_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;

struct Sizes {
  i64 batch, steps, channels;
};

TestTensor filled(const Shape& shape, std::mt19937& rng, float low, float high) {
  TestTensor t(TensorDesc(DType::f32, shape));
  t.fill(rng, low, high);
  return t;
}

struct Diagonal {
  Sizes s;
  TestTensor x, decay, state, out, last;

  Diagonal(const Sizes& sizes, std::mt19937& rng)
      : s(sizes),
        x(filled({s.batch, s.steps, s.channels}, rng, -1.f, 1.f)),
        decay(filled(x.desc.shape, rng, 0.f, 1.f)),
        state(filled({s.batch, s.channels}, rng, -1.f, 1.f)),
        out(x.desc),
        last(state.desc) {}

  void run(simd::Isa isa, int threads) {
    run_on_threads({&x, &decay, &state}, {&out, &last}, i64{0}, 0, threads,
                   [&](const KernelContext& ctx) { run_diagonal_scan(ctx, simd::channel_scan(isa), false); });
    EXPECT_TRUE(out.guards_intact() && last.guards_intact());
  }

  void expect() const {
    for (i64 b = 0; b < s.batch; ++b)
      for (i64 c = 0; c < s.channels; ++c) {
        double value = state.get(b * s.channels + c);
        for (i64 t = 0; t < s.steps; ++t) {
          const i64 at = (b * s.steps + t) * s.channels + c;
          value = decay.get(at) * value + x.get(at);
          ASSERT_NEAR(out.get(at), value, 2e-6) << "step " << t << " channel " << c;
        }
        ASSERT_NEAR(last.get(b * s.channels + c), value, 2e-6);
      }
  }
};

struct Wkv {
  Sizes s;
  double tolerance;  // exponents are sums in f32
  TestTensor log_decay, bonus, key, value, state, out, last;

  // keys: their range; beyond 44 the smaller weights are forgotten.
  Wkv(const Sizes& sizes, float keys, std::mt19937& rng)
      : s(sizes),
        tolerance(3e-6 + 4e-7 * static_cast<double>(keys)),
        log_decay(filled({s.channels}, rng, -3.f, 0.f)),
        bonus(filled({s.channels}, rng, -1.f, 1.f)),
        key(filled({s.batch, s.steps, s.channels}, rng, -keys, keys)),
        value(filled(key.desc.shape, rng, -1.f, 1.f)),
        state(filled({s.batch, 3, s.channels}, rng, 0.5f, 1.5f)),
        out(key.desc),
        last(state.desc) {}

  void run(simd::Isa isa, int threads) {
    run_on_threads({&log_decay, &bonus, &key, &value, &state}, {&out, &last}, i64{0}, 0, threads,
                   [&](const KernelContext& ctx) { run_wkv(ctx, simd::channel_scan(isa), false); });
    EXPECT_TRUE(out.guards_intact() && last.guards_intact());
  }

  // Sums of exponentials as they are, which f64 holds.
  void expect() const {
    for (i64 b = 0; b < s.batch; ++b)
      for (i64 c = 0; c < s.channels; ++c) {
        const i64 at = b * 3 * s.channels + c;
        const double before = std::exp(state.get(at + 2 * s.channels));
        double sum = state.get(at) * before, weights = state.get(at + s.channels) * before;
        for (i64 t = 0; t < s.steps; ++t) {
          const i64 now = (b * s.steps + t) * s.channels + c;
          const double own = std::exp(key.get(now) + bonus.get(c));
          ASSERT_NEAR(out.get(now), (sum + own * value.get(now)) / (weights + own), tolerance)
              << "step " << t << " channel " << c;
          sum = std::exp(log_decay.get(c)) * sum + std::exp(key.get(now)) * value.get(now);
          weights = std::exp(log_decay.get(c)) * weights + std::exp(key.get(now));
        }
        ASSERT_NEAR(last.get(at) / last.get(at + s.channels), sum / weights, tolerance);
        // The maximum is a sum in f32 of up to 300.
        const double unit = std::exp(last.get(at + 2 * s.channels));
        ASSERT_NEAR(last.get(at + s.channels) * unit / weights, 1.0, 2e-4);
      }
  }
};

constexpr i64 kChannels[] = {1, 7, 16, 31, 64, 127, 130, 300};
constexpr i64 kSteps[] = {1, 2, 23, 24, 25, 70};

TEST(ChannelScan, DiagonalMatchesDoubleReference) {
  std::mt19937 rng(1);
  int variant = 0;
  for (const simd::Isa isa : simd::available_isas_of<simd::ChannelScanTable>())
    for (const i64 channels : kChannels)
      for (const i64 steps : kSteps) {
        ++variant;
        SCOPED_TRACE(testing::Message() << simd::name(isa) << ", " << channels << " channels, " << steps << " steps");
        Diagonal call({1 + variant % 3, steps, channels}, rng);
        call.run(isa, 1 + variant % 3);
        ASSERT_NO_FATAL_FAILURE(call.expect());
      }
}

TEST(ChannelScan, WkvMatchesDoubleReference) {
  std::mt19937 rng(2);
  int variant = 0;
  for (const simd::Isa isa : simd::available_isas_of<simd::ChannelScanTable>())
    for (const i64 channels : kChannels)
      for (const i64 steps : kSteps) {
        ++variant;
        SCOPED_TRACE(testing::Message() << simd::name(isa) << ", " << channels << " channels, " << steps << " steps");
        Wkv call({1 + variant % 3, steps, channels}, variant % 2 == 0 ? 3.f : 90.f, rng);
        call.run(isa, 1 + variant % 3);
        ASSERT_NO_FATAL_FAILURE(call.expect());
      }
}

TEST(ChannelScan, ThreadsDoNotShowInTheBits) {
  std::mt19937 rng(3);
  Diagonal diagonal({2, 50, 700}, rng);
  Wkv wkv({2, 50, 700}, 3.f, rng);
  diagonal.run(simd::active_isa(), 1);
  wkv.run(simd::active_isa(), 1);
  const Diagonal one_diagonal = diagonal;
  const Wkv one_wkv = wkv;
  diagonal.run(simd::active_isa(), 5);
  wkv.run(simd::active_isa(), 5);
  for (i64 i = 0; i < diagonal.out.elements(); ++i) {
    ASSERT_EQ(diagonal.out.get(i), one_diagonal.out.get(i));
    ASSERT_EQ(wkv.out.get(i), one_wkv.out.get(i));
  }
  for (i64 i = 0; i < wkv.last.elements(); ++i) ASSERT_EQ(wkv.last.get(i), one_wkv.last.get(i));
}

}  // namespace
}  // namespace graft
