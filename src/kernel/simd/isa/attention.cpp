#include "kernel/simd/attention.h"

#include "kernel/simd/isa/tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// Keys of a block when each lane is a query: a multiple of kTileRows.
constexpr i64 kKeys = 48;
// With no more queries than this, lanes are elements of a head instead.
constexpr i64 kFewQueries = kTileRows < 8 ? kTileRows : 8;
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

constexpr float kMinusInfinity = -__builtin_inff();

// What the mask adds to the score of query t and key s.
GRAFT_VEC float mask_at(const AttentionHead& h, i64 t, i64 s) {
  const i64 index = t * h.mask_row + s * h.mask_col;
  if (h.mask_dtype == DType::b8) return static_cast<const std::uint8_t*>(h.mask)[index] != 0 ? 0.f : kMinusInfinity;
  return get(h.mask, h.mask_dtype, index);
}

// scores[i] += mask of query t and keys s0 + i.
GRAFT_VEC void add_mask_row(const AttentionHead& h, i64 t, i64 s0, i64 n, float* scores) {
  i64 i = 0;
  if (h.mask_col == 1) {
    if (h.mask_dtype == DType::f32) {
      const float* m = static_cast<const float*>(h.mask) + t * h.mask_row + s0;
      for (; i + kLanes <= n; i += kLanes) store(scores + i, load(scores + i) + load(m + i));
    } else if (h.mask_dtype == DType::b8) {
      const std::uint8_t* m = static_cast<const std::uint8_t*>(h.mask) + t * h.mask_row + s0;
      for (; i < n; ++i) scores[i] = m[i] != 0 ? scores[i] : scores[i] + kMinusInfinity;
    }
  }
  for (; i < n; ++i) scores[i] += mask_at(h, t, s0 + i);
}

// The maximum to subtract: a query without a key so far has -inf, and -inf - -inf would be NaN.
GRAFT_VEC vf finite_shift(vf m) { return select(m == kMinusInfinity, zero(), m); }

// Keys that queries up to t1 - 1 see.
GRAFT_VEC i64 keys_seen(const AttentionHead& h, i64 t1) { return h.causal ? smaller(h.s, t1) : h.s; }

// Scores of a block with queries in the lanes: mask and causality.
void mask_block(const AttentionHead& h, i64 t0, int queries, i64 s0, i64 n, float* scores) {
  if (h.mask != nullptr) {
    if (h.mask_row == 0) {
      for (i64 s = 0; s < n; ++s) {
        const vf add = splat(mask_at(h, t0, s0 + s));
        for (int j = 0; j < queries; j += kLanes) store(scores + s * kPanel + j, load(scores + s * kPanel + j) + add);
      }
    } else {
      for (int j = 0; j < queries; ++j) {
        for (i64 s = 0; s < n; ++s) scores[s * kPanel + j] += mask_at(h, t0 + j, s0 + s);
      }
    }
  }
  if (!h.causal) return;
  for (i64 s = 0; s < n; ++s) {
    const i64 blind = s0 + s - t0;  // queries before this lane do not see the key
    for (i64 j = 0; j < smaller(blind, queries); ++j) scores[s * kPanel + j] = kMinusInfinity;
  }
}

// Many queries: lane j of a vector is query t0 + j, so that the softmax needs no sums across lanes.
void many_queries(const AttentionHead& h, i64 t0, i64 t1) {
  const int queries = static_cast<int>(t1 - t0);
  const int vectors = queries > kLanes ? 2 : 1;
  alignas(64) float q[kMaxHeadSize * kPanel];    // [d][lane], scaled
  alignas(64) float acc[kMaxHeadSize * kPanel];  // [dv][lane]
  alignas(64) float p[kKeys * kPanel];           // [key][lane]
  alignas(64) float wide[kKeys * kMaxHeadSize];  // keys or values of a block as f32
  pack({at(h.q, h.dtype, t0 * h.q_row), h.dtype, 1, h.q_row}, h.d, queries, 0, 0, h.d, q);
  for (i64 i = 0; i < h.d * kPanel; i += kLanes) store(q + i, load(q + i) * h.scale);
  for (i64 i = 0; i < h.dv * kPanel; i += kLanes) store(acc + i, zero());
  vf largest[2] = {splat(kMinusInfinity), splat(kMinusInfinity)};
  vf total[2] = {zero(), zero()};
  const i64 end = keys_seen(h, t1);
  for (i64 s0 = 0; s0 < end; s0 += kKeys) {
    const i64 n = smaller(kKeys, end - s0);
    for (i64 s = 0; s < n; s += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, n - s));
      const float* k = static_cast<const float*>(h.k) + (s0 + s) * h.k_row;
      i64 k_row = h.k_row;
      if (h.dtype != DType::f32) {
        for (int i = 0; i < rows; ++i) {
          widen(at(h.k, h.dtype, (s0 + s + i) * h.k_row), h.dtype, 1, h.d, wide + i * h.d);
        }
        k = wide;
        k_row = h.d;
      }
      kTiles[vectors - 1][rows - 1](k, k_row, q, kPanel, h.d, p + s * kPanel, false);
    }
    if (h.mask != nullptr || (h.causal && s0 + n > t0 + 1)) mask_block(h, t0, queries, s0, n, p);
    for (int c = 0; c < vectors; ++c) {
      float* column = p + c * kLanes;
      vf m = largest[c];
      for (i64 s = 0; s < n; ++s) m = max_nan(load(column + s * kPanel), m);
      const vf shift = finite_shift(m);
      const vf keep = exp(largest[c] - shift);
      vf sum = zero();
      for (i64 s = 0; s < n; ++s) {
        const vf e = exp(load(column + s * kPanel) - shift);
        store(column + s * kPanel, e);
        sum += e;
      }
      total[c] = fma(total[c], keep, sum);
      largest[c] = m;
      if (s0 > 0) {
        for (i64 i = 0; i < h.dv; ++i) store(acc + i * kPanel + c * kLanes, load(acc + i * kPanel + c * kLanes) * keep);
      }
    }
    const float* v = static_cast<const float*>(h.v) + s0 * h.v_row;
    i64 v_row = h.v_row;
    if (h.dtype != DType::f32) {
      for (i64 s = 0; s < n; ++s) widen(at(h.v, h.dtype, (s0 + s) * h.v_row), h.dtype, 1, h.dv, wide + s * h.dv);
      v = wide;
      v_row = h.dv;
    }
    for (i64 i = 0; i < h.dv; i += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, h.dv - i));
      kTilesByK[vectors - 1][rows - 1](v + i, v_row, p, n, acc + i * kPanel);
    }
  }
  for (int c = 0; c < vectors; ++c) {
    const vf inverse = select(total[c] == 0.f, zero(), 1.f / total[c]);
    for (i64 i = 0; i < h.dv; ++i) store(acc + i * kPanel + c * kLanes, load(acc + i * kPanel + c * kLanes) * inverse);
  }
  Epilogue e;
  e.out = const_cast<void*>(at(h.out, h.dtype, t0 * h.out_row));
  e.out_dtype = h.dtype;
  e.out_r = 1;
  e.out_j = h.out_row;
  for (i64 i = 0; i < h.dv; i += kTileRows) {
    finish(e, acc + i * kPanel, i, static_cast<int>(smaller(kTileRows, h.dv - i)), 0, queries);
  }
  if (h.lse == nullptr) return;
  for (int j = 0; j < queries; ++j) {
    h.lse[t0 + j] = largest[j / kLanes][j % kLanes] + __builtin_logf(total[j / kLanes][j % kLanes]);
  }
}

GRAFT_VEC void prefetch_row(const void* data, DType dtype, i64 index, i64 elements) {
  const char* p = static_cast<const char*>(at(data, dtype, index));
  const i64 bytes = elements * (dtype == DType::f32 ? 4 : 2);
  for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

// scores[i][s] of queries against n keys from s0 on.
template <typename T>
void few_scores(const AttentionHead& h, const float* q, int queries, i64 s0, i64 n, float* scores) {
  const typename T::Stored* k = static_cast<const typename T::Stored*>(h.k) + s0 * h.k_row;
  alignas(16) float sums[kDotSums];
  for (int i = 0; i < queries; i += kDotRows) {
    const int count = static_cast<int>(smaller(kDotRows, queries - i));
    for (i64 s = 0; s < n;) {
      const int step = n - s >= dot_columns(queries) ? dot_columns(queries) : 1;
      if (i == 0) {
        // Rows of a head are a token apart: too far for the CPU to guess. The values are read right after the scores.
        for (i64 y = s0 + s; y < s0 + s + step; ++y) {
          prefetch_row(h.k, h.dtype, (y + kAhead < h.s ? y + kAhead : y) * h.k_row, h.d);
          prefetch_row(h.v, h.dtype, y * h.v_row, h.dv);
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
    largest[i] = kMinusInfinity;
    total[i] = 0;
  }
  for (i64 panel = 0; panel < panels; ++panel) {
    for (i64 i = 0; i < queries * kPanel; i += kLanes) store(acc[panel] + i, zero());
  }
  const i64 end = keys_seen(h, t1);
  for (i64 s0 = 0; s0 < end; s0 += kFewKeys) {
    const i64 n = smaller(kFewKeys, end - s0);
    if (h.dtype == DType::f32) {
      few_scores<F32>(h, q, queries, s0, n, scores);
    } else if (h.dtype == DType::bf16) {
      few_scores<BF16>(h, q, queries, s0, n, scores);
    } else {
      few_scores<F16>(h, q, queries, s0, n, scores);
    }
    for (int i = 0; i < queries; ++i) {
      float* row = scores + i * kFewKeys;
      if (h.mask != nullptr) add_mask_row(h, t0 + i, s0, n, row);
      if (h.causal) {
        for (i64 s = t0 + i + 1 > s0 ? t0 + i + 1 - s0 : 0; s < n; ++s) row[s] = kMinusInfinity;
      }
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
      if (s0 > 0) {
        for (i64 panel = 0; panel < panels; ++panel) {
          float* a = acc[panel] + i * kPanel;
          for (int x = 0; x < kPanel; x += kLanes) store(a + x, load(a + x) * keep);
        }
      }
    }
    for (i64 panel = 0; panel < panels; ++panel) {
      const int width = static_cast<int>(smaller(kPanel, h.dv - panel * kPanel));
      const float* v = static_cast<const float*>(h.v) + s0 * h.v_row + panel * kPanel;
      i64 v_row = h.v_row;
      if (h.dtype != DType::f32 || width != kPanel) {
        for (i64 s = 0; s < n; ++s) {
          widen(at(h.v, h.dtype, (s0 + s) * h.v_row + panel * kPanel), h.dtype, 1, width, wide + s * kPanel);
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
    many_queries(head, t0, t1);
  }
}

}  // namespace

const AttentionTable kAttention = {kPanel, run};

}  // namespace graft::simd::GRAFT_ISA
