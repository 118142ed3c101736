// Recurrences and convolutions on the states of a cache: rows that go on, rows that begin anew, padding, rows of the
// cache in any order. Beside them the kernels without a cache, or a reference.
#define GRAFT_ISA test_reference
#include "kernel/recurrent/cached_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernel/recurrent/causal_conv.h"
#include "kernel/recurrent/channel_scan.h"
#include "kernel/recurrent/linear_attention.h"
#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;

constexpr i64 kBatch = 3, kSteps = 31, kRows = 4;
constexpr i64 kPadding[kBatch] = {27, 0,
                                  kSteps};    // the first row goes on, the second begins anew, the last has no token
const std::vector<i64> kCached = {2, 0, 3};   // their rows of the cache
const std::vector<i64> kHalf = {1, 0, 1, 0};  // of the cache's rows

TestTensor numbers(const Shape& shape, const std::vector<i64>& values) {
  TestTensor t(TensorDesc(DType::i64, shape));
  std::memcpy(t.data(), values.data(), values.size() * sizeof(i64));
  return t;
}

TestTensor positions() {
  std::vector<i64> found;
  for (i64 b = 0; b < kBatch; ++b)
    for (i64 t = 0; t < kSteps; ++t) found.push_back(t < kPadding[b] ? -1 : (b == 0 ? 5 : 0) + t - kPadding[b]);
  return numbers({kBatch, kSteps}, found);
}

TestTensor filled(const Shape& shape, std::mt19937& rng, float low, float high) {
  TestTensor t(TensorDesc(DType::f32, shape));
  t.fill(rng, low, high);
  return t;
}

// The element where the state of a row of the batch is before the run (`own`), or after it.
i64 state_at(i64 b, i64 size, bool own) {
  const i64 row = kCached[static_cast<std::size_t>(b)], half = kHalf[static_cast<std::size_t>(row)];
  return (2 * row + (own ? half : 1 - half)) * size;
}

// What a run leaves where it has nothing to write.
void expect_rest_unchanged(const TestTensor& before, const TestTensor& after, i64 size) {
  for (i64 i = 0; i < before.elements(); ++i) {
    const bool written = (i >= state_at(0, size, false) && i < state_at(0, size, false) + size) ||
                         (i >= state_at(1, size, false) && i < state_at(1, size, false) + size);
    if (!written) {
      ASSERT_EQ(after.get(i), before.get(i)) << "at " << i;
    }
  }
}

// Runs a kernel without a cache on the same operands, whose padding must leave a state as it is, and compares.
void compare(std::vector<const TestTensor*> operands, const Shape& out_shape, i64 size,
             const std::function<void(const KernelContext&, bool)>& run, i64 scratch, int threads, std::mt19937& rng) {
  const TestTensor half = numbers({kRows}, kHalf), position = positions();
  TestTensor states(TensorDesc(DType::f32, Shape{kRows, 2, size}));
  states.fill(rng, -1.f, 1.f);
  TestTensor first(TensorDesc(DType::f32, Shape{kBatch, size}));
  for (i64 b = 0; b < kBatch; ++b)
    for (i64 i = 0; i < size; ++i) first.set(b * size + i, b == 0 ? states.get(state_at(0, size, true) + i) : 0.0);
  TestTensor expected(TensorDesc(DType::f32, out_shape)), last(first.desc), out(expected.desc), after = states;
  std::vector<const TestTensor*> plain = operands;
  plain.push_back(&first);
  run_on_threads(plain, {&expected, &last}, i64{0}, scratch, 1, [&](const KernelContext& ctx) { run(ctx, false); });
  operands.push_back(&position);
  operands.push_back(&half);
  run_on_threads(operands, {&out, &after}, i64{0}, scratch, threads, [&](const KernelContext& ctx) {
    KernelContext mine = ctx;
    mine.kv_rows = kCached;
    run(mine, true);
  });
  EXPECT_TRUE(out.guards_intact() && after.guards_intact());
  const i64 step = out.elements() / (kBatch * kSteps);
  for (i64 b = 0; b < kBatch; ++b) {
    for (i64 t = 0; t < kSteps; ++t)
      for (i64 i = 0; i < step; ++i) {
        const i64 at = (b * kSteps + t) * step + i;
        ASSERT_EQ(out.get(at), t < kPadding[b] ? 0.0 : expected.get(at)) << "row " << b << " token " << t;
      }
    if (kPadding[b] == kSteps) continue;
    for (i64 i = 0; i < size; ++i) ASSERT_EQ(after.get(state_at(b, size, false) + i), last.get(b * size + i));
  }
  expect_rest_unchanged(states, after, size);
}

void set_padding(TestTensor& operand, double value) {
  const i64 step = operand.elements() / (kBatch * kSteps);
  for (i64 b = 0; b < kBatch; ++b)
    for (i64 i = 0; i < kPadding[b] * step; ++i) operand.set(b * kSteps * step + i, value);
}

TEST(CachedState, DeltaRuleGoesOn) {
  std::mt19937 rng(1);
  constexpr i64 kHeads = 4, kGroups = 2, kKeys = 9, kColumns = 70;
  for (const simd::Isa isa : simd::available_isas_of<simd::LinearAttentionTable>())
    for (const bool per_key : {false, true}) {
      SCOPED_TRACE(testing::Message() << simd::name(isa) << (per_key ? ", a decay per key" : ""));
      const TestTensor query = filled({kBatch, kSteps, kGroups, kKeys}, rng, -0.5f, 0.5f);
      const TestTensor key = filled(query.desc.shape, rng, -0.5f, 0.5f);
      const TestTensor value = filled({kBatch, kSteps, kHeads, kColumns}, rng, -1.f, 1.f);
      TestTensor decay =
          filled(per_key ? Shape{kBatch, kSteps, kHeads, kKeys} : Shape{kBatch, kSteps, kHeads}, rng, 0.5f, 1.f);
      TestTensor beta = filled({kBatch, kSteps, kHeads}, rng, 0.f, 1.f);
      set_padding(decay, 1.0);
      set_padding(beta, 0.0);
      for (const int threads : {1, 3})
        compare(
            {&query, &key, &value, &decay, &beta}, value.desc.shape, kHeads * kKeys * kColumns,
            [&](const KernelContext& ctx, bool cached) { run_gated_delta(ctx, simd::linear_attention(isa), cached); },
            gated_delta_scratch_bytes(kKeys, threads), threads, rng);
    }
}

TEST(CachedState, SelectiveScanGoesOn) {
  std::mt19937 rng(2);
  constexpr i64 kHeads = 4, kGroups = 2, kSize = 3, kWidth = 21;
  for (const simd::Isa isa : simd::available_isas_of<simd::LinearAttentionTable>())
    for (const bool one : {false, true}) {
      SCOPED_TRACE(testing::Message() << simd::name(isa) << (one ? ", one decay" : ""));
      const TestTensor x = filled({kBatch, kSteps, kHeads, kSize}, rng, -1.f, 1.f);
      TestTensor dt = filled({kBatch, kSteps, kHeads}, rng, 0.f, 2.f);
      const TestTensor a = filled({kHeads, one ? 1 : kWidth}, rng, -2.f, 0.f);
      const TestTensor b = filled({kBatch, kSteps, kGroups, kWidth}, rng, -0.5f, 0.5f);
      const TestTensor c = filled(b.desc.shape, rng, -0.5f, 0.5f);
      set_padding(dt, 0.0);
      for (const int threads : {1, 3})
        compare(
            {&x, &dt, &a, &b, &c}, x.desc.shape, kHeads * kSize * kWidth,
            [&](const KernelContext& ctx, bool cached) {
              run_selective_scan(ctx, simd::linear_attention(isa), cached);
            },
            selective_scan_scratch_bytes(kSteps, threads), threads, rng);
    }
}

TEST(CachedState, DiagonalScanGoesOn) {
  std::mt19937 rng(4);
  constexpr i64 kChannels = 150;
  for (const simd::Isa isa : simd::available_isas_of<simd::ChannelScanTable>()) {
    SCOPED_TRACE(simd::name(isa));
    TestTensor x = filled({kBatch, kSteps, kChannels}, rng, -1.f, 1.f);
    TestTensor decay = filled(x.desc.shape, rng, 0.f, 1.f);
    set_padding(x, 0.0);
    set_padding(decay, 1.0);
    for (const int threads : {1, 3})
      compare(
          {&x, &decay}, x.desc.shape, kChannels,
          [&](const KernelContext& ctx, bool cached) { run_diagonal_scan(ctx, simd::channel_scan(isa), cached); }, 0,
          threads, rng);
  }
}

// Each token lets the numerator and the denominator decay, so padding is left out of the reference.
void check_wkv(simd::Isa isa, int threads, std::mt19937& rng) {
  constexpr i64 kChannels = 150, kSize = 3 * kChannels;
  const TestTensor log_decay = filled({kChannels}, rng, -2.f, 0.f), bonus = filled({kChannels}, rng, -1.f, 1.f);
  const TestTensor key = filled({kBatch, kSteps, kChannels}, rng, -3.f, 3.f);
  const TestTensor value = filled(key.desc.shape, rng, -1.f, 1.f);
  const TestTensor half = numbers({kRows}, kHalf), position = positions();
  TestTensor states(TensorDesc(DType::f32, Shape{kRows, 2, kSize}));
  states.fill(rng, 0.5f, 1.5f);
  TestTensor out(key.desc), after = states;
  run_on_threads({&log_decay, &bonus, &key, &value, &position, &half}, {&out, &after}, i64{0}, 0, threads,
                 [&](const KernelContext& ctx) {
                   KernelContext mine = ctx;
                   mine.kv_rows = kCached;
                   run_wkv(mine, simd::channel_scan(isa), true);
                 });
  EXPECT_TRUE(out.guards_intact() && after.guards_intact());
  for (i64 b = 0; b < kBatch; ++b)
    for (i64 c = 0; c < kChannels; ++c) {
      const i64 own = state_at(b, kSize, true) + c, left = state_at(b, kSize, false) + c;
      const double unit = b == 0 ? std::exp(states.get(own + 2 * kChannels)) : 0.0;
      double sum = states.get(own) * unit, weights = states.get(own + kChannels) * unit;
      for (i64 t = 0; t < kSteps; ++t) {
        const i64 at = (b * kSteps + t) * kChannels + c;
        if (t < kPadding[b]) {
          ASSERT_EQ(out.get(at), 0.0) << "row " << b << " token " << t;
          continue;
        }
        const double given = std::exp(key.get(at)), mine = given * std::exp(bonus.get(c));
        ASSERT_NEAR(out.get(at), (sum + mine * value.get(at)) / (weights + mine), 5e-6)
            << "row " << b << " token " << t;
        sum = sum * std::exp(log_decay.get(c)) + given * value.get(at);
        weights = weights * std::exp(log_decay.get(c)) + given;
      }
      if (kPadding[b] == kSteps) continue;
      const double scale = std::exp(after.get(left + 2 * kChannels)) / weights;
      ASSERT_NEAR(after.get(left) * scale, sum / weights, 5e-6);
      ASSERT_NEAR(after.get(left + kChannels) * scale, 1.0, 1e-5);
    }
  expect_rest_unchanged(states, after, kSize);
}

TEST(CachedState, WkvGoesOn) {
  std::mt19937 rng(5);
  for (const simd::Isa isa : simd::available_isas_of<simd::ChannelScanTable>())
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(testing::Message() << simd::name(isa) << ", " << threads << " threads");
      ASSERT_NO_FATAL_FAILURE(check_wkv(isa, threads, rng));
    }
}

// One row of the batch at a time, in f64: what comes before the first token is the state, or zeros.
void check_conv(simd::Isa isa, i64 taps, i64 channels, bool with_bias, bool silu, int threads, std::mt19937& rng) {
  const TestTensor x = filled({kBatch, kSteps, channels}, rng, -1.f, 1.f);
  const TestTensor weight = filled({taps, channels}, rng, -1.f, 1.f), bias = filled({channels}, rng, -1.f, 1.f);
  const TestTensor half = numbers({kRows}, kHalf), position = positions();
  const i64 kept = taps - 1, size = kept * channels;
  TestTensor states(TensorDesc(DType::f32, Shape{kRows, 2, kept, channels}));
  states.fill(rng, -1.f, 1.f);
  TestTensor out(x.desc), after = states;
  std::vector<const TestTensor*> operands = {&x, &weight};
  if (with_bias) operands.push_back(&bias);
  operands.insert(operands.end(), {&position, &half});
  run_on_threads(operands, {&out, &after}, CausalConvAttrs{with_bias ? 1 : 0, silu ? 1 : 0}, 0, threads,
                 [&](const KernelContext& ctx) {
                   KernelContext mine = ctx;
                   mine.kv_rows = kCached;
                   run_cached_causal_conv(mine, simd::causal_conv(isa));
                 });
  EXPECT_TRUE(out.guards_intact() && after.guards_intact());
  for (i64 b = 0; b < kBatch; ++b)
    for (i64 c = 0; c < channels; ++c) {
      std::vector<double> inputs;  // with those before the first token
      for (i64 k = 0; k < kept; ++k)
        inputs.push_back(b == 0 ? states.get(state_at(0, size, true) + k * channels + c) : 0.0);
      for (i64 t = kPadding[b]; t < kSteps; ++t) inputs.push_back(x.get((b * kSteps + t) * channels + c));
      for (i64 t = 0; t < kSteps; ++t) {
        double sum = with_bias ? bias.get(c) : 0.0;
        for (i64 k = 0; k < taps && t >= kPadding[b]; ++k)
          sum += weight.get(k * channels + c) * inputs[static_cast<std::size_t>(t - kPadding[b] + k)];
        if (silu) sum /= 1 + std::exp(-sum);
        ASSERT_NEAR(out.get((b * kSteps + t) * channels + c), t < kPadding[b] ? 0.0 : sum, 1e-5)
            << "row " << b << " token " << t << " channel " << c;
      }
      if (kPadding[b] == kSteps) continue;
      for (i64 k = 0; k < kept; ++k)
        ASSERT_EQ(after.get(state_at(b, size, false) + k * channels + c),
                  inputs[inputs.size() - static_cast<std::size_t>(kept - k)]);
    }
  expect_rest_unchanged(states, after, size);
}

TEST(CachedState, ConvolutionGoesOn) {
  std::mt19937 rng(3);
  int variant = 0;
  for (const simd::Isa isa : simd::available_isas_of<simd::CausalConvTable>())
    for (const i64 taps : {1, 2, 3, 4, 5, 9})  // of more taps than tokens the state keeps some of what it had
      for (const i64 channels : {1, 15, 64, 83, 130}) {
        ++variant;
        SCOPED_TRACE(testing::Message() << simd::name(isa) << ", " << taps << " taps, " << channels << " channels");
        ASSERT_NO_FATAL_FAILURE(
            check_conv(isa, taps, channels, variant % 2 == 0, variant % 3 == 0, 1 + variant % 3, rng));
      }
}

}  // namespace
}  // namespace graft
