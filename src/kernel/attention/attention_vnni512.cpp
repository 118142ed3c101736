// Compiled for AVX-512 with VNNI only: see kernel/simd/targets.def.
#include "kernel/attention/attention_avx512.h"
#include "kernel/attention/attention_few.h"

namespace graft::simd::GRAFT_ISA {
namespace {

constexpr i64 kMostBlocks = kMaxHeadSize / kBlock;
constexpr int kScaleBytes = 2;

GRAFT_VEC __m128i load_16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
// The 16 bytes at p, four times.
GRAFT_VEC __m512i splat_16(const void* p) { return _mm512_broadcast_i32x4(load_16(p)); }
GRAFT_VEC __m512i splat_4(const std::int8_t* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}

// 16 bytes of each of four rows.
GRAFT_VEC __m512i four_rows(const char* from, i64 row) {
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(from)), load_16(from + row), 1);
  const __m256i high =
      _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(from + 2 * row)), load_16(from + 3 * row), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Blocks of four rows in units of their scales, plus kOffset: elements 0 to 15 of each row, and elements 16 to 31.
struct Q8Rows {
  static constexpr i64 kBytes = row_bytes(RowType::q8_0, kBlock);
  static constexpr std::int32_t kOffset = 128;
  GRAFT_VEC void load(const char* block, i64 row, __m512i (&x)[2]) {
    const __m512i sign = _mm512_set1_epi8(-128);
    x[0] = _mm512_xor_si512(four_rows(block + kScaleBytes, row), sign);
    x[1] = _mm512_xor_si512(four_rows(block + kScaleBytes + 16, row), sign);
  }
};
struct Q4Rows {
  static constexpr i64 kBytes = row_bytes(RowType::q4_0, kBlock);
  static constexpr std::int32_t kOffset = 8;
  GRAFT_VEC void load(const char* block, i64 row, __m512i (&x)[2]) {
    const __m512i pairs = four_rows(block + kScaleBytes, row), low = _mm512_set1_epi8(15);
    x[0] = _mm512_and_si512(pairs, low);
    x[1] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low);
  }
};

// Numbers rounded to 16 bits, as two signed bytes: what the low one takes is in the high one.
constexpr float kMost = 32639;  // 127 * 256 + 127
GRAFT_VEC __m128i low_bytes(__m512i x) { return _mm512_cvtepi32_epi8(x); }
GRAFT_VEC __m128i high_bytes(__m512i x) {
  return _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8));
}

// What rounds numbers, of which `most` is the largest magnitude: they are `unit` times integers. Others than finite
// ones make the unit so, and magnitudes of less than 1e-30 become 0.
struct Rounding {
  float unit, inverse;
  explicit Rounding(float most)
      : unit(most < 1e-30f ? 0.f : most / kMost), inverse(most > 1e-30f ? kMost / most : 0.f) {}
  __m512i operator()(vf x) const { return _mm512_cvtps_epi32((__m512)(x * inverse)); }
};
// Bits of magnitudes are in the order of the magnitudes, NaN last.
GRAFT_VEC __m512i larger_magnitude(__m512i bits, vf x) {
  return _mm512_max_epu32(bits, _mm512_and_si512((__m512i)x, _mm512_set1_epi32(0x7fffffff)));
}
GRAFT_VEC float largest_magnitude(__m512i bits) {
  const std::uint32_t most = _mm512_reduce_max_epu32(bits);
  float out;
  __builtin_memcpy(&out, &most, 4);
  return out;
}

// From four bytes in each of 4 x 4 places [row][column][byte] to [column][byte][row]: a word holds one element of the
// four rows.
GRAFT_VEC __m512i interleaved(__m512i rows) {
  alignas(64) static constexpr std::int32_t kWord[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const __m128i bytes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(_mm512_load_si512(kWord), rows), _mm512_broadcast_i32x4(bytes));
}

// Products of few queries with rows in blocks, as sums of products of bytes. Queries and weights are rounded to 16 bits
// of the largest of the head or of a block of keys, which are two bytes each: the product of both bytes is summed
// exactly. Less than 5 % of what the 8 bits of the rows are off.
template <typename Rows>
class FewByteProducts {
 public:
  FewByteProducts(const AttentionHead& h, Few& few, int queries) : h_(h), few_(few), queries_(queries) {
    for (int p = 0; p < queries; ++p) round_query(p);
  }

  void scores(i64 row0, i64 n, const Ahead& values) {
    const char* k = static_cast<const char*>(row_at(h_.k, h_.kv, row0 * h_.k_row));
    const i64 row = row_bytes(h_.kv, h_.k_row), blocks = h_.d / kBlock;
    take_scales(k, row, blocks, n);
    i64 s = 0;
    for (; s + 8 <= n; s += 8) {
      prefetch(values, s, 8);
      dots_of_all<2>({{k + s * row, row}, {k + (s + 4) * row, row}}, blocks, s);
    }
    for (; s < n; s += 4) {
      prefetch(values, s, 4);
      dots_of_all<1>({group(k + s * row, row, blocks, n - s)}, blocks, s);
    }
  }

  void add(i64 row0, i64 n, const Ahead& keys) {
    const char* v = static_cast<const char*>(row_at(h_.v, h_.kv, row0 * h_.v_row));
    const i64 row = row_bytes(h_.kv, h_.v_row), blocks = h_.dv / kBlock;
    take_scales(v, row, blocks, n);
    const i64 vectors = (n + kLanes - 1) / kLanes;  // the last one's weights end in zeros
    for (i64 s = n; s < vectors * kLanes; ++s) {
      for (int p = 0; p < queries_; ++p) few_.scores[p * kFewKeys + s] = 0;
      for (i64 b = 0; b < blocks; ++b) scale_[b][s] = 0;
    }
    for (i64 b = 0; b < blocks; ++b) {
      for (int p = 0; p < queries_; ++p) round_weights(p, b, vectors);
      int p = 0;
      const auto ahead = [&] { return b == 0 && p == 0 ? keys : Ahead{}; };
      for (; p + 4 <= queries_; p += 4) add_block<4>(p, v, row, b, blocks, n, ahead());
      for (; p + 2 <= queries_; p += 2) add_block<2>(p, v, row, b, blocks, n, ahead());
      if (p < queries_) add_block<1>(p, v, row, b, blocks, n, ahead());
    }
  }

  void finish(float*) const {}

 private:
  static_assert(kPanel == kBlock && kFewKeys % kLanes == 0);

  struct Group {
    const char* rows;
    i64 row;
  };
  // Four rows, of which `count` exist; the others are read as zeros.
  Group group(const char* rows, i64 row, i64 blocks, i64 count) {
    if (count >= 4) return {rows, row};
    const i64 bytes = blocks * Rows::kBytes;
    __builtin_memset(last_, 0, static_cast<std::size_t>(4 * bytes));
    for (i64 y = 0; y < count; ++y)
      __builtin_memcpy(last_ + y * bytes, rows + y * row, static_cast<std::size_t>(bytes));
    return {last_, bytes};
  }

  // The scales of n rows, by blocks.
  void take_scales(const char* rows, i64 row, i64 blocks, i64 n) {
    constexpr i64 kUsual = 4;  // of heads of 128 elements
    const auto take = [&](i64 count) __attribute__((always_inline)) {
      for (i64 s = 0; s < n; ++s, rows += row)
#pragma GCC unroll 4
        for (i64 b = 0; b < count; ++b) __builtin_memcpy(&scale_[b][s], rows + b * Rows::kBytes, kScaleBytes);
    };
    blocks == kUsual ? take(kUsual) : take(blocks);
  }

  void round_query(int p) {
    const float* q = few_.q + p * few_.depth;
    __m512i top = _mm512_setzero_si512();
    for (i64 x = 0; x < h_.d; x += kLanes) top = larger_magnitude(top, load(q + x));
    const Rounding rounding(largest_magnitude(top));
    unit_[p] = rounding.unit;
    for (i64 b = 0; b < h_.d / kBlock; ++b) {
      __m512i sums = _mm512_setzero_si512();
      for (int half = 0; half < 2; ++half) {
        const __m512i x = rounding(load(q + b * kBlock + half * kLanes));
        _mm_store_si128(reinterpret_cast<__m128i*>(q_[p][b][0][half]), low_bytes(x));
        _mm_store_si128(reinterpret_cast<__m128i*>(q_[p][b][1][half]), high_bytes(x));
        sums = _mm512_add_epi32(sums, x);
      }
      // Lane i of a product sums the elements 4 i to 4 i + 3 of each half.
      alignas(64) std::int32_t lanes[16];
      _mm512_store_si512(lanes, sums);
      for (int i = 0; i < 4; ++i)
        offset_[p][b][i] = -Rows::kOffset * (lanes[4 * i] + lanes[4 * i + 1] + lanes[4 * i + 2] + lanes[4 * i + 3]);
    }
  }

  // Scores of P queries from p on against G groups of four keys from s on.
  template <int P, int G>
  void dots(int p, const Group (&keys)[G], i64 blocks, i64 s) {
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512 sums[P][G];
#pragma GCC unroll 4
    for (int i = 0; i < P; ++i)
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) sums[i][g] = _mm512_setzero_ps();
    for (i64 b = 0; b < blocks; ++b) {
      __m512i x[G][2];
      __m512 scale[G];
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) {
        Rows::load(keys[g].rows + b * Rows::kBytes, keys[g].row, x[g]);
        const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&scale_[b][s + 4 * g]));
        scale[g] = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_cvtph_ps(four)));
      }
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) {
        const __m512i offset = splat_16(offset_[p + i][b]);
        const __m512i low0 = splat_16(q_[p + i][b][0][0]), low1 = splat_16(q_[p + i][b][0][1]);
        const __m512i high0 = splat_16(q_[p + i][b][1][0]), high1 = splat_16(q_[p + i][b][1][1]);
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) {
          const __m512i high =
              _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), x[g][0], high0), x[g][1], high1);
          const __m512i low = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(offset, x[g][0], low0), x[g][1], low1);
          const __m512i both = _mm512_add_epi32(low, _mm512_slli_epi32(high, 8));
          sums[i][g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), scale[g], sums[i][g]);
        }
      }
    }
    const __m512i fourth = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
#pragma GCC unroll 4
    for (int i = 0; i < P; ++i)
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) {
        __m512 sum = sums[i][g] + _mm512_permute_ps(sums[i][g], 0x4e);
        sum = sum + _mm512_permute_ps(sum, 0xb1);
        const __m128 four = _mm512_castps512_ps128(_mm512_permutexvar_ps(fourth, sum));
        _mm_storeu_ps(few_.scores + (p + i) * kFewKeys + s + 4 * g, _mm_mul_ps(four, _mm_set1_ps(unit_[p + i])));
      }
  }
  template <int G>
  void dots_of_all(const Group (&keys)[G], i64 blocks, i64 s) {
    int p = 0;
    for (; p + 4 <= queries_; p += 4) dots<4, G>(p, keys, blocks, s);
    for (; p + 2 <= queries_; p += 2) dots<2, G>(p, keys, blocks, s);
    if (p < queries_) dots<1, G>(p, keys, blocks, s);
  }

  // The weights of block b of the values in `vectors` vectors of keys: the softmax's times the block's scale.
  void round_weights(int p, i64 b, i64 vectors) {
    const float* scores = few_.scores + p * kFewKeys;
    const auto weight = [&](i64 i) __attribute__((always_inline)) {
      return load(scores + i * kLanes) * load_f16(&scale_[b][i * kLanes]);
    };
    __m512i top = _mm512_setzero_si512(), sum = top;
    for (i64 i = 0; i < vectors; ++i) top = larger_magnitude(top, weight(i));
    const Rounding rounding(largest_magnitude(top));
    weight_unit_[p] = rounding.unit;
    for (i64 i = 0; i < vectors; ++i) {
      const __m512i w = rounding(weight(i));
      sum = _mm512_add_epi32(sum, w);
      _mm_store_si128(reinterpret_cast<__m128i*>(w_[p][0] + i * kLanes), low_bytes(w));
      _mm_store_si128(reinterpret_cast<__m128i*>(w_[p][1] + i * kLanes), high_bytes(w));
    }
    weight_offset_[p] = -Rows::kOffset * _mm512_reduce_add_epi32(sum);
  }

  // Adds block b of n values to the results of P queries from p on.
  template <int P>
  void add_block(int p, const char* v, i64 row, i64 b, i64 blocks, i64 n, const Ahead& keys) {
    __m512i sums[P][2][2];  // [query][half of the block][byte]
#pragma GCC unroll 4
    for (int i = 0; i < P; ++i)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        sums[i][half][0] = _mm512_set1_epi32(weight_offset_[p + i]);
        sums[i][half][1] = _mm512_setzero_si512();
      }
    const auto add_four = [&](const Group& values, i64 s) __attribute__((always_inline)) {
      __m512i x[2];
      Rows::load(values.rows + b * Rows::kBytes, values.row, x);
      x[0] = interleaved(x[0]);
      x[1] = interleaved(x[1]);
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) {
        const __m512i low = splat_4(w_[p + i][0] + s), high = splat_4(w_[p + i][1] + s);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          sums[i][half][0] = _mm512_dpbusd_epi32(sums[i][half][0], x[half], low);
          sums[i][half][1] = _mm512_dpbusd_epi32(sums[i][half][1], x[half], high);
        }
      }
    };
    i64 s = 0;
    for (; s + 4 <= n; s += 4) {
      prefetch(keys, s, 4);
      add_four({v + s * row, row}, s);
    }
    if (s < n) {
      prefetch(keys, s, n - s);
      add_four(group(v + s * row, row, blocks, n - s), s);
    }
#pragma GCC unroll 4
    for (int i = 0; i < P; ++i) {
      float* to = few_.acc + (b * kFewQueries + p + i) * kPanel;
      const vf keep = splat(few_.keep[p + i]), unit = splat(weight_unit_[p + i]);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512i both = _mm512_add_epi32(sums[i][half][0], _mm512_slli_epi32(sums[i][half][1], 8));
        float* lanes = to + half * kLanes;
        store(lanes, fma(load(lanes), keep, unit * (vf)_mm512_cvtepi32_ps(both)));
      }
    }
  }

  const AttentionHead& h_;
  Few& few_;
  const int queries_;
  float unit_[kFewQueries], weight_unit_[kFewQueries];
  std::int32_t weight_offset_[kFewQueries];
  alignas(64) std::int8_t q_[kFewQueries][kMostBlocks][2][2][16];  // [query][block][byte][half of the block]
  alignas(64) std::int32_t offset_[kFewQueries][kMostBlocks][4];
  alignas(64) std::int8_t w_[kFewQueries][2][kFewKeys];  // [query][byte][key]
  alignas(64) std::uint16_t scale_[kMostBlocks][kFewKeys];
  char last_[4 * kMostBlocks * Rows::kBytes];
};

void run(const AttentionHead& head, i64 t0, i64 t1) {
  if (head.t > kFewQueries || row_elements(head.kv) == 1) return avx512::kAttention.run(head, t0, t1);
  head.kv == RowType::q8_0 ? few_queries<FewByteProducts<Q8Rows>>(head, t0, t1)
                           : few_queries<FewByteProducts<Q4Rows>>(head, t0, t1);
}

}  // namespace

const AttentionTable kAttention = {kPanel, run, store_row, widen_rows, false, true};

}  // namespace graft::simd::GRAFT_ISA
