#include "kernel/simd/attention.h"

#include "kernel/simd/isa/attention_tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

constexpr i64 kFewKeys = 96;
// Keys whose rows are asked for ahead of their use.
constexpr i64 kAhead = 16;

// acc[r][lanes] += sum_k s[k][r] * v[k][lanes]: like tile(), with S stored by k.
template <int R, int NV>
void tile_by_k(const float* s, i64 s_row, const float* v, i64 depth, float* acc) {
  vf c[R][NV];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) c[r][n] = zero();
  }
  for (i64 k = 0; k < depth; ++k) {
    vf x[NV];
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) x[n] = load(v + n * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const vf b = splat(s[r]);
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) c[r][n] = fma(b, x[n], c[r][n]);
    }
    s += s_row;
    v += kPanel;
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) {
      float* to = acc + r * kPanel + n * kLanes;
      store(to, load(to) + c[r][n]);
    }
  }
}

using TileByK = void (*)(const float*, i64, const float*, i64, float*);

#if defined(__AVX512F__)
constexpr TileByK kTilesByK[2][kTileRows] = {
    {tile_by_k<1, 1>, tile_by_k<2, 1>, tile_by_k<3, 1>, tile_by_k<4, 1>, tile_by_k<5, 1>, tile_by_k<6, 1>,
     tile_by_k<7, 1>, tile_by_k<8, 1>, tile_by_k<9, 1>, tile_by_k<10, 1>, tile_by_k<11, 1>, tile_by_k<12, 1>},
    {tile_by_k<1, 2>, tile_by_k<2, 2>, tile_by_k<3, 2>, tile_by_k<4, 2>, tile_by_k<5, 2>, tile_by_k<6, 2>,
     tile_by_k<7, 2>, tile_by_k<8, 2>, tile_by_k<9, 2>, tile_by_k<10, 2>, tile_by_k<11, 2>, tile_by_k<12, 2>}};
#else
constexpr TileByK kTilesByK[2][kTileRows] = {
    {tile_by_k<1, 1>, tile_by_k<2, 1>, tile_by_k<3, 1>, tile_by_k<4, 1>, tile_by_k<5, 1>, tile_by_k<6, 1>},
    {tile_by_k<1, 2>, tile_by_k<2, 2>, tile_by_k<3, 2>, tile_by_k<4, 2>, tile_by_k<5, 2>, tile_by_k<6, 2>}};
#endif

// Where row `index / row` of keys or values lies, `index` in elements.
GRAFT_VEC const void* row_at(const void* data, RowType type, i64 index) {
  if (type == RowType::q8_0) return static_cast<const char*>(data) + index / kQ8Block * kQ8Bytes;
  return static_cast<const char*>(data) + index * (type == RowType::f32 ? 4 : 2);
}

// `n` elements of a row from element `first` on, as f32.
GRAFT_LOCAL void widen_row(const void* data, RowType type, i64 index, i64 first, i64 n, float* to) {
  if (type == RowType::f32) return widen_as<F32>(static_cast<const float*>(data) + index + first, 1, n, to);
  const std::uint16_t* half = static_cast<const std::uint16_t*>(data) + index + first;
  if (type == RowType::f16) return widen_as<F16>(half, 1, n, to);
  if (type == RowType::bf16) return widen_as<BF16>(half, 1, n, to);
  for (i64 i = 0; i < n;) {  // a panel may begin inside a block
    const i64 element = index + first + i, inside = element % kQ8Block;
    const i64 count = smaller(kQ8Block - inside, n - i);
    const char* block = static_cast<const char*>(row_at(data, type, element));
    std::uint16_t bits;
    __builtin_memcpy(&bits, block, 2);
    const float scale = f16_to_float(bits);
    const signed char* q = reinterpret_cast<const signed char*>(block + 2) + inside;
    for (i64 j = 0; j < count; ++j) to[i + j] = scale * static_cast<float>(q[j]);
    i += count;
  }
}

void store_row(const void* from, DType dtype, i64 n, RowType type, void* to) {
  if (type == RowType::f32) return widen(from, dtype, 1, n, static_cast<float*>(to));
  alignas(64) float wide[kMaxHeadSize];
  widen(from, dtype, 1, n, wide);
  if (type == RowType::f16 || type == RowType::bf16) {
    std::uint16_t* half = static_cast<std::uint16_t*>(to);
    i64 i = 0;
    for (; i + kLanes <= n; i += kLanes)
      type == RowType::f16 ? store_f16(half + i, load(wide + i)) : store_bf16(half + i, load(wide + i));
    for (; i < n; ++i) half[i] = type == RowType::f16 ? float_to_f16(wide[i]) : float_to_bf16(wide[i]);
    return;
  }
  char* block = static_cast<char*>(to);
  for (i64 i = 0; i < n; i += kQ8Block, block += kQ8Bytes) {
    float top = 0;
    for (i64 j = 0; j < kQ8Block; ++j) {
      const float a = __builtin_fabsf(wide[i + j]);
      top = a > top || a != a ? a : top;
    }
    const float scale = top / 127.f;
    const float inverse = scale == 0.f ? 0.f : 1.f / scale;
    const std::uint16_t bits = float_to_f16(scale);
    __builtin_memcpy(block, &bits, 2);
    for (i64 j = 0; j < kQ8Block; ++j)
      block[2 + j] = static_cast<char>(static_cast<signed char>(__builtin_rintf(wide[i + j] * inverse)));
  }
}

// Many queries with products in f32, keys and values widened to it.
class F32Products {
 public:
  static constexpr i64 kKeys = 48;  // a multiple of kTileRows

  F32Products(const AttentionHead& h, i64 t0, int queries) : h_(h), vectors_(queries > kLanes ? 2 : 1) {
    pack({at(h.q, h.dtype, t0 * h.q_row), h.dtype, 1, h.q_row}, h.d, queries, 0, 0, h.d, q_);
    for (i64 i = 0; i < h.d * kPanel; i += kLanes) store(q_ + i, load(q_ + i) * h.scale);
  }

  static inline __attribute__((always_inline)) vf weight(vf x) { return exp(x); }

  void scores(i64 row0, i64 n, float* p) {
    for (i64 s = 0; s < n; s += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, n - s));
      const float* k = static_cast<const float*>(h_.k) + (row0 + s) * h_.k_row;
      i64 k_row = h_.k_row;
      if (h_.kv != RowType::f32) {
        for (int i = 0; i < rows; ++i) widen_row(h_.k, h_.kv, (row0 + s + i) * h_.k_row, 0, h_.d, wide_ + i * h_.d);
        k = wide_;
        k_row = h_.d;
      }
      kTiles[vectors_ - 1][rows - 1](k, k_row, q_, kPanel, h_.d, p + s * kPanel, false);
    }
  }

  void add(i64 row0, i64 n, const float* p, float* acc) {
    const float* v = static_cast<const float*>(h_.v) + row0 * h_.v_row;
    i64 v_row = h_.v_row;
    if (h_.kv != RowType::f32) {
      for (i64 s = 0; s < n; ++s) widen_row(h_.v, h_.kv, (row0 + s) * h_.v_row, 0, h_.dv, wide_ + s * h_.dv);
      v = wide_;
      v_row = h_.dv;
    }
    for (i64 i = 0; i < h_.dv; i += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, h_.dv - i));
      kTilesByK[vectors_ - 1][rows - 1](v + i, v_row, p, n, acc + i * kPanel);
    }
  }

 private:
  const AttentionHead& h_;
  const int vectors_;
  alignas(64) float q_[kMaxHeadSize * kPanel];    // [d][lane], scaled
  alignas(64) float wide_[kKeys * kMaxHeadSize];  // keys or values of a block as f32
};

GRAFT_VEC void prefetch_row(const void* data, RowType type, i64 index, i64 elements) {
  const char* p = static_cast<const char*>(row_at(data, type, index));
  const i64 bytes = static_cast<const char*>(row_at(data, type, index + elements)) - p;
  for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

// scores[i][s] of queries against the n keys from `row0` on; rows end at `row_end`.
template <typename T>
void few_scores(const AttentionHead& h, const float* q, int queries, i64 row0, i64 row_end, i64 n, float* scores) {
  const typename T::Stored* k = static_cast<const typename T::Stored*>(h.k) + row0 * h.k_row;
  alignas(16) float sums[kDotSums];
  for (int i = 0; i < queries; i += kDotRows) {
    const int count = static_cast<int>(smaller(kDotRows, queries - i));
    for (i64 s = 0; s < n;) {
      const int step = n - s >= dot_columns(queries) ? dot_columns(queries) : 1;
      if (i == 0) {
        // Rows of a head are a token apart: too far for the CPU to guess. The values are read right after the scores.
        for (i64 y = row0 + s; y < row0 + s + step; ++y) {
          prefetch_row(h.k, h.kv, (y + kAhead < row_end ? y + kAhead : y) * h.k_row, h.d);
          prefetch_row(h.v, h.kv, y * h.v_row, h.dv);
        }
      }
      dot_block_of<T>(count, step)(q + i * h.d, h.d, k, h.k_row, h.d, s, sums);
      for (int x = 0; x < count; ++x) {
        for (int y = 0; y < step; ++y) scores[(i + x) * kFewKeys + s + y] = sums[x * step + y];
      }
      s += step;
    }
  }
}

// The same for blocks of integers, which are widened first.
void few_scores_widened(const AttentionHead& h, const float* q, int queries, i64 row0, i64 n, float* scores) {
  constexpr i64 kRows = 8;
  alignas(64) float wide[kRows * kMaxHeadSize];
  AttentionHead block = h;
  block.k = wide;
  block.v = wide;
  block.k_row = h.d;
  block.v_row = 0;
  block.dv = 0;
  block.kv = RowType::f32;
  for (i64 s = 0; s < n; s += kRows) {
    const i64 rows = smaller(kRows, n - s);
    for (i64 i = 0; i < rows; ++i) widen_row(h.k, h.kv, (row0 + s + i) * h.k_row, 0, h.d, wide + i * h.d);
    few_scores<F32>(block, q, queries, 0, rows, rows, scores + s);
  }
}

// Few queries (decoding): lanes are elements of a head; keys and values are read once for all queries.
void few_queries(const AttentionHead& h, i64 t0, i64 t1) {
  constexpr i64 kPanels = kMaxHeadSize / kPanel;
  const int queries = static_cast<int>(t1 - t0);
  alignas(64) float q[kFewQueries * kMaxHeadSize];
  alignas(64) float scores[kFewQueries * kFewKeys];
  alignas(64) float acc[kPanels][kFewQueries * kPanel];
  alignas(64) float wide[kFewKeys * kPanel];
  float largest[kFewQueries], total[kFewQueries];
  const i64 panels = (h.dv + kPanel - 1) / kPanel;
  for (int i = 0; i < queries; ++i) {
    widen(at(h.q, h.dtype, (t0 + i) * h.q_row), h.dtype, 1, h.d, q + i * h.d);
    for (i64 x = 0; x < h.d; ++x) q[i * h.d + x] *= h.scale;
    largest[i] = h.sink != nullptr ? h.sink[(t0 + i) % h.group] : kMinusInfinity;
    total[i] = h.sink != nullptr ? 1 : 0;
  }
  for (i64 panel = 0; panel < panels; ++panel) {
    for (i64 i = 0; i < queries * kPanel; i += kLanes) store(acc[panel] + i, zero());
  }
  const i64 begin = keys_begin(h, t0), end = keys_end(h, t1 - 1);
  for (i64 s0 = begin, n = 0; s0 < end; s0 += n) {
    const i64 row0 = row_of(h, s0), row_end = h.ring > 0 ? h.ring : h.s - h.origin;
    n = together(h, row0, smaller(kFewKeys, end - s0));
    if (h.kv == RowType::f32) {
      few_scores<F32>(h, q, queries, row0, row_end, n, scores);
    } else if (h.kv == RowType::bf16) {
      few_scores<BF16>(h, q, queries, row0, row_end, n, scores);
    } else if (h.kv == RowType::f16) {
      few_scores<F16>(h, q, queries, row0, row_end, n, scores);
    } else {
      few_scores_widened(h, q, queries, row0, n, scores);
    }
    for (int i = 0; i < queries; ++i) {
      float* row = scores + i * kFewKeys;
      if (h.softcap != 0) {
        for (i64 s = 0; s < n; s += kLanes)
          store_some<F32>(row + s, cap(load_some<F32>(row + s, n - s), h.softcap), n - s);
      }
      if (h.mask != nullptr) add_mask_row(h, t0 + i, s0, n, row);
      if (h.bias != nullptr) {
        for (i64 s = 0; s < n; ++s) row[s] += bias_at(h, t0 + i, s0 + s);
      }
      for (i64 s = 0; s < smaller(keys_begin(h, t0 + i) - s0, n); ++s) row[s] = kMinusInfinity;
      for (i64 s = keys_end(h, t0 + i) > s0 ? keys_end(h, t0 + i) - s0 : 0; s < n; ++s) row[s] = kMinusInfinity;
      vf m = splat(largest[i]);
      for (i64 s = 0; s < n; s += kLanes) m = max_nan(keep_n(load_some<F32>(row + s, n - s), n - s, kMinusInfinity), m);
      const float top = max_lanes_nan(m);
      const vf shift = finite_shift(splat(top));
      const float keep = exp(splat(largest[i]) - shift)[0];
      vf sum = zero();
      for (i64 s = 0; s < n; s += kLanes) {
        const vf e = keep_n(exp(load_some<F32>(row + s, n - s) - shift), n - s, 0.f);
        store_some<F32>(row + s, e, n - s);
        sum += e;
      }
      total[i] = total[i] * keep + sum_lanes(sum);
      largest[i] = top;
      if (s0 > begin) {
        for (i64 panel = 0; panel < panels; ++panel) {
          float* a = acc[panel] + i * kPanel;
          for (int x = 0; x < kPanel; x += kLanes) store(a + x, load(a + x) * keep);
        }
      }
    }
    for (i64 panel = 0; panel < panels; ++panel) {
      const int width = static_cast<int>(smaller(kPanel, h.dv - panel * kPanel));
      const float* v = static_cast<const float*>(h.v) + row0 * h.v_row + panel * kPanel;
      i64 v_row = h.v_row;
      if (h.kv != RowType::f32 || width != kPanel) {
        for (i64 s = 0; s < n; ++s) {
          widen_row(h.v, h.kv, (row0 + s) * h.v_row, panel * kPanel, width, wide + s * kPanel);
          for (int x = width; x < kPanel; ++x) wide[s * kPanel + x] = 0;
        }
        v = wide;
        v_row = kPanel;
      }
      kTiles[width > kLanes][queries - 1](scores, kFewKeys, v, v_row, n, acc[panel], true);
    }
  }
  Epilogue e;
  e.out = h.out;
  e.out_dtype = h.dtype;
  e.out_r = h.out_row;
  e.out_j = 1;
  for (i64 panel = 0; panel < panels; ++panel) {
    for (int i = 0; i < queries; ++i) {
      float* a = acc[panel] + i * kPanel;
      const float inverse = total[i] == 0.f ? 0.f : 1.f / total[i];
      for (int x = 0; x < kPanel; x += kLanes) store(a + x, load(a + x) * inverse);
    }
    finish(e, acc[panel], t0, queries, panel * kPanel, static_cast<int>(smaller(kPanel, h.dv - panel * kPanel)));
  }
  if (h.lse == nullptr) return;
  for (int i = 0; i < queries; ++i) h.lse[t0 + i] = largest[i] + __builtin_logf(total[i]);
}

void run(const AttentionHead& head, i64 t0, i64 t1) {
  if (t1 - t0 <= kFewQueries) {
    few_queries(head, t0, t1);
  } else {
    many_queries<F32Products>(head, t0, t1);
  }
}

}  // namespace

const AttentionTable kAttention = {kPanel, run, store_row, false};

}  // namespace graft::simd::GRAFT_ISA
