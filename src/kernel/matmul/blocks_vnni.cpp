// Compiled for AVX2 and for AVX-512 with VNNI only: see cmake/GraftLibrary.cmake.
#include "kernel/matmul/blocks_vec.h"
#include "kernel/matmul/tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

#if defined(__AVX512VNNI__)
typedef __m512i vb;
constexpr int kTileM = 6;
// Up to this many rows form one tile, so that each panel is read once: that matters more than spilled registers.
constexpr int kMostRows = 8;
#else
typedef __m256i vb;
constexpr int kTileM = 2, kMostRows = 2;
#endif
constexpr int kVectorBytes = sizeof(vb);
constexpr int kParts = 64 / kVectorBytes;  // vectors across a panel
static_assert(kLanes * kParts == kPanelColumns && kPanel == 2 * kLanes);
// Prefetch distances of the first tile of rows, in bytes: it reads panels from memory, later tiles find them in a
// cache. A core waits for fewer lines of its first-level cache at once (24 on Zen 4) than memory could send meanwhile,
// so memory is asked by the second-level cache, and only what is there soon goes to the first. One row of q8_0 leaves a
// core little to compute: 8192 ahead it reads a large matrix at 0.9 of the rate, as two rows do at either distance;
// four and more are at that rate with 8192, and at 0.85 of it with 2048 (Zen 4).
constexpr i64 kAheadInL2 = 8192, kAheadInL2OfOneRow = 2048, kAheadInL1 = 2048, kAheadInL1OfFewBits = 4096;

GRAFT_VEC vb load_bytes(const std::byte* p) {
#if defined(__AVX512VNNI__)
  return _mm512_loadu_si512(p);
#else
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
#endif
}

GRAFT_VEC vb splat_int(std::int32_t x) {
#if defined(__AVX512VNNI__)
  return _mm512_set1_epi32(x);
#else
  return _mm256_set1_epi32(x);
#endif
}

GRAFT_VEC std::int32_t int_at(const std::int8_t* p) {
  std::int32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}

GRAFT_VEC vb low_half(vb x) {
#if defined(__AVX512VNNI__)
  return _mm512_and_si512(x, _mm512_set1_epi8(15));
#else
  return _mm256_and_si256(x, _mm256_set1_epi8(15));
#endif
}
GRAFT_VEC vb high_half(vb x) {
#if defined(__AVX512VNNI__)
  return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
#else
  return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
#endif
}

// Moves bits [from, from + count) of each byte of x to bit `to`.
template <int count>
GRAFT_VEC vb move_bits(vb x, int from, int to) {
  typedef std::uint16_t words __attribute__((vector_size(sizeof(vb))));
  const vb shifted = to > from ? (vb)((words)x << (to - from)) : (vb)((words)x >> (from - to));
  const auto mask = static_cast<char>(((1 << count) - 1) << to);
#if defined(__AVX512VNNI__)
  return _mm512_and_si512(shifted, _mm512_set1_epi8(mask));
#else
  return _mm256_and_si256(shifted, _mm256_set1_epi8(mask));
#endif
}

GRAFT_VEC vb bits_or(vb x, vb y) {
#if defined(__AVX512VNNI__)
  return _mm512_or_si512(x, y);
#else
  return _mm256_or_si256(x, y);
#endif
}

// The values of four-bit iq4_nl quants, and the zero point that dot4() needs for them.
constexpr int kZeroOfIq4 = kParts == 1 ? 128 : 0;
GRAFT_VEC vb iq4_values(vb x) {
  __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values));
#if defined(__AVX512VNNI__)
  table = _mm_xor_si128(table, _mm_set1_epi8(static_cast<char>(0x80)));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x);
#else
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x);
#endif
}

// The values of mxfp4, with the zero point that makes them unsigned.
constexpr int kZeroOfMxfp4 = 12;
GRAFT_VEC vb mxfp4_values(vb x) {
  const __m128i table = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kMxfp4Values)),
                                     _mm_set1_epi8(static_cast<char>(kZeroOfMxfp4)));
#if defined(__AVX512VNNI__)
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x);
#else
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x);
#endif
}

// One fma subtracts the bias kSumBegin and scales, with the same bits as conversion and multiplication: 1.5 * 2^23
// times a scale is exact, as it has 2 significant bits times at most 19 (those of an f16 and a byte).
GRAFT_VEC vf scale_sum(vb sum, vf scale, vf scaled_begin) { return fma((vf)sum, scale, -scaled_begin); }

GRAFT_VEC vf to_float(vb x) {
#if defined(__AVX512VNNI__)
  return (vf)_mm512_cvtepi32_ps(x);
#else
  return (vf)_mm256_cvtepi32_ps(x);
#endif
}

// kLanes unsigned bytes, widened.
GRAFT_VEC vb ints_of_u8(const std::byte* p) {
#if defined(__AVX512VNNI__)
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
}
GRAFT_VEC vf load_u8(const std::byte* p) { return to_float(ints_of_u8(p)); }
GRAFT_VEC vf load_high_halves(const std::byte* p) { return to_float((vb)((vi)ints_of_u8(p) >> 4)); }

// kLanes signed bytes, widened.
GRAFT_VEC vb ints_of_s8(const std::byte* p) {
#if defined(__AVX512VNNI__)
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
}
GRAFT_VEC vf load_s8(const std::byte* p) { return to_float(ints_of_s8(p)); }

// 2^(e - 128) of kLanes bytes e: of 0 and 1 it is a denormal number, whose only bit lies in the mantissa.
GRAFT_VEC vf load_powers(const std::byte* p) {
#if defined(__AVX512VNNI__)
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  return (vf)_mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(e, _mm512_set1_epi32(1)), small, normal);
#else
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  return (vf)_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1)));
#endif
}

GRAFT_VEC vf load_scales(const std::byte* p, int part) {
  return load_f16(reinterpret_cast<const std::uint16_t*>(p) + part * kLanes);
}

// Bytes of ggml's q8_0, stored unsigned in panels, as dot4<true>() takes them.
GRAFT_VEC vb q8_values(vb x) {
#if defined(__AVX512VNNI__)
  return x;
#else
  return _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(0x80)));
#endif
}

// sums[i] += w[4 i] * a[4 i] + ... + w[4 i + 3] * a[4 i + 3]; `a` is signed. w is unsigned; `wide` w uses all eight
// bits: with AVX-512 unsigned with the zero point 128, with AVX2 signed.
template <bool wide>
GRAFT_VEC vb dot4(vb sums, vb w, vb a) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sums, w, a);
#else
  // AVX2 adds pairs of products in 16 bits: they fit for |w| <= 128.
  if (wide) {
    a = _mm256_sign_epi8(a, w);
    w = _mm256_abs_epi8(w);
  }
  return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
#endif
}

// dot4() of quants of at most three bits, whose sums over half a block fit 16 bits: for each column one number of 32
// bits with AVX-512, with AVX2 two of 16 bits that add up to it, which takes two instructions instead of three.
GRAFT_VEC vb dot4_small(vb sums, vb w, vb a) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sums, w, a);
#else
  return _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, a));
#endif
}
// sums += small * scale, for sums of dot4_small() and scales of scales_of_small(). Only the low 16 bits of AVX-512's
// sums count.
GRAFT_VEC vb add_scaled(vb sums, vb small, vb scale) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sums, small, scale);
#else
  return _mm256_add_epi32(sums, _mm256_madd_epi16(small, scale));
#endif
}
// Of 16 bits in each 32.
GRAFT_VEC vb scales_of_small(vb x) {
#if defined(__AVX512VNNI__)
  return x;
#else
  return _mm256_or_si256(x, _mm256_slli_epi32(x, 16));
#endif
}

enum class Scales {
  f16,       // one scale for a block
  minimums,  // u8 scale and minimum for a block, f16 units of both
  s8,        // s8 scale for a block, and an f16 unit
  halves,    // s8 scale for half a block, and an f16 unit
  powers,    // u8 exponent of the scale of a block
  // Of formats of few bits: sums of halves of a block are scaled as integers and added, before the sum becomes a float.
  nibbles,   // u4 scale and u4 minimum for half a block, f16 units of both
  integers,  // s8 scale for half a block, and an f16 unit
  groups,    // one f16 scale for all blocks of a group
};

// How a format is decoded: its zero point, how scales are stored, and how stored bytes become quants: low() gives
// quants 4 i to 4 i + 3, high(), where a byte holds two, those 16 further on. `extra` holds the bits above the low
// four.
struct Q8_0 {
  static constexpr PanelFormat kFormat = PanelFormat::q8_0;
  static constexpr int kZero = kParts == 1 ? 128 : 0;
  static constexpr Scales kScales = Scales::f16;
  static constexpr bool kWide = true, kHalves = false, kExtra = false;
  GRAFT_VEC vb low(vb x, vb, int) { return q8_values(x); }
  GRAFT_VEC vb high(vb x, vb, int) { return x; }
};
struct Q4_0 {
  static constexpr PanelFormat kFormat = PanelFormat::q4_0;
  static constexpr int kZero = 8;
  static constexpr Scales kScales = Scales::f16;
  static constexpr bool kWide = false, kHalves = true, kExtra = false;
  GRAFT_VEC vb low(vb x, vb, int) { return low_half(x); }
  GRAFT_VEC vb high(vb x, vb, int) { return high_half(x); }
};
struct Q4_K : Q4_0 {
  static constexpr PanelFormat kFormat = PanelFormat::q4_k;
  static constexpr int kZero = 0;
  static constexpr Scales kScales = Scales::minimums;
};
struct Q5_K : Q4_K {
  static constexpr PanelFormat kFormat = PanelFormat::q5_k;
  static constexpr bool kExtra = true;
  GRAFT_VEC vb low(vb x, vb extra, int i) { return bits_or(low_half(x), move_bits<1>(extra, i, 4)); }
  GRAFT_VEC vb high(vb x, vb extra, int i) { return bits_or(high_half(x), move_bits<1>(extra, 4 + i, 4)); }
};
struct Q6_K {
  static constexpr PanelFormat kFormat = PanelFormat::q6_k;
  static constexpr int kZero = 32;
  static constexpr Scales kScales = Scales::halves;
  GRAFT_VEC vb low(vb x, vb extra, int i) { return bits_or(low_half(x), move_bits<2>(extra, 2 * i, 4)); }
  GRAFT_VEC vb high(vb x, vb extra, int i) { return bits_or(high_half(x), move_bits<2>(extra, 2 * i, 4)); }
};
struct IQ4_NL : Q4_0 {
  static constexpr PanelFormat kFormat = PanelFormat::iq4_nl;
  static constexpr int kZero = kZeroOfIq4;
  static constexpr bool kWide = true;
  GRAFT_VEC vb low(vb x, vb, int) { return iq4_values(low_half(x)); }
  GRAFT_VEC vb high(vb x, vb, int) { return iq4_values(high_half(x)); }
};
struct IQ4_XS : IQ4_NL {
  static constexpr PanelFormat kFormat = PanelFormat::iq4_xs;
  static constexpr Scales kScales = Scales::s8;
};

struct MXFP4 : Q4_0 {
  static constexpr PanelFormat kFormat = PanelFormat::mxfp4;
  static constexpr int kZero = kZeroOfMxfp4;
  static constexpr Scales kScales = Scales::powers;
  GRAFT_VEC vb low(vb x, vb, int) { return mxfp4_values(low_half(x)); }
  GRAFT_VEC vb high(vb x, vb, int) { return mxfp4_values(high_half(x)); }
};

// Formats of few bits: a vector has four elements of each byte, quants() gives elements 4 i to 4 i + 3 of half `h`.
struct Q2_K {
  static constexpr PanelFormat kFormat = PanelFormat::q2_k;
  static constexpr int kZero = 0;
  static constexpr Scales kScales = Scales::nibbles;
  static constexpr bool kExtra = false;
  GRAFT_VEC vb quants(vb x, vb, int, int i) { return move_bits<2>(x, 2 * i, 0); }
  GRAFT_VEC vb scales(const std::byte* p) { return scales_of_small(low_half(ints_of_u8(p))); }
};
struct Q3_K {
  static constexpr PanelFormat kFormat = PanelFormat::q3_k;
  static constexpr int kZero = 4;
  static constexpr Scales kScales = Scales::integers;
  static constexpr bool kExtra = true;
  GRAFT_VEC vb quants(vb x, vb extra, int h, int i) {
    return bits_or(move_bits<2>(x, 2 * i, 0), move_bits<1>(extra, 4 * h + i, 2));
  }
  GRAFT_VEC vb scales(const std::byte* p) { return scales_of_small((vb)((vi)ints_of_s8(p) & 0xffff)); }
};
struct TQ2_0 : Q2_K {
  static constexpr PanelFormat kFormat = PanelFormat::tq2_0;
  static constexpr int kZero = 1;
  static constexpr Scales kScales = Scales::groups;
};
struct TQ1_0 : TQ2_0 {
  static constexpr PanelFormat kFormat = PanelFormat::tq1_0;
};
template <typename F>
constexpr bool kScalesOfHalves = F::kScales == Scales::nibbles || F::kScales == Scales::integers;
template <typename F>
constexpr bool kFewBits = kScalesOfHalves<F> || F::kScales == Scales::groups;
// Whether a byte has more than one quant: a core that unpacks them looks less far ahead by itself.
template <typename F>
constexpr bool kUnpacks = F::kFormat != PanelFormat::q8_0;

// Distance to the bytes read `ahead` bytes later than byte `at`, for `panels` panels read side by side, each of
// `stride` bytes; the next group of panels follows them.
GRAFT_VEC i64 bytes_ahead(i64 at, i64 ahead, i64 stride, i64 panels) {
  return at + ahead < stride ? ahead : ahead + (panels - 1) * stride;
}

// Localities of __builtin_prefetch.
constexpr int kIntoL1 = 3, kIntoL2 = 2;
template <int bytes, int locality>
GRAFT_VEC void prefetch(const std::byte* p) {
#pragma GCC unroll 8
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, locality);
}

// What a tile of rows asks memory for while it computes, some lines with each block: its own panels, nothing, or half
// of each block of the panels that many bytes further on. A burst of them would wait: a core has few lines under way.
constexpr i64 kOwnPanels = -1, kNothing = 0;
// Of tile t of `tiles`: the first and the second, or after the first panels those after it, ask for the next panels,
// `next` bytes further on (0: there are none).
GRAFT_VEC i64 asked_by(i64 t, i64 tiles, bool first_panels, i64 next, i64 quant_bytes) {
  const bool own = first_panels || tiles == 1;
  if (own && t == 0) return kOwnPanels;
  const i64 half = own ? t - 1 : t;
  return next == 0 || half > 1 ? kNothing : next + half * quant_bytes / 2;
}

// The sums of one block of 32 for M rows and N vectors of columns.
template <typename F, int M, int N>
GRAFT_VEC void block_sums(const std::byte* const (&q)[N], const std::int8_t* a, i64 depth, vb (&sums)[M][N]) {
  constexpr int kVectors = F::kHalves ? 4 : 8;
  vb extra[N] = {};
  if constexpr (F::kExtra) {
    for (int n = 0; n < N; ++n) extra[n] = load_bytes(q[n] + kVectors * kPanelVectorBytes);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    vb w[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) w[n] = load_bytes(q[n] + i * kPanelVectorBytes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const std::int8_t* row = a + m * depth + i * 4;
      const vb low = splat_int(int_at(row));
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) sums[m][n] = dot4<F::kWide>(sums[m][n], F::low(w[n], extra[n], i), low);
      if (F::kHalves) {
        const vb high = splat_int(int_at(row + 16));
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) sums[m][n] = dot4<F::kWide>(sums[m][n], F::high(w[n], extra[n], i), high);
      }
    }
  }
}

// The same for formats of few bits. Where halves of a block have `scales`, the sums are multiplied by them; `begin` is
// where the sums of halves begin, for rows `stride` apart.
template <typename F, int M, int N>
GRAFT_VEC void block_sums_of_few_bits(const std::byte* const (&q)[N], const std::byte* const (&scales)[N],
                                      const std::int8_t* a, i64 depth, const std::int32_t* begin, i64 stride,
                                      vb (&sums)[M][N]) {
  vb extra[N] = {}, small[M][N];
  if constexpr (F::kExtra) {
    for (int n = 0; n < N; ++n) extra[n] = load_bytes(q[n] + 2 * kPanelVectorBytes);
  }
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    vb x[N];
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) x[n] = load_bytes(q[n] + h * kPanelVectorBytes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) {
        if (kScalesOfHalves<F>) {
          small[m][n] = splat_int(F::kZero == 0 ? 0 : begin[m * stride + h]);
        } else if (h == 0) {
          small[m][n] = kParts == 1 ? sums[m][n] : splat_int(0);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      vb w[N];
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n) w[n] = F::quants(x[n], extra[n], h, i);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const vb four = splat_int(int_at(a + m * depth + h * 16 + i * 4));
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) small[m][n] = dot4_small(small[m][n], w[n], four);
      }
    }
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      const vb scale = kScalesOfHalves<F> ? F::scales(scales[n] + h * 16) : scales_of_small(splat_int(1));
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        if (kScalesOfHalves<F>) {
          sums[m][n] = add_scaled(sums[m][n], small[m][n], scale);
        } else if (h == 1) {
          sums[m][n] = kParts == 1 ? small[m][n] : add_scaled(sums[m][n], small[m][n], scale);
        }
      }
    }
  }
}

// `out` has a row stride of out_row elements. Without `asks`, `ahead` is kNothing: a loop that
// does not test it is faster.
template <typename F, int M, int N, bool asks>
void tile(const std::byte* panels, i64 panel_stride, const QuantizedRows& rows, i64 row, i64 depth, i64 ahead,
          float* out, i64 out_row) {
  const i64 blocks = depth / kPanelBlock;
  const std::byte* base[N];
  for (int n = 0; n < N; ++n) base[n] = panels + n / kParts * panel_stride;
  const std::int8_t* a = rows.q + row * depth;
  const float* scale = rows.scale + row * blocks;
  constexpr PanelLayout kLayout = layout_of(F::kFormat);
  constexpr int kGroup = kLayout.group, kQuantBytes = kLayout.quant_bytes;
  constexpr bool kMinimums = F::kScales == Scales::minimums || F::kScales == Scales::nibbles;
  constexpr int kSums = kScalesOfHalves<F> ? 2 : 1;  // of a block
  const std::int32_t* sum = kMinimums ? nullptr : rows.sum + row * blocks * kSums;
  const float* row_sum = kMinimums ? rows.scaled_sum + row * blocks * kSums : nullptr;
  constexpr int kPanels = N / kParts;
  vf total[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) total[m][n] = zero();
  }
  vf unit[N] = {}, unit_of_minimum[N] = {};
  // Adds block `b`, the g-th of a group that starts at `start` of its panel and has its scales at `tail`.
  const auto block = [&](i64 b, i64 g, i64 start, i64 tail) __attribute__((always_inline)) {
    vb sums[M][N];
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n)
        sums[m][n] = splat_int(F::kZero == 0 || kScalesOfHalves<F> ? kSumBegin : sum[m * blocks + b]);
    }
    const std::byte* q[N];
    for (int n = 0; n < N; ++n) q[n] = base[n] + start + g * kQuantBytes + n % kParts * kVectorBytes;
    if (asks && ahead == kOwnPanels) {
      const i64 at = panel_bytes(F::kFormat, b * kPanelBlock);
      const i64 far = bytes_ahead(at, M > 1 || kUnpacks<F> ? kAheadInL2 : kAheadInL2OfOneRow, panel_stride, kPanels);
      const i64 near = bytes_ahead(at, kFewBits<F> ? kAheadInL1OfFewBits : kAheadInL1, panel_stride, kPanels);
#pragma GCC unroll 2
      for (int n = 0; n < N; n += kParts) {
        prefetch<kQuantBytes, kIntoL2>(q[n] + far);
        if (F::kScales != Scales::groups || g == 0) prefetch<1, kIntoL2>(base[n] + tail + g * 32 + far);
        if constexpr (kUnpacks<F>) prefetch<kQuantBytes, kIntoL1>(q[n] + near);
      }
    } else if (asks) {
#pragma GCC unroll 2
      for (int n = 0; n < N; n += kParts) {
        prefetch<kQuantBytes / 2, kIntoL2>(q[n] + ahead);
        if (F::kScales != Scales::groups || g == 0) prefetch<1, kIntoL2>(base[n] + tail + g * 32 + ahead);
      }
    }
    if constexpr (kFewBits<F>) {
      const std::byte* scales[N];
      for (int n = 0; n < N; ++n) scales[n] = base[n] + tail + g * 32 + n % kParts * kLanes;
      const std::int32_t* begin = kMinimums ? nullptr : sum + b * kSums;
      block_sums_of_few_bits<F, M, N>(q, scales, a + b * kPanelBlock, depth, begin, blocks * kSums, sums);
    } else {
      block_sums<F, M, N>(q, a + b * kPanelBlock, depth, sums);
    }
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      const std::byte* at = base[n] + tail;
      const int lane = n % kParts * kLanes;
      vf s;
      if constexpr (F::kScales == Scales::nibbles) {
        s = unit[n];
        const vf minimum0 = load_high_halves(at + g * 32 + lane) * unit_of_minimum[n];
        const vf minimum1 = load_high_halves(at + g * 32 + 16 + lane) * unit_of_minimum[n];
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const float* x = row_sum + (m * blocks + b) * kSums;
          total[m][n] = fma(-minimum1, splat(x[1]), fma(-minimum0, splat(x[0]), total[m][n]));
        }
      } else if (kMinimums) {
        s = load_u8(at + g * 16 + lane) * unit[n];
        const vf minimum = load_u8(at + 128 + g * 16 + lane) * unit_of_minimum[n];
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) total[m][n] = fma(-minimum, splat(row_sum[m * blocks + b]), total[m][n]);
      } else if (F::kScales == Scales::s8) {
        s = load_s8(at + g * 16 + lane) * unit[n];
      } else if (F::kScales == Scales::integers || F::kScales == Scales::groups) {
        s = unit[n];
      } else if (F::kScales == Scales::powers) {
        s = load_powers(at + g * 16 + lane);
      } else {
        s = load_scales(at + g * 32, n % kParts);
      }
      if constexpr (F::kScales == Scales::powers) {
        // The bias times a large power would be infinite.
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const vf product = ((vf)sums[m][n] - splat(kSumBeginAsFloat)) * s;
          total[m][n] = fma(product, splat(scale[m * blocks + b]), total[m][n]);
        }
        continue;
      }
      const vf begin = s * splat(kSumBeginAsFloat);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        total[m][n] = fma(scale_sum(sums[m][n], s, begin), splat(scale[m * blocks + b]), total[m][n]);
      }
    }
  };
  if constexpr (M > 3 && kGroup == 2) {
    // A single loop, so that all totals stay in registers.
    i64 start = 0;
    for (i64 b = 0; b + 2 <= blocks; b += 2, start += panel_bytes(F::kFormat, 2 * kPanelBlock)) {
      block(b, 0, start, start + 2 * kQuantBytes);
      block(b + 1, 1, start, start + 2 * kQuantBytes);
    }
    if (blocks % 2 != 0) block(blocks - 1, 0, start, start + kQuantBytes);
  } else {
    for (i64 first = 0; first < blocks; first += kGroup) {
      const i64 group = smaller(kGroup, blocks - first);
      const i64 tail = group * kQuantBytes;
      if (kMinimums) {
        for (int n = 0; n < N; ++n) {
          unit[n] = load_scales(base[n] + tail + 256, n % kParts);
          unit_of_minimum[n] = load_scales(base[n] + tail + 288, n % kParts);
        }
      } else if (F::kScales == Scales::s8) {
        for (int n = 0; n < N; ++n) unit[n] = load_scales(base[n] + tail + 128, n % kParts);
      } else if (F::kScales == Scales::integers) {
        for (int n = 0; n < N; ++n) unit[n] = load_scales(base[n] + tail + 256, n % kParts);
      } else if (F::kScales == Scales::groups) {
        for (int n = 0; n < N; ++n) unit[n] = load_scales(base[n] + tail, n % kParts);
      }
      for (i64 g = 0; g < group; ++g) block(first + g, g, 0, tail);
      for (int n = 0; n < N; ++n) base[n] += panel_bytes(F::kFormat, group * kPanelBlock);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) store(out + m * out_row + n * kLanes, total[m][n]);
  }
}

// q6_k has a scale for 16 elements: two sums per block, for one vector of columns at a time, the `part`-th of a panel.
template <int M>
void tile_of_q6_k(const std::byte* panel, int part, const QuantizedRows& rows, i64 row, i64 depth, i64 ahead,
                  float* out, i64 out_row) {
  constexpr int kQuantBytes = layout_of(PanelFormat::q6_k).quant_bytes;
  const i64 blocks = depth / kPanelBlock;
  const std::int8_t* a = rows.q + row * depth;
  const float* scale = rows.scale + row * blocks;
  const std::int32_t* sum = rows.sum + row * blocks * 2;
  vf total[M];
  for (int m = 0; m < M; ++m) total[m] = zero();
  for (i64 first = 0; first < blocks; first += 8, panel += panel_bytes(PanelFormat::q6_k, 256)) {
    const std::byte* tail = panel + 8 * kQuantBytes;
    const vf unit = load_scales(tail + 256, part);
    for (int g = 0; g < 8; ++g) {
      const i64 b = first + g;
      const std::byte* q = panel + g * kQuantBytes + part * kVectorBytes;
      if (ahead == kOwnPanels) {
        prefetch<kQuantBytes, kIntoL2>(q + kAheadInL2);
        prefetch<kQuantBytes, kIntoL1>(q + kAheadInL1);
      } else if (ahead != kNothing) {
        prefetch<kQuantBytes / 2, kIntoL2>(q + ahead);
      }
      const vb high0 = load_bytes(q + 256), high1 = load_bytes(q + 320);
      vb sums[M][2];
      for (int m = 0; m < M; ++m) {
        for (int h = 0; h < 2; ++h) sums[m][h] = splat_int(sum[(m * blocks + b) * 2 + h]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const vb x = load_bytes(q + i * 64);
        const vb w0 = Q6_K::low(x, high0, i), w1 = Q6_K::high(x, high1, i);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const std::int8_t* at = a + m * depth + b * kPanelBlock + i * 4;
          sums[m][0] = dot4<false>(sums[m][0], w0, splat_int(int_at(at)));
          sums[m][1] = dot4<false>(sums[m][1], w1, splat_int(int_at(at + 16)));
        }
      }
      for (int h = 0; h < 2; ++h) {
        const vf s = load_s8(tail + (g * 2 + h) * 16 + part * kLanes) * unit;
        const vf begin = s * splat(kSumBeginAsFloat);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          total[m] = fma(scale_sum(sums[m][h], s, begin), splat(scale[m * blocks + b]), total[m]);
        }
      }
    }
  }
  for (int m = 0; m < M; ++m) store(out + m * out_row, total[m]);
}

using TileOfRows = void (*)(const std::byte*, i64, const QuantizedRows&, i64, i64, i64, float*, i64);

#if defined(__AVX512VNNI__)
template <typename F, int N>
constexpr TileOfRows kTilesOfRows[kMostRows] = {tile<F, 1, N, true>, tile<F, 2, N, true>, tile<F, 3, N, true>,
                                                tile<F, 4, N, true>, tile<F, 5, N, true>, tile<F, 6, N, true>,
                                                tile<F, 7, N, true>, tile<F, 8, N, true>};
// Of several tiles, which have four rows or more, most ask for nothing.
template <typename F>
constexpr TileOfRows kTilesThatAskNothing[kMostRows] = {
    nullptr, nullptr, nullptr, tile<F, 4, 2, false>, tile<F, 5, 2, false>, tile<F, 6, 2, false>, nullptr, nullptr};
#else
template <typename F, int N>
constexpr TileOfRows kTilesOfRows[kMostRows] = {tile<F, 1, N, true>, tile<F, 2, N, true>};
template <typename F>
constexpr TileOfRows kTilesThatAskNothing[kMostRows] = {tile<F, 1, 2, false>, tile<F, 2, 2, false>};
#endif

using TileOfQ6K = void (*)(const std::byte*, int, const QuantizedRows&, i64, i64, i64, float*, i64);
#if defined(__AVX512VNNI__)
constexpr TileOfQ6K kTilesOfQ6K[kMostRows] = {tile_of_q6_k<1>, tile_of_q6_k<2>, tile_of_q6_k<3>, tile_of_q6_k<4>,
                                              tile_of_q6_k<5>, tile_of_q6_k<6>, tile_of_q6_k<7>, tile_of_q6_k<8>};
#else
constexpr TileOfQ6K kTilesOfQ6K[kMostRows] = {tile_of_q6_k<1>, tile_of_q6_k<2>};
#endif

template <typename F>
void tiles_of(const std::byte* panels, const QuantizedRows& quantized, i64 rows, i64 depth, i64 columns, i64 j0, i64 j1,
              const Epilogue& e) {
  alignas(64) float tile[kMostRows * kPanel];
  const i64 stride = panel_bytes(F::kFormat, depth);
  // As few tiles as possible, of equal heights.
  const i64 turns = rows <= kMostRows ? 1 : (rows + kTileM - 1) / kTileM;
  // Without an epilogue, sums are stored straight to the output.
  const bool plain = e.alpha == 1.f && e.bias == nullptr && e.activation == Activation::none && e.out_j == 1 &&
                     e.out_dtype == DType::f32;
  for (i64 j = j0; j < j1; j += kPanel) {
    const int width = static_cast<int>(smaller(kPanel, columns - j));
    // Two vectors of columns; the second may be past the last panel.
    const bool two = kParts == 2 || width > kPanelColumns;
    const bool in_place = plain && width == kPanel;
    const i64 out_row = in_place ? e.out_r : kPanel;
    const std::byte* at = panels + j / kPanelColumns * stride;
    const i64 next = j + kPanel < j1 ? kPanel / kPanelColumns * stride : 0;
    i64 left = turns;
    for (i64 r = 0, count = 0; r < rows; r += count, --left) {
      count = (rows - r + left - 1) / left;
      const i64 ahead = asked_by(turns - left, turns, j == j0, next, layout_of(F::kFormat).quant_bytes);
      float* out = in_place ? static_cast<float*>(e.out) + r * e.out_r + j : tile;
      if constexpr (F::kScales == Scales::halves) {
        for (int n = 0; n < (two ? 2 : 1); ++n) {
          const std::byte* panel = at + n / kParts * stride;
          kTilesOfQ6K[count - 1](panel, n % kParts, quantized, r, depth, ahead, out + n * kLanes, out_row);
        }
      } else if (kParts == 1 && kFewBits<F>) {  // side by side they would take too many registers
        for (int n = 0; n < (two ? 2 : 1); ++n)
          kTilesOfRows<F, 1>[count - 1](at + n * stride, stride, quantized, r, depth, ahead, out + n * kLanes, out_row);
      } else {
        const TileOfRows* const tiles = !two                ? kTilesOfRows<F, 1>
                                        : ahead == kNothing ? kTilesThatAskNothing<F>
                                                            : kTilesOfRows<F, 2>;
        tiles[count - 1](at, stride, quantized, r, depth, ahead, out, out_row);
      }
      if (!in_place) finish(e, out, r, static_cast<int>(count), j, width);
    }
  }
}

struct Products {
  PanelFormat format;
  int zero;
  Scales scales;
  void (*tiles)(const std::byte*, const QuantizedRows&, i64, i64, i64, i64, i64, const Epilogue&);
};
template <typename F>
constexpr Products kProductsOf = {F::kFormat, F::kZero, F::kScales, tiles_of<F>};

// In the order of PanelFormat.
constexpr Products kProducts[] = {kProductsOf<Q8_0>, kProductsOf<Q4_0>,   kProductsOf<Q4_K>,   kProductsOf<Q6_K>,
                                  kProductsOf<Q5_K>, kProductsOf<IQ4_NL>, kProductsOf<IQ4_XS>, kProductsOf<MXFP4>,
                                  kProductsOf<Q2_K>, kProductsOf<Q3_K>,   kProductsOf<TQ2_0>,  kProductsOf<TQ1_0>};
static_assert(std::ranges::equal(kProducts, kPanelLayouts, {}, &Products::format, &PanelLayout::format));

void tiles(PanelFormat format, const std::byte* panels, const QuantizedRows& quantized, i64 rows, i64 depth,
           i64 columns, i64 j0, i64 j1, const Epilogue& e) {
  kProducts[static_cast<int>(format)].tiles(panels, quantized, rows, depth, columns, j0, j1, e);
}

constexpr int kVectors = kPanelBlock / kLanes;

// The largest of all lanes.
GRAFT_VEC std::int32_t max_lanes(vi x) {
#if defined(__AVX512VNNI__)
  return _mm512_reduce_max_epi32((__m512i)x);
#else
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
#endif
}

// Rounds the numbers of a block, at most 127 in magnitude, to bytes, as two halves.
GRAFT_VEC void to_bytes(const vf (&x)[kVectors], __m128i (&halves)[2]) {
#if defined(__AVX512VNNI__)
  for (int h = 0; h < 2; ++h) halves[h] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)x[h]));
#else
  for (int h = 0; h < 2; ++h) {
    const __m256i a = _mm256_cvtps_epi32((__m256)x[2 * h]), b = _mm256_cvtps_epi32((__m256)x[2 * h + 1]);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    halves[h] = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
#endif
}

// The sum of 16 signed bytes.
GRAFT_VEC std::int32_t sum_bytes(__m128i x) {
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(x, _mm_set1_epi8(static_cast<char>(0x80))), _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 16 * 128;
}

void quantize(PanelFormat format, const float* from, i64 k0, i64 k1, i64 row, i64 depth, const QuantizedRows& to) {
  const int zero_point = kProducts[static_cast<int>(format)].zero;
  const Scales scales = kProducts[static_cast<int>(format)].scales;
  for (i64 k = k0; k < k1; k += kPanelBlock) {
    // Floats without sign order like their bits, and NaN orders last: a NaN makes the block's scale NaN.
    vf x[kVectors];
    vi largest = {};
    for (int i = 0; i < kVectors; ++i) {
      x[i] = load(from + k + i * kLanes);
      const vi size = as_int(absolute(x[i]));
      largest = size > largest ? size : largest;
    }
    const auto most = __builtin_bit_cast(float, max_lanes(largest));
    const float inverse = most > 1e-36f ? 127.f / most : 0.f;  // below this the inverse would be infinite
    for (int i = 0; i < kVectors; ++i) x[i] = x[i] * inverse;
    __m128i halves[2];
    to_bytes(x, halves);
    std::int32_t sums[2];
    for (int h = 0; h < 2; ++h) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to.q + row * depth + k + h * 16), halves[h]);
      sums[h] = sum_bytes(halves[h]);
    }
    const i64 block = row * (depth / kPanelBlock) + k / kPanelBlock;
    const float scale = most / 127.f;
    to.scale[block] = scale;
    if (scales == Scales::minimums) {
      to.scaled_sum[block] = scale * static_cast<float>(sums[0] + sums[1]);
    } else if (scales == Scales::nibbles) {
      for (int h = 0; h < 2; ++h) to.scaled_sum[block * 2 + h] = scale * static_cast<float>(sums[h]);
    } else if (scales == Scales::integers) {  // the low 16 bits: see dot4_small()
      for (int h = 0; h < 2; ++h) to.sum[block * 2 + h] = -zero_point * sums[h] & 0xffff;
    } else if (scales == Scales::halves) {
      for (int h = 0; h < 2; ++h) to.sum[block * 2 + h] = kSumBegin - zero_point * sums[h];
    } else {
      to.sum[block] = kSumBegin - zero_point * (sums[0] + sums[1]);
    }
  }
}

}  // namespace

const PanelTable kPanels = {kPanel, quantize, tiles};

}  // namespace graft::simd::GRAFT_ISA
