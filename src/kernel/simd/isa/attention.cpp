#include "kernel/simd/attention.h"

#include "kernel/simd/isa/tile.h"
#include "kernel/simd/isa/vec_math.h"

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

// Query t sees the keys [keys_begin, keys_end); both grow with t.
GRAFT_VEC i64 keys_end(const AttentionHead& h, i64 t) {
  if (!h.causal) return h.s;
  const i64 token = t / h.group;
  if (token < h.first_token) return 0;
  const i64 end = token + h.shift + 1;
  return end < 0 ? 0 : smaller(h.s, end);
}

GRAFT_VEC i64 keys_begin(const AttentionHead& h, i64 t) {
  if (!h.causal) return 0;
  const i64 token = t / h.group;
  const i64 position = (token < h.first_token ? h.first_token : token) + h.shift;
  i64 begin = h.window > 0 ? position - h.window + 1 : 0;
  if (h.chunk > 0 && position >= 0 && position / h.chunk * h.chunk > begin) begin = position / h.chunk * h.chunk;
  return begin < 0 ? 0 : begin;
}

// The row of keys and values where key s lies, and how many of the `n` keys from it on lie next to each other.
GRAFT_VEC i64 row_of(const AttentionHead& h, i64 s) { return h.ring > 0 ? (s - h.origin) % h.ring : s - h.origin; }
GRAFT_VEC i64 together(const AttentionHead& h, i64 row, i64 n) { return h.ring > 0 ? smaller(n, h.ring - row) : n; }

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

GRAFT_VEC vf cap(vf x, float softcap) { return softcap * tanh(x * (1.f / softcap)); }

// What a query adds to the score of key s.
GRAFT_VEC float bias_at(const AttentionHead& h, i64 t, i64 s) {
  const i64 distance = t / h.group + h.shift - s;
  return distance < 0 ? 0.f : h.bias[t % h.group * h.biases + smaller(distance, h.biases - 1)];
}

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
  if (h.bias != nullptr) {
    for (int j = 0; j < queries; ++j) {
      for (i64 s = 0; s < n; ++s) scores[s * kPanel + j] += bias_at(h, t0 + j, s0 + s);
    }
  }
  if (!h.causal || (s0 + n <= keys_end(h, t0) && s0 >= keys_begin(h, t0 + queries - 1))) return;
  for (int c = 0; c < queries; c += kLanes) {
    vi begin{}, end{};  // of each lane, counted from s0
    for (int j = 0; j < kLanes && c + j < queries; ++j) {
      begin[j] = static_cast<std::int32_t>(keys_begin(h, t0 + c + j) - s0);
      end[j] = static_cast<std::int32_t>(keys_end(h, t0 + c + j) - s0);
    }
    for (i64 s = 0; s < n; ++s) {
      float* row = scores + s * kPanel + c;
      const vi key = vi{} + static_cast<std::int32_t>(s);
      store(row, select((begin <= key) & (key < end), load(row), splat(kMinusInfinity)));
    }
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
  if (h.sink != nullptr) {
    for (int j = 0; j < queries; ++j) {
      largest[j / kLanes][j % kLanes] = h.sink[(t0 + j) % h.group];
      total[j / kLanes][j % kLanes] = 1;
    }
  }
  const i64 begin = keys_begin(h, t0), end = keys_end(h, t1 - 1);
  for (i64 s0 = begin, n = 0; s0 < end; s0 += n) {
    const i64 row0 = row_of(h, s0);
    n = together(h, row0, smaller(kKeys, end - s0));
    for (i64 s = 0; s < n; s += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, n - s));
      const float* k = static_cast<const float*>(h.k) + (row0 + s) * h.k_row;
      i64 k_row = h.k_row;
      if (h.kv != RowType::f32) {
        for (int i = 0; i < rows; ++i) widen_row(h.k, h.kv, (row0 + s + i) * h.k_row, 0, h.d, wide + i * h.d);
        k = wide;
        k_row = h.d;
      }
      kTiles[vectors - 1][rows - 1](k, k_row, q, kPanel, h.d, p + s * kPanel, false);
    }
    if (h.softcap != 0) {
      for (i64 i = 0; i < n * kPanel; i += kLanes) store(p + i, cap(load(p + i), h.softcap));
    }
    mask_block(h, t0, queries, s0, n, p);
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
      if (s0 > begin) {
        for (i64 i = 0; i < h.dv; ++i) store(acc + i * kPanel + c * kLanes, load(acc + i * kPanel + c * kLanes) * keep);
      }
    }
    const float* v = static_cast<const float*>(h.v) + row0 * h.v_row;
    i64 v_row = h.v_row;
    if (h.kv != RowType::f32) {
      for (i64 s = 0; s < n; ++s) widen_row(h.v, h.kv, (row0 + s) * h.v_row, 0, h.dv, wide + s * h.dv);
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
    many_queries(head, t0, t1);
  }
}

}  // namespace

const AttentionTable kAttention = {kPanel, run, store_row};

}  // namespace graft::simd::GRAFT_ISA
