#define GRAFT_ISA test_reference
#include "kernel/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernel/simd/simd_test_util.h"

namespace graft {
namespace {

using i64 = std::int64_t;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  i64 batch = 2, t = 1, s = 1, d = 16, dv = 16;
  DType dtype = DType::f32;
  // Padding hides keys from all queries; an idle query sees no key.
  enum { kNoMask, kBool, kFloat, kPadding, kHalf, kIdle, kColumns } mask = kNoMask;
  bool causal = false;
  bool shared = false;       // one k and v for all heads: stride 0
  bool interleaved = false;  // memory as [T, batch, D], as projections leave it
  bool in_bf16 = false;
  bool rising = false;  // later keys have larger scores
  unsigned hidden = 3;  // one key in `hidden` is hidden; of a float mask as many more add a number
};

TensorDesc rows_desc(DType dtype, i64 batch, i64 rows, i64 size, bool interleaved, bool shared) {
  TensorDesc d(dtype, Shape{batch, rows, size});
  if (interleaved) d.strides = {size, size * batch, 1};
  if (shared) d.strides = {0, size, 1};
  return d;
}

i64 place(const TensorDesc& d, i64 b, i64 r, i64 c) { return b * d.strides[0] + r * d.strides[1] + c * d.strides[2]; }

void check(const Case& c, simd::Isa isa, int threads) {
  SCOPED_TRACE(testing::Message() << simd::name(isa) << " " << name(c.dtype) << " threads " << threads << " T " << c.t
                                  << " S " << c.s << " D " << c.d << " Dv " << c.dv << " mask "
                                  << static_cast<int>(c.mask) << " causal " << c.causal << " shared " << c.shared);
  std::mt19937 rng(static_cast<unsigned>(c.t * 31 + c.s * 7 + c.d));
  TestTensor q(rows_desc(c.dtype, c.batch, c.t, c.d, c.interleaved, false), c.batch * c.t * c.d);
  TestTensor k(rows_desc(c.dtype, c.batch, c.s, c.d, c.interleaved, c.shared), (c.shared ? 1 : c.batch) * c.s * c.d);
  TestTensor v(rows_desc(c.dtype, c.batch, c.s, c.dv, c.interleaved, c.shared), (c.shared ? 1 : c.batch) * c.s * c.dv);
  TestTensor out(rows_desc(c.dtype, c.batch, c.t, c.dv, c.interleaved, false), c.batch * c.t * c.dv);
  TestTensor lse(TensorDesc(DType::f32, Shape{c.batch, c.t}));
  q.fill(rng, -2, 2);
  k.fill(rng, -2, 2);
  if (c.rising) {
    for (i64 b = 0; b < (c.shared ? 1 : c.batch); ++b)
      for (i64 s = 0; s < c.s; ++s)
        for (i64 d = 0; d < c.d; ++d) {
          const i64 at = place(k.desc, b, s, d);
          k.set(at, k.get(at) * (0.05 + 0.004 * static_cast<double>(s)));
        }
  }
  v.fill(rng, -2, 2);
  const DType mask_dtype = c.mask == Case::kFloat ? DType::f32 : c.mask == Case::kHalf ? DType::bf16 : DType::b8;
  TensorDesc mask_desc(mask_dtype, Shape{c.batch, c.t, c.s});
  i64 mask_elements = c.batch * c.t * c.s;
  if (c.mask == Case::kPadding) {
    mask_desc.strides = {c.s, 0, 1};
    mask_elements = c.batch * c.s;
  } else if (c.mask == Case::kIdle) {
    mask_desc.strides = {c.t, 1, 0};
    mask_elements = c.batch * c.t;
  } else if (c.mask == Case::kColumns) {
    mask_desc.strides = {c.t * c.s, 1, c.t};
  }
  TestTensor mask(mask_desc, mask_elements);
  for (i64 i = 0; i < mask_elements; ++i) {
    const bool seen = rng() % c.hidden != 0, plain = c.hidden > 3 && rng() % c.hidden != 0;
    const double number = plain ? 0 : static_cast<double>(rng() % 5) - 2;
    mask.set(i, mask_dtype == DType::b8 ? (seen ? 1 : 0) : seen ? number : -kInf);
  }
  // Query 0 of head 0 sees no key.
  if (c.mask != Case::kNoMask) {
    for (i64 s = 0; s < c.s; ++s) mask.set(place(mask_desc, 0, 0, s), mask_dtype == DType::b8 ? 0 : -kInf);
  }
  const float scale = 1.2f / std::sqrt(static_cast<float>(c.d));
  const AttentionAttrs attrs{scale, c.causal, c.mask != Case::kNoMask, c.in_bf16};
  std::vector<const TestTensor*> inputs = {&q, &k, &v};
  if (c.mask != Case::kNoMask) inputs.push_back(&mask);
  const simd::AttentionTable& table = simd::attention(isa);
  const std::int64_t scratch = attention_scratch_bytes(q.desc, k.desc, v.desc, attrs, threads, table);
  run_on_threads(inputs, {&out, &lse}, attrs, scratch, threads,
                 [&](const KernelContext& ctx) { run_attention(ctx, table); });
  EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
  const double unit = c.dtype == DType::f32    ? 2e-6 + 1e-8 * static_cast<double>(c.d)
                      : c.dtype == DType::bf16 ? 1.0 / 128
                                               : 1.0 / 1024;
  int wrong = 0;
  for (i64 b = 0; b < c.batch; ++b) {
    for (i64 t = 0; t < c.t; ++t) {
      // Up to 8 queries are in f32.
      const bool in_bf16 = c.in_bf16 && table.bf16 && c.dtype == DType::f32 && c.d % 2 == 0 && c.t > 8;
      const auto operand = [&](double x) { return in_bf16 ? rounded_to_bf16(x) : x; };
      std::vector<double> p(static_cast<std::size_t>(c.s));
      double top = -kInf, total = 0;
      for (i64 s = 0; s < c.s; ++s) {
        double x = 0;
        for (i64 d = 0; d < c.d; ++d)
          x += operand(q.get(place(q.desc, b, t, d))) * operand(k.get(place(k.desc, b, s, d)));
        x *= static_cast<double>(scale);
        if (c.mask != Case::kNoMask) {
          const double m = mask.get(place(mask_desc, b, t, s));
          x += mask_dtype == DType::b8 ? (m != 0 ? 0 : -kInf) : m;
        }
        if (c.causal && s > t) x = -kInf;
        p[static_cast<std::size_t>(s)] = x;
        top = std::max(top, x);
      }
      for (double& x : p) total += x = top == -kInf ? 0 : std::exp(x - top);
      const double want_lse = total == 0 ? -kInf : top + std::log(total);
      const double got_lse = lse.get(b * c.t + t);
      if (!(std::fabs(got_lse - want_lse) <= 2e-5) && got_lse != want_lse && ++wrong < 4) {
        ADD_FAILURE() << "lse of " << b << ", " << t << ": got " << got_lse << ", expected " << want_lse;
      }
      for (i64 d = 0; d < c.dv; ++d) {
        double want = 0;
        for (i64 s = 0; s < c.s; ++s) want += p[static_cast<std::size_t>(s)] * operand(v.get(place(v.desc, b, s, d)));
        want = total == 0 ? 0 : want / total;
        const double got = out.get(place(out.desc, b, t, d));
        // The softmax weights are rounded to bf16 as well.
        if (!(std::fabs(got - want) <= (in_bf16 ? 0x1p-8 : unit) * (1 + std::fabs(want))) && ++wrong < 4) {
          ADD_FAILURE() << "at [" << b << ", " << t << ", " << d << "]: got " << got << ", expected " << want;
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

void check_everywhere(const Case& c) {
  for (const simd::Isa isa : simd::available_isas_of<simd::AttentionTable>()) {
    check(c, isa, 1);
    check(c, isa, 2);
  }
}

TEST(Attention, EverySizeAroundTheBlocks) {
  for (const i64 t : {1, 2, 5, 6, 7, 8, 9, 16, 17, 32, 33, 40, 65}) {
    for (const i64 s : {1, 3, 12, 13, 47, 48, 49, 100, 191, 193, 400}) {
      check_everywhere({.t = t, .s = s});
      check_everywhere({.t = t, .s = s, .causal = true});
    }
  }
}

TEST(Attention, EveryHeadSize) {
  for (const i64 d : {1, 3, 8, 16, 31, 64, 80, 128, 512}) {
    for (const i64 dv : {1, 4, 17, 32, 33, 64, 500}) {
      for (const i64 t : {3, 20}) check_everywhere({.t = t, .s = 50, .d = d, .dv = dv});
    }
  }
}

TEST(Attention, EveryMask) {
  for (const auto mask : {Case::kBool, Case::kFloat, Case::kPadding, Case::kHalf, Case::kIdle, Case::kColumns}) {
    for (const i64 t : {1, 4, 20, 70}) {
      for (const i64 s : {5, 60, 210}) {
        for (const bool causal : {false, true}) check_everywhere({.t = t, .s = s, .mask = mask, .causal = causal});
      }
    }
  }
}

// Most words of bools and most numbers of the mask change nothing, and the last word of a row is short.
TEST(Attention, MasksThatSayLittle) {
  for (const auto mask : {Case::kBool, Case::kFloat, Case::kHalf, Case::kIdle})
    for (const i64 t : {9, 33, 71})
      for (const i64 s : {31, 32, 33, 97, 131})
        for (const unsigned hidden : {40u, 2000u}) check_everywhere({.t = t, .s = s, .mask = mask, .hidden = hidden});
}

// PyTorch adds -inf to the scores of hidden keys: a NaN score stays NaN. Any byte but 0 means that a key is seen.
TEST(Attention, BoolsAreBytes) {
  const i64 t = 33, s = 75, d = 8;
  for (const simd::Isa isa : simd::available_isas_of<simd::AttentionTable>())
    for (const i64 hidden : {0, 20, 74}) {
      TestTensor q(TensorDesc(DType::f32, Shape{1, t, d})), k(TensorDesc(DType::f32, Shape{1, s, d})), v(k.desc);
      TestTensor mask(TensorDesc(DType::b8, Shape{1, t, s})), out(q.desc);
      for (i64 i = 0; i < t * d; ++i) q.set(i, 1);
      for (i64 i = 0; i < s * d; ++i) k.set(i, 1), v.set(i, static_cast<double>(i / d));
      auto* bytes = static_cast<std::uint8_t*>(mask.data());
      for (i64 i = 0; i < t * s; ++i) bytes[i] = static_cast<std::uint8_t>(i % s == hidden ? 0 : 1 << (i % 8));
      const auto run = [&] {
        run_on_threads({&q, &k, &v, &mask}, {&out}, AttentionAttrs{1, 0, 1}, 0, 1,
                       [&](const KernelContext& ctx) { run_attention(ctx, simd::attention(isa)); });
      };
      run();
      const double mean =
          (static_cast<double>(s * (s - 1)) / 2 - static_cast<double>(hidden)) / static_cast<double>(s - 1);
      for (i64 i = 0; i < t * d; ++i) EXPECT_NEAR(out.get(i), mean, 1e-4) << i;
      k.set(hidden * d, std::numeric_limits<double>::quiet_NaN());
      run();
      for (i64 i = 0; i < t * d; ++i) EXPECT_TRUE(std::isnan(out.get(i))) << i;
    }
}

TEST(Attention, MediumPrecisionRoundsOperandsToBf16WhereTheCpuMultipliesIt) {
  for (const i64 t : {8, 9, 16, 17, 32, 33, 41, 70}) {
    for (const i64 s : {1, 2, 11, 12, 13, 71, 72, 73, 145}) {
      for (const bool causal : {false, true}) check_everywhere({.t = t, .s = s, .causal = causal, .in_bf16 = true});
    }
  }
  for (const i64 d : {2, 3, 30, 64, 128, 512}) {
    for (const i64 dv : {1, 17, 64, 500}) check_everywhere({.t = 20, .s = 80, .d = d, .dv = dv, .in_bf16 = true});
  }
  check_everywhere({.t = 35, .s = 90, .mask = Case::kFloat, .interleaved = true, .in_bf16 = true});
  check_everywhere({.t = 35, .s = 90, .dtype = DType::f16, .shared = true, .in_bf16 = true});
}

TEST(Attention, HalfPrecisionAndLayouts) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const i64 t : {1, 7, 35}) {
      for (const bool shared : {false, true}) {
        check_everywhere(
            {.batch = 3, .t = t, .s = 61, .d = 24, .dv = 40, .dtype = dtype, .shared = shared, .interleaved = true});
      }
    }
  }
}

TEST(Attention, KeysAndValuesOfManyQueriesAreCopied) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool shared : {false, true})
      for (const bool causal : {false, true})
        check_everywhere({.batch = 3,
                          .t = 150,
                          .s = 70,
                          .d = 24,
                          .dv = 40,
                          .dtype = dtype,
                          .causal = causal,
                          .shared = shared,
                          .interleaved = true});
  check_everywhere({.t = 128, .s = 9, .d = 7, .dv = 5, .mask = Case::kPadding, .interleaved = true});
  for (const simd::Isa isa : simd::available_isas_of<simd::AttentionTable>()) {
    const auto bytes = [&](i64 t, bool interleaved, DType dtype) {
      const TensorDesc rows = rows_desc(dtype, 2, t, 8, interleaved, false);
      return attention_scratch_bytes(rows, rows, rows, {}, 2, simd::attention(isa));
    };
    const bool multiplies_bf16 = simd::attention(isa).bf16;
    EXPECT_EQ(bytes(128, true, DType::f32), 2 * 128 * 16 * 4);
    EXPECT_EQ(bytes(128, false, DType::f16), 2 * 128 * 16 * 4);
    EXPECT_EQ(bytes(128, false, DType::bf16), multiplies_bf16 ? 0 : 2 * 128 * 16 * 4);
    EXPECT_EQ(bytes(128, false, DType::f32), 0);                                // rows are contiguous already
    EXPECT_EQ(bytes(4 * simd::attention(isa).block - 1, true, DType::f32), 0);  // too few queries for a copy to pay
    EXPECT_EQ(bytes(1 << 14, true, DType::f32), 1 << 21);
    EXPECT_EQ(bytes((1 << 14) + 1, true, DType::f32), 0);  // too large for a second-level cache
  }
}

// The softmax's shift follows the largest score only once that is far above it.
TEST(Attention, ScoresThatRise) {
  for (const i64 t : {9, 33, 150})
    for (const i64 s : {97, 193, 400})
      for (const bool interleaved : {false, true})
        check_everywhere({.t = t, .s = s, .interleaved = interleaved, .rising = true});
}

TEST(Attention, WithoutKeysTheResultIsZero) {
  check_everywhere({.t = 3, .s = 0});
  check_everywhere({.t = 40, .s = 0});
  check_everywhere({.t = 0, .s = 5});
  check_everywhere({.batch = 0, .t = 5, .s = 5});
}

TEST(Attention, NanStaysWithTheQueriesThatSeeIt) {
  for (const simd::Isa isa : simd::available_isas_of<simd::AttentionTable>()) {
    for (const i64 t : {4, 40}) {
      const i64 s = 40, d = 8;
      TestTensor q(TensorDesc(DType::f32, Shape{1, t, d})), k(TensorDesc(DType::f32, Shape{1, s, d})), v(k.desc);
      TestTensor out(q.desc);
      for (i64 i = 0; i < t * d; ++i) q.set(i, 1);
      for (i64 i = 0; i < s * d; ++i) k.set(i, 1), v.set(i, 1);
      q.set(2 * d, std::numeric_limits<double>::quiet_NaN());
      run_on_threads({&q, &k, &v}, {&out}, AttentionAttrs{1, 0, 0}, 0, 1,
                     [&](const KernelContext& ctx) { run_attention(ctx, simd::attention(isa)); });
      for (i64 i = 0; i < t * d; ++i) {
        if (i / d == 2) {
          EXPECT_TRUE(std::isnan(out.get(i)));
        } else {
          EXPECT_NEAR(out.get(i), 1, 1e-6);
        }
      }
    }
  }
}

}  // namespace
}  // namespace graft
