#pragma once

// Products of bf16 pairs, for matrix products and attention.

#include "kernel/matmul/tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

typedef std::uint32_t Pair;  // two numbers in bf16, the first in the low half

// n numbers rounded to bf16, to nearest even.
GRAFT_LOCAL void round_row(const float* from, i64 n, std::uint16_t* to) {
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), (__m256i)_mm512_cvtneps_pbh((__m512)load(from + i)));
  for (; i < n; ++i) to[i] = float_to_bf16(from[i]);
}

// Interleaves the n elements of two rows into pairs; a null second row counts as zeros.
GRAFT_LOCAL void pair_rows(const std::uint16_t* a, const std::uint16_t* b, i64 n, Pair* to) {
  alignas(64) static constexpr std::uint16_t kLane[64] = {
      0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
      11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  i64 i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i x = _mm512_loadu_si512(a + i), y = b == nullptr ? __m512i{} : _mm512_loadu_si512(b + i);
    _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(x, _mm512_load_si512(kLane), y));
    _mm512_storeu_si512(to + i + 16, _mm512_permutex2var_epi16(x, _mm512_load_si512(kLane + 32), y));
  }
  for (; i < n; ++i) to[i] = a[i] | (b == nullptr ? Pair{} : Pair{b[i]} << 16);
}

// The sum over k of both numbers of a[r, k] * b[k][lanes]: added to acc[r][lanes] when `accumulate`, else stored there
// times `factor`. `a` has strides in bytes, of any alignment. Prefetches `ahead` bytes past what it reads of `a`; not
// when that is 0.
template <int R, int NV>
void pair_tile(const char* a, i64 a_r, i64 a_k, const Pair* b, i64 depth, float* acc, bool accumulate, float factor,
               i64 ahead) {
  __m512 c[R][NV];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) c[r][n] = _mm512_setzero_ps();
  }
  // As in tile() of tile.h, three rows are addressed by one pointer and one stride.
  const char* group[(R + 2) / 3];
  for (int g = 0; g < (R + 2) / 3; ++g) group[g] = a + 3 * g * a_r;
  const auto step = [&]() __attribute__((always_inline)) {
    __m512bh x[NV];
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) x[n] = (__m512bh)_mm512_loadu_si512(b + n * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      std::int32_t pair;
      __builtin_memcpy(&pair, group[r / 3] + (r % 3) * a_r, sizeof(pair));
      const __m512bh y = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) c[r][n] = _mm512_dpbf16_ps(c[r][n], x[n], y);
    }
#pragma GCC unroll 4
    for (int g = 0; g < (R + 2) / 3; ++g) group[g] += a_k;
    b += kPanel;
  };
  i64 k = 0;
  if (ahead != 0) {
    constexpr i64 kLine = 64 / sizeof(Pair);
    for (; k + kLine <= depth; k += kLine) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) __builtin_prefetch(group[r / 3] + (r % 3) * a_r + ahead);
      for (i64 x = 0; x < kLine; ++x) step();
    }
  }
  for (; k < depth; ++k) step();
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      float* to = acc + r * kPanel + n * kLanes;
      store(to, accumulate ? load(to) + (vf)c[r][n] : (vf)c[r][n] * factor);
    }
  }
}

using PairTile = void (*)(const char*, i64, i64, const Pair*, i64, float*, bool, float, i64);
// Indexed by the number of vectors of columns, then by rows.
constexpr ByRows<PairTile, kTileRows> kPairTiles[2] = {
    by_rows<PairTile, kTileRows>([]<int R>() -> PairTile { return pair_tile<R, 1>; }),
    by_rows<PairTile, kTileRows>([]<int R>() -> PairTile { return pair_tile<R, 2>; })};

}  // namespace
}  // namespace graft::simd::GRAFT_ISA
