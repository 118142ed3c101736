// Compiled for AVX-512 with BF16 only: see cmake/GraftLibrary.cmake.
#include "kernel/attention/attention_avx512.h"
#include "kernel/attention/attention_tile.h"
#include "kernel/matmul/pair_tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// 2^x on [-1/2, 1/2]: least squares on Chebyshev points, exact at 0.
constexpr float kExp2[] = {1.f, 0.69312197f, 0.240237191f, 0.0559168942f, 0.00960039534f};

// Interleaves two vectors, lane by lane, as pairs of bf16, rounded to nearest even.
GRAFT_VEC __m512i pairs_of(vf low, vf high) {
  alignas(64) static constexpr std::uint16_t kLane[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512bh rounded = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kLane), (__m512i)rounded);
}

// n elements of rows in blocks, which begin there.
void round_blocks(const char* block, RowType type, i64 n, std::uint16_t* to) {
  for (i64 i = 0; i < n; i += kBlock, block += row_bytes(type, kBlock)) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, block, sizeof(bits));
    const __m512 scale = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2));
    __m128i q[2] = {first, first};
    if (type == RowType::q8_0) {
      q[1] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 18));
    } else {
      const __m128i low = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
      q[0] = _mm_sub_epi8(_mm_and_si128(first, low), eight);
      q[1] = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(first, 4), low), eight);
    }
    const auto half = [&](int h) { return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q[h])), scale); };
    _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(half(1), half(0)));
  }
}

// Operands are rounded to bf16; keys and values may already be bf16. Sums stay in f32. Of rows in blocks the error
// grows by less than 5 %: theirs is 1 / 127 or 1 / 8 of a block's largest element, and bf16's 1 / 256 of the element
// itself.
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

  // Relative error 4e-6.
  static inline __attribute__((always_inline)) vf weight(vf x) { return exp_by_powers_of_two(x, kExp2); }

  void scores(i64 row0, i64 n, float* p) {
    const std::uint16_t* k = rows_;
    i64 k_row = h_.d;
    if (h_.kv == RowType::bf16) {
      k = static_cast<const std::uint16_t*>(h_.k) + row0 * h_.k_row;
      k_row = h_.k_row;
    } else {
      for (i64 s = 0; s < n; ++s) round(h_.k, (row0 + s) * h_.k_row, h_.d, rows_ + s * k_row);
    }
    for (i64 s = 0; s < n; s += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, n - s));
      kPairTiles[vectors_ - 1][rows - 1](reinterpret_cast<const char*>(k + s * k_row), k_row * 2, sizeof(Pair), q_,
                                         h_.d / 2, p + s * kPanel, false, h_.scale, 0);
    }
  }

  void add(i64 row0, i64 n, const float* p, float* acc) {
    const i64 pairs = (n + 1) / 2;
    for (i64 s = 0; s < n; s += 2) {
      const bool both = s + 1 < n;
      pair_rows(value(row0 + s, rows_), both ? value(row0 + s + 1, rows_ + h_.dv) : nullptr, h_.dv, v_ + s / 2 * h_.dv);
      for (int c = 0; c < vectors_ * kLanes; c += kLanes) {
        const float* from = p + s * kPanel + c;
        _mm512_store_si512(p_ + s / 2 * kPanel + c, pairs_of(load(from), both ? load(from + kPanel) : zero()));
      }
    }
    for (i64 i = 0; i < h_.dv; i += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, h_.dv - i));
      kPairTiles[vectors_ - 1][rows - 1](reinterpret_cast<const char*>(v_ + i), sizeof(Pair),
                                         h_.dv * static_cast<i64>(sizeof(Pair)), p_, pairs, acc + i * kPanel, true, 1.f,
                                         0);
    }
  }

 private:
  // In place when it is bf16, else rounded into `to`.
  const std::uint16_t* value(i64 row, std::uint16_t* to) {
    if (h_.kv == RowType::bf16) return static_cast<const std::uint16_t*>(h_.v) + row * h_.v_row;
    round(h_.v, row * h_.v_row, h_.dv, to);
    return to;
  }
  // The row of keys or values at `index`.
  void round(const void* data, i64 index, i64 n, std::uint16_t* to) {
    if (h_.kv == RowType::f32) return round_row(static_cast<const float*>(data) + index, n, to);
    round_blocks(static_cast<const char*>(row_at(data, h_.kv, index)), h_.kv, n, to);
  }

  const AttentionHead& h_;
  const int vectors_;
  alignas(64) Pair q_[kMaxHeadSize / 2 * kPanel];  // [d / 2][lane]
  alignas(64) Pair v_[kKeys / 2 * kMaxHeadSize];   // [key / 2][dv]
  alignas(64) Pair p_[kKeys / 2 * kPanel];         // [key / 2][lane]
  std::uint16_t rows_[kKeys * kMaxHeadSize];       // [key][d] of keys that are rounded; two rows of values
};

void run(const AttentionHead& head, i64 t0, i64 t1) {
  const bool rounded =
      head.kv == RowType::bf16 || row_elements(head.kv) > 1 || (head.kv == RowType::f32 && head.in_bf16);
  const bool pairs = rounded && head.d % 2 == 0 && head.t > kFewQueries;
  pairs ? many_queries<Bf16Products>(head, t0, t1) : avx512vnni::kAttention.run(head, t0, t1);
}

}  // namespace

const AttentionTable kAttention = {kPanel, run, store_row, widen_rows, true, true};

}  // namespace graft::simd::GRAFT_ISA
