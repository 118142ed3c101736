// Compiled for AVX-512 with BF16 only: see cmake/GraftLibrary.cmake.
#include "kernel/simd/isa/attention_tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// 2^x on [-1/2, 1/2]: least squares on Chebyshev points, exact at 0.
constexpr float kExp2[] = {1.f, 0.69312197f, 0.240237191f, 0.0559168942f, 0.00960039534f};

typedef std::uint32_t Pair;  // two numbers in bf16, the first in the low half

// Two vectors of numbers as pairs, lane by lane, rounded to nearest even.
GRAFT_VEC __m512i pairs_of(vf low, vf high) {
  alignas(64) static constexpr std::uint16_t kLane[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512bh rounded = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kLane), (__m512i)rounded);
}

// acc[r][lanes] (+)= sum over k of both numbers of a[r, k] * b[k][lanes], times `factor` where it is not added: `a`
// with strides in bytes, of any alignment.
template <int R, int NV>
void tile(const char* a, i64 a_r, i64 a_k, const Pair* b, i64 depth, float* acc, bool accumulate, float factor) {
  __m512 c[R][NV];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) c[r][n] = _mm512_setzero_ps();
  }
  // As tile() in isa/tile.h: a pointer and a stride address three rows.
  const char* group[(R + 2) / 3];
  for (int g = 0; g < (R + 2) / 3; ++g) group[g] = a + 3 * g * a_r;
  for (i64 k = 0; k < depth; ++k) {
    __m512bh x[NV];
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) x[n] = (__m512bh)_mm512_load_si512(b + n * kLanes);
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
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      float* to = acc + r * kPanel + n * kLanes;
      store(to, accumulate ? load(to) + (vf)c[r][n] : (vf)c[r][n] * factor);
    }
  }
}

using PairTile = void (*)(const char*, i64, i64, const Pair*, i64, float*, bool, float);
constexpr PairTile kPairTiles[2][kTileRows] = {
    {tile<1, 1>, tile<2, 1>, tile<3, 1>, tile<4, 1>, tile<5, 1>, tile<6, 1>, tile<7, 1>, tile<8, 1>, tile<9, 1>,
     tile<10, 1>, tile<11, 1>, tile<12, 1>},
    {tile<1, 2>, tile<2, 2>, tile<3, 2>, tile<4, 2>, tile<5, 2>, tile<6, 2>, tile<7, 2>, tile<8, 2>, tile<9, 2>,
     tile<10, 2>, tile<11, 2>, tile<12, 2>}};

// Queries and weights are rounded to bf16; keys and values are in it. Sums stay in f32.
class Bf16Products {
 public:
  static constexpr i64 kKeys = 72;  // a multiple of kTileRows and of 2

  Bf16Products(const AttentionHead& h, i64 t0, int queries) : h_(h), vectors_(queries > kLanes ? 2 : 1) {
    alignas(64) float wide[kMaxHeadSize * kPanel];
    pack({at(h.q, h.dtype, t0 * h.q_row), h.dtype, 1, h.q_row}, h.d, queries, 0, 0, h.d, wide);
    for (i64 i = 0; i < h.d; i += 2) {
      for (int c = 0; c < kPanel; c += kLanes) {
        const float* from = wide + i * kPanel + c;
        _mm512_store_si512(q_ + i / 2 * kPanel + c, pairs_of(load(from), load(from + kPanel)));
      }
    }
  }

  // To 4e-6 of it.
  static inline __attribute__((always_inline)) vf weight(vf x) { return exp_by_powers_of_two(x, kExp2); }

  void scores(i64 row0, i64 n, float* p) {
    const char* k = static_cast<const char*>(h_.k) + row0 * h_.k_row * 2;
    for (i64 s = 0; s < n; s += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, n - s));
      kPairTiles[vectors_ - 1][rows - 1](k + s * h_.k_row * 2, h_.k_row * 2, sizeof(Pair), q_, h_.d / 2, p + s * kPanel,
                                         false, h_.scale);
    }
  }

  void add(i64 row0, i64 n, const float* p, float* acc) {
    const i64 pairs = (n + 1) / 2;
    for (i64 s = 0; s < n; s += 2) {
      const std::uint16_t* v = static_cast<const std::uint16_t*>(h_.v) + (row0 + s) * h_.v_row;
      pair_rows(v, s + 1 < n ? v + h_.v_row : nullptr, v_ + s / 2 * h_.dv);
      for (int c = 0; c < vectors_ * kLanes; c += kLanes) {
        const float* from = p + s * kPanel + c;
        _mm512_store_si512(p_ + s / 2 * kPanel + c, pairs_of(load(from), s + 1 < n ? load(from + kPanel) : zero()));
      }
    }
    for (i64 i = 0; i < h_.dv; i += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, h_.dv - i));
      kPairTiles[vectors_ - 1][rows - 1](reinterpret_cast<const char*>(v_ + i), sizeof(Pair),
                                         h_.dv * static_cast<i64>(sizeof(Pair)), p_, pairs, acc + i * kPanel, true,
                                         1.f);
    }
  }

 private:
  // Pairs of the elements of two rows; zeros in the place of a second that is null.
  void pair_rows(const std::uint16_t* a, const std::uint16_t* b, Pair* to) const {
    alignas(64) static constexpr std::uint16_t kLane[64] = {
        0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
        11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
        22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
    i64 i = 0;
    for (; i + 32 <= h_.dv; i += 32) {
      const __m512i x = _mm512_loadu_si512(a + i), y = b == nullptr ? __m512i{} : _mm512_loadu_si512(b + i);
      _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(x, _mm512_load_si512(kLane), y));
      _mm512_storeu_si512(to + i + 16, _mm512_permutex2var_epi16(x, _mm512_load_si512(kLane + 32), y));
    }
    for (; i < h_.dv; ++i) to[i] = a[i] | (b == nullptr ? Pair{} : Pair{b[i]} << 16);
  }

  const AttentionHead& h_;
  const int vectors_;
  alignas(64) Pair q_[kMaxHeadSize / 2 * kPanel];  // [d / 2][lane]
  alignas(64) Pair v_[kKeys / 2 * kMaxHeadSize];   // [key / 2][dv]
  alignas(64) Pair p_[kKeys / 2 * kPanel];         // [key / 2][lane]
};

void run(const AttentionHead& head, i64 t0, i64 t1) {
  const bool pairs = head.kv == RowType::bf16 && head.d % 2 == 0 && t1 - t0 > kFewQueries;
  pairs ? many_queries<Bf16Products>(head, t0, t1) : avx512::kAttention.run(head, t0, t1);
}

void store_row(const void* from, DType dtype, std::int64_t n, RowType type, void* to) {
  avx512::kAttention.store_row(from, dtype, n, type, to);
}

}  // namespace

const AttentionTable kAttention = {kPanel, run, store_row, true};

}  // namespace graft::simd::GRAFT_ISA
