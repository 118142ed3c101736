#pragma once

// Registers of bytes, of 32-bit sums of their products, and of floats: V128 and V256 with AVX2, V512 with AVX-512 VNNI
// too. A kernel is a template over them; Widest is the largest. Included only by *_vnni.cpp: see vec.h.

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {

// The first n bytes; the others are zero.
GRAFT_VEC __m128i load_16(const std::uint8_t* p, i64 n);
GRAFT_VEC __m256i load_32(const std::uint8_t* p, i64 n);
GRAFT_VEC void store_16(std::uint8_t* p, __m128i v, i64 n);
GRAFT_VEC void store_32(std::uint8_t* p, __m256i v, i64 n);

// What all widths have in common, by the intrinsics mm_*.
#define GRAFT_REGISTER(mm, bits)                                                                              \
  using Ints = __m##bits##i;                                                                                  \
  using Floats = __m##bits;                                                                                   \
  static constexpr int kLanes = bits / 32, kBytes = bits / 8;                                                 \
  GRAFT_VEC Ints none() { return mm##_setzero_si##bits(); }                                                   \
  GRAFT_VEC Ints load(const void* p) { return *static_cast<const __m##bits##i_u*>(p); }                       \
  GRAFT_VEC void put(void* p, Ints x) { *static_cast<__m##bits##i_u*>(p) = x; }                               \
  GRAFT_VEC Ints splat(std::int32_t x) { return mm##_set1_epi32(x); }                                         \
  GRAFT_VEC Ints splat_short(std::int16_t x) { return mm##_set1_epi16(x); }                                   \
  GRAFT_VEC Ints splat_byte(std::uint8_t x) { return mm##_set1_epi8(static_cast<char>(x)); }                  \
  GRAFT_VEC Ints flipped(Ints a, Ints b) { return mm##_xor_si##bits(a, b); }                                  \
  GRAFT_VEC Ints low8(Ints a, Ints b) { return mm##_unpacklo_epi8(a, b); }                                    \
  GRAFT_VEC Ints high8(Ints a, Ints b) { return mm##_unpackhi_epi8(a, b); }                                   \
  GRAFT_VEC Ints low16(Ints a, Ints b) { return mm##_unpacklo_epi16(a, b); }                                  \
  GRAFT_VEC Ints high16(Ints a, Ints b) { return mm##_unpackhi_epi16(a, b); }                                 \
  GRAFT_VEC Ints add(Ints a, Ints b) { return mm##_add_epi32(a, b); }                                         \
  GRAFT_VEC Ints subtract(Ints a, Ints b) { return mm##_sub_epi32(a, b); }                                    \
  GRAFT_VEC Ints multiply(Ints a, Ints b) { return mm##_mullo_epi32(a, b); }                                  \
  template <int count>                                                                                        \
  GRAFT_VEC Ints shifted(Ints a) {                                                                            \
    return mm##_srai_epi32(a, count);                                                                         \
  }                                                                                                           \
  GRAFT_VEC Ints add16(Ints a, Ints b) { return mm##_adds_epi16(a, b); }                                      \
  GRAFT_VEC Ints clamped8(Ints x, Ints low, Ints high) { return mm##_min_epi8(mm##_max_epi8(x, low), high); } \
  GRAFT_VEC Ints packed32(Ints a, Ints b) { return mm##_packs_epi32(a, b); }                                  \
  GRAFT_VEC Ints packed16(Ints a, Ints b) { return mm##_packs_epi16(a, b); }                                  \
  GRAFT_VEC Floats no_floats() { return mm##_setzero_ps(); }                                                  \
  GRAFT_VEC Floats floats(const float* p) { return mm##_loadu_ps(p); }                                        \
  GRAFT_VEC void put_floats(float* to, Floats x) { mm##_storeu_ps(to, x); }                                   \
  GRAFT_VEC Floats all(float x) { return mm##_set1_ps(x); }                                                   \
  GRAFT_VEC Floats from(Ints x) { return mm##_cvtepi32_ps(x); }                                               \
  GRAFT_VEC Ints rounded(Floats x) { return mm##_cvtps_epi32(x); }                                            \
  GRAFT_VEC Floats times(Floats a, Floats b) { return mm##_mul_ps(a, b); }                                    \
  GRAFT_VEC Floats sum(Floats a, Floats b) { return mm##_add_ps(a, b); }                                      \
  GRAFT_VEC Floats fused(Floats a, Floats b, Floats c) { return mm##_fmadd_ps(a, b, c); }                     \
  GRAFT_VEC Floats least(Floats x, Floats most) { return mm##_min_ps(x, most); }                              \
  GRAFT_VEC Floats most(Floats x, Floats least) { return mm##_max_ps(x, least); }

// dot(): sums[i] + the four products of lane i; `a` is unsigned, `w` signed.
#if defined(__AVX512VNNI__)
#define GRAFT_DOT(mm, bits) \
  GRAFT_VEC Ints dot(Ints sums, Ints a, Ints w) { return mm##_dpbusd_epi32(sums, a, w); }
#else
// Without VNNI, products of the low seven bits and of the eighth are summed separately: each pair of them then fits the
// 16 bits of maddubs.
#define GRAFT_DOT(mm, bits)                                                                       \
  GRAFT_VEC Ints dot(Ints sums, Ints a, Ints w) {                                                 \
    const Ints one = mm##_set1_epi16(1), most = mm##_set1_epi8(127);                              \
    const Ints low = mm##_madd_epi16(mm##_maddubs_epi16(mm##_and_si##bits(a, most), w), one);     \
    const Ints high = mm##_madd_epi16(mm##_maddubs_epi16(mm##_andnot_si##bits(most, a), w), one); \
    return add(sums, add(low, high));                                                             \
  }
#endif

// put4(), put2() and put1(): n bytes of 4, 2 or 1 vectors of sums, which packed16() returns once, twice or four times.
// wide16() and wide32(): the bytes at p, flipped, as signed integers of 16 and 32 bits.
struct V128 {
  GRAFT_REGISTER(_mm, 128)
  GRAFT_DOT(_mm, 128)
  GRAFT_VEC Ints bytes(const std::uint8_t* p, i64 n) { return load_16(p, n); }
  GRAFT_VEC Floats whole(Floats x) { return _mm_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  GRAFT_VEC void put4(std::uint8_t* to, Ints v, i64 n) { store_16(to, v, n); }
};

struct V256 {
  GRAFT_REGISTER(_mm256, 256)
  GRAFT_DOT(_mm256, 256)
  GRAFT_VEC Ints bytes(const std::uint8_t* p, i64 n) { return load_32(p, n); }
  // Nibbles less 8: the low ones of 16 bytes, then their high ones.
  GRAFT_VEC Ints nibbles(const void* p) {
    const __m128i pairs = V128::load(p), mask = _mm_set1_epi8(15);
    const __m256i q = _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(pairs, 4), mask), _mm_and_si128(pairs, mask));
    return _mm256_sub_epi8(q, _mm256_set1_epi8(8));
  }
  GRAFT_VEC Floats whole(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  GRAFT_VEC void put4(std::uint8_t* to, Ints v, i64 n) { store_32(to, v, n); }
  GRAFT_VEC void put2(std::uint8_t* to, Ints v, i64 n) {
    store_16(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(v, 0x08)), n);
  }
  GRAFT_VEC void put1(std::uint8_t* to, Ints v, i64 n) {
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    if (n >= 8) return _mm_storel_epi64(reinterpret_cast<__m128i*>(to), both);
    store_16(to, both, n);
  }
  GRAFT_VEC Ints wide16(const std::uint8_t* p, i64 n, std::uint8_t flip) {
    return _mm256_cvtepi8_epi16(V128::flipped(load_16(p, n), V128::splat_byte(flip)));
  }
  GRAFT_VEC Ints wide32(const std::uint8_t* p, i64 n, std::uint8_t flip) {
    return _mm256_cvtepi8_epi32(V128::flipped(load_16(p, n < 8 ? n : 8), V128::splat_byte(flip)));
  }
  GRAFT_VEC float sum_lanes(Floats v) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  GRAFT_VEC std::int32_t sum_lanes(Ints v) {
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i pair = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, 0xb1)));
  }
};

#if defined(__AVX512VNNI__)

GRAFT_VEC __m128i load_16(const std::uint8_t* p, i64 n) {
  if (n >= 16) return V128::load(p);
  return _mm_maskz_loadu_epi8((__mmask16)((1u << n) - 1u), p);
}
GRAFT_VEC __m256i load_32(const std::uint8_t* p, i64 n) {
  if (n >= 32) return V256::load(p);
  return _mm256_maskz_loadu_epi8((__mmask32)((1u << n) - 1u), p);
}
GRAFT_VEC void store_16(std::uint8_t* p, __m128i v, i64 n) {
  if (n >= 16) return V128::put(p, v);
  _mm_mask_storeu_epi8(p, (__mmask16)((1u << n) - 1u), v);
}
GRAFT_VEC void store_32(std::uint8_t* p, __m256i v, i64 n) {
  if (n >= 32) return V256::put(p, v);
  _mm256_mask_storeu_epi8(p, (__mmask32)((1u << n) - 1u), v);
}

struct V512 {
  GRAFT_REGISTER(_mm512, 512)
  GRAFT_DOT(_mm512, 512)
  GRAFT_VEC Ints bytes(const std::uint8_t* p, i64 n) {
    return n >= 64 ? load(p) : _mm512_maskz_loadu_epi8((__mmask64)((1ull << n) - 1ull), p);
  }
  GRAFT_VEC Ints nibbles(const void* p) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(V256::nibbles(p)),
                              V256::nibbles(static_cast<const std::uint8_t*>(p) + 16), 1);
  }
  GRAFT_VEC Floats whole(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  GRAFT_VEC void put4(std::uint8_t* to, Ints v, i64 n) {
    if (n >= 64) return put(to, v);
    _mm512_mask_storeu_epi8(to, (__mmask64)((1ull << n) - 1ull), v);
  }
  GRAFT_VEC void put2(std::uint8_t* to, Ints v, i64 n) {
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
    store_32(to, _mm512_castsi512_si256(_mm512_permutexvar_epi64(even, v)), n);
  }
  GRAFT_VEC void put1(std::uint8_t* to, Ints v, i64 n) {
    const __m512i fourth = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    store_16(to, _mm512_castsi512_si128(_mm512_permutexvar_epi32(fourth, v)), n);
  }
  GRAFT_VEC Ints wide16(const std::uint8_t* p, i64 n, std::uint8_t flip) {
    return _mm512_cvtepi8_epi16(V256::flipped(load_32(p, n), V256::splat_byte(flip)));
  }
  GRAFT_VEC Ints wide32(const std::uint8_t* p, i64 n, std::uint8_t flip) {
    return _mm512_cvtepi8_epi32(V128::flipped(load_16(p, n), V128::splat_byte(flip)));
  }
  GRAFT_VEC float sum_lanes(Floats v) { return _mm512_reduce_add_ps(v); }
  GRAFT_VEC std::int32_t sum_lanes(Ints v) { return _mm512_reduce_add_epi32(v); }
};
using Widest = V512;

#else

GRAFT_VEC __m128i load_16(const std::uint8_t* p, i64 n) {
  if (n >= 16) return V128::load(p);
  alignas(16) std::uint8_t bytes[16] = {};
  for (i64 i = 0; i < n; ++i) bytes[i] = p[i];
  return V128::load(bytes);
}
GRAFT_VEC __m256i load_32(const std::uint8_t* p, i64 n) {
  if (n >= 32) return V256::load(p);
  return _mm256_set_m128i(n > 16 ? load_16(p + 16, n - 16) : _mm_setzero_si128(), load_16(p, n));
}
GRAFT_VEC void store_16(std::uint8_t* p, __m128i v, i64 n) {
  if (n >= 16) return V128::put(p, v);
  alignas(16) std::uint8_t bytes[16];
  V128::put(bytes, v);
  for (i64 i = 0; i < n; ++i) p[i] = bytes[i];
}
GRAFT_VEC void store_32(std::uint8_t* p, __m256i v, i64 n) {
  if (n >= 32) return V256::put(p, v);
  store_16(p, _mm256_castsi256_si128(v), n);
  if (n > 16) store_16(p + 16, _mm256_extracti128_si256(v, 1), n - 16);
}
using Widest = V256;

#endif

#undef GRAFT_REGISTER
#undef GRAFT_DOT

}  // namespace graft::simd::GRAFT_ISA
