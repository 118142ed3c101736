#include "kernel/attention/attention_vec.h"

#include <type_traits>

#include "kernel/attention/attention_tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

constexpr i64 kFewKeys = 96;

// acc[r][lanes] += sum_k s[k][r] * v[k][lanes]: like tile(), with S stored by k.
template <int R, int NV>
void tile_by_k(const float* s, i64 s_row, const float* v, i64 depth, float* acc) {
  vf c[R][NV];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
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
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) {
      float* to = acc + r * kPanel + n * kLanes;
      store(to, load(to) + c[r][n]);
    }
  }
}

using TileByK = void (*)(const float*, i64, const float*, i64, float*);

// Indexed by the number of vectors of columns, then by rows.
constexpr ByRows<TileByK, kTileRows> kTilesByK[2] = {
    by_rows<TileByK, kTileRows>([]<int R>() -> TileByK { return tile_by_k<R, 1>; }),
    by_rows<TileByK, kTileRows>([]<int R>() -> TileByK { return tile_by_k<R, 2>; })};

// Rows in blocks of q8_0: a scale in f16 and kQ8Block bytes.
struct Q8 {
  using Stored = char;

  GRAFT_VEC vf load(const char* quants) { return load_i8(reinterpret_cast<const signed char*>(quants)); }
  GRAFT_VEC vf scale(const char* block) {
    static_assert(kLanes * 2 <= kQ8Bytes);
    return splat(load_f16(reinterpret_cast<const std::uint16_t*>(block))[0]);
  }
};

// Address of element `index` of keys or values, the start of a row.
GRAFT_VEC const void* row_at(const void* data, RowType type, i64 index) {
  return static_cast<const char*>(data) + row_bytes(type, index);
}

// Elements [first, first + n) of the row at `index`, as f32.
GRAFT_LOCAL void widen_row(const void* data, RowType type, i64 index, i64 first, i64 n, float* to) {
  if (type == RowType::f32) return widen_as<F32>(static_cast<const float*>(data) + index + first, 1, n, to);
  const std::uint16_t* half = static_cast<const std::uint16_t*>(data) + index + first;
  if (type == RowType::f16) return widen_as<F16>(half, 1, n, to);
  if (type == RowType::bf16) return widen_as<BF16>(half, 1, n, to);
  for (i64 i = 0; i < n;) {  // a panel may start inside a q8_0 block
    const i64 element = index + first + i, inside = element % kQ8Block;
    const i64 count = smaller(kQ8Block - inside, n - i);
    const char* block = static_cast<const char*>(row_at(data, type, element));
    const vf scale = Q8::scale(block);
    const signed char* q = reinterpret_cast<const signed char*>(block + 2) + inside;
    if (count == kQ8Block) {
      for (i64 j = 0; j < kQ8Block; j += kLanes) store(to + i + j, scale * Q8::load(block + 2 + j));
    } else {
      for (i64 j = 0; j < count; ++j) to[i + j] = scale[0] * static_cast<float>(q[j]);
    }
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

void widen_rows(const void* from, DType dtype, i64 row, i64 rows, i64 n, float* to) {
  const auto all = [&](auto type) __attribute__((always_inline)) {
    using T = decltype(type);
    const auto* at = static_cast<const typename T::Stored*>(from);
    for (i64 r = 0; r < rows; ++r, at += row, to += n) widen_as<T>(at, 1, n, to);
  };
  if (dtype == DType::f32) return all(F32{});
  dtype == DType::f16 ? all(F16{}) : all(BF16{});
}

// Products of a block of queries in f32, with keys and values widened to it.
class F32Products {
 public:
  static constexpr i64 kKeys = 96;  // a multiple of kTileRows

  F32Products(const AttentionHead& h, i64 t0, int queries) : h_(h), vectors_(queries > kLanes ? 2 : 1) {
    pack({at(h.q, h.dtype, t0 * h.q_row), h.dtype, 1, h.q_row}, h.d, queries, 0, 0, h.d, q_);
    for (i64 i = 0; i < h.d * kPanel; i += kLanes) store(q_ + i, load(q_ + i) * h.scale);
  }

  static inline __attribute__((always_inline)) vf weight(vf x) { return exp_of_weight(x); }

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
      kTiles[vectors_ - 1][rows - 1](k, k_row, q_, kPanel, h_.d, p + s * kPanel, false, {});
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

// Queries, and panels of results, summed at once: as many as the registers hold.
constexpr int kRowsAtOnce = kTileRows < 8 ? 2 : 4;
constexpr int kSumsAtOnce = kTileRows < 8 ? 8 : 16;
constexpr int kKeysAtOnce = 4;
typedef std::uint32_t vu_unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

// A row, or an element of it that begins a panel, `n` elements on. A panel of q8_0 begins at its block.
template <typename T>
GRAFT_VEC const typename T::Stored* forward(T, const typename T::Stored* row, i64 n) {
  return row + n;
}
GRAFT_VEC const char* forward(Q8, const char* row, i64 n) { return row + n / kQ8Block * kQ8Bytes; }

// kPanel elements of a row as two vectors. For bf16 the first has the even elements and the second the odd ones: a pair
// is one word, so no shuffle is needed. deal() and gather() convert a panel of f32 to that order and back.
GRAFT_VEC void load_panel(F32, const float* p, vf& a, vf& b) {
  a = load(p);
  b = load(p + kLanes);
}
GRAFT_VEC void load_panel(F16, const std::uint16_t* p, vf& a, vf& b) {
  a = load_f16(p);
  b = load_f16(p + kLanes);
}
GRAFT_VEC void load_panel(BF16, const std::uint16_t* p, vf& a, vf& b) {
  const vu words = *reinterpret_cast<const vu_unaligned*>(p);
  a = (vf)(words << 16);
  b = (vf)(words & 0xffff0000u);
}
GRAFT_VEC void load_panel(Q8, const char* block, vf& a, vf& b) {
  const vf scale = Q8::scale(block);
  a = scale * Q8::load(block + 2);
  b = scale * Q8::load(block + 2 + kLanes);
}
GRAFT_VEC void deal(float* panel) {
  const vf a = load(panel), b = load(panel + kLanes);
  store(panel, every_second_lane<0>(a, b));
  store(panel + kLanes, every_second_lane<1>(a, b));
}
GRAFT_VEC void gather(float* panel) {
  vf a = load(panel), b = load(panel + kLanes);
  interleave_lanes(a, b);
  store(panel, a);
  store(panel + kLanes, b);
}

// Rows to prefetch, `at_once` for each row computed. With few queries, keys and values come from memory, and rows may
// be a token apart, a stride that the hardware prefetcher does not follow. May be empty.
struct Ahead {
  const char* rows = nullptr;
  i64 stride = 0, bytes = 0, count = 0, at_once = 1;
};
// Into the second-level cache: for the first a core waits for fewer lines at once than memory could send. Rows of q8_0
// take longer to widen than to read.
template <typename T>
GRAFT_VEC void prefetch(const Ahead& ahead, i64 row) {
  constexpr int kLocality = std::is_same_v<T, Q8> ? 3 : 2;
  const i64 end = smaller((row + 1) * ahead.at_once, ahead.count);
  for (i64 r = row * ahead.at_once; r < end; ++r) {
    const char* from = ahead.rows + r * ahead.stride;
    for (i64 i = 0; i < ahead.bytes; i += 64) __builtin_prefetch(from + i, 0, kLocality);
  }
}

// State of few_queries(): queries, scores and results.
struct Few {
  i64 depth = 0, panels = 0;  // elements of a query and panels of a result, both padded with zeros to whole panels
  alignas(64) float q[kFewQueries * (kMaxHeadSize + kPanel)];                 // [query][depth], scaled
  alignas(64) float scores[kFewQueries * kFewKeys];                           // [query][key]
  alignas(64) float keep[kFewQueries];                                        // rescale factors of earlier results
  alignas(64) float acc[(kMaxHeadSize / kPanel + 1) * kFewQueries * kPanel];  // [panel][query][kPanel]
};

// Scores of P queries from `i` on against K keys, the first of which is key s of the block.
template <typename T, int P, int K>
GRAFT_VEC void dots(Few& few, int i, const typename T::Stored* k, i64 k_row, i64 s) {
  vf c[P][K];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
    for (int y = 0; y < K; ++y) c[p][y] = zero();
  }
  const float* q = few.q + i * few.depth;
  for (i64 x = 0; x < few.depth; x += kPanel) {
#pragma GCC unroll 4
    for (int y = 0; y < K; ++y) {
      vf a, b;
      load_panel(T{}, forward(T{}, k, y * k_row + x), a, b);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        c[p][y] = fma(load(q + p * few.depth + x), a, c[p][y]);
        c[p][y] = fma(load(q + p * few.depth + x + kLanes), b, c[p][y]);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    float* to = few.scores + (i + p) * kFewKeys + s;
    if constexpr (K == 4) {
      store4(to, sum_lanes4(c[p][0], c[p][1], c[p][2], c[p][3]));
    } else {
      to[0] = sum_lanes(c[p][0]);
    }
  }
}

template <typename T, int P>
void scores_of(Few& few, int i, const typename T::Stored* k, i64 k_row, i64 s, i64 n, const Ahead& values) {
  const i64 end = s + n;
  for (; s + kKeysAtOnce <= end; s += kKeysAtOnce, k = forward(T{}, k, kKeysAtOnce * k_row)) {
    for (int y = 0; y < kKeysAtOnce; ++y) prefetch<T>(values, s + y);
    dots<T, P, kKeysAtOnce>(few, i, k, k_row, s);
  }
  for (; s < end; ++s, k = forward(T{}, k, k_row)) {
    prefetch<T>(values, s);
    dots<T, P, 1>(few, i, k, k_row, s);
  }
}

// Scores of all queries against n keys, the first of which is key s of the block.
template <typename T>
void scores_of(Few& few, int queries, const void* k, i64 k_row, i64 s, i64 n, const Ahead& values = {}) {
  const auto* rows = static_cast<const typename T::Stored*>(k);
  int i = 0;
  const auto ahead = [&] { return i == 0 ? values : Ahead{}; };
  for (; kRowsAtOnce == 4 && i + 4 <= queries; i += 4) scores_of<T, kRowsAtOnce>(few, i, rows, k_row, s, n, ahead());
  for (; i + 2 <= queries; i += 2) scores_of<T, 2>(few, i, rows, k_row, s, n, ahead());
  if (i < queries) scores_of<T, 1>(few, i, rows, k_row, s, n, ahead());
}

// C panels of the results of P queries: the sums of earlier blocks times `keep`, plus n values weighted by their
// scores. A block is summed on its own first, so that the rounding error does not grow with the keys before it.
template <typename T, int P, int C>
void add_panels(Few& few, int i, i64 panel, const typename T::Stored* v, i64 v_row, i64 n, const Ahead& keys) {
  vf c[P][C][2];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
    for (int x = 0; x < C; ++x) c[p][x][0] = c[p][x][1] = zero();
  }
  const float* scores = few.scores + i * kFewKeys;
  for (i64 s = 0; s < n; ++s, v = forward(T{}, v, v_row)) {
    prefetch<T>(keys, s);
    vf by[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) by[p] = splat(scores[p * kFewKeys + s]);
#pragma GCC unroll 4
    for (int x = 0; x < C; ++x) {
      vf a, b;
      load_panel(T{}, forward(T{}, v, x * kPanel), a, b);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        c[p][x][0] = fma(by[p], a, c[p][x][0]);
        c[p][x][1] = fma(by[p], b, c[p][x][1]);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const vf keep = splat(few.keep[i + p]);
#pragma GCC unroll 4
    for (int x = 0; x < C; ++x) {
      float* to = few.acc + ((panel + x) * kFewQueries + i + p) * kPanel;
      store(to, fma(load(to), keep, c[p][x][0]));
      store(to + kLanes, fma(load(to + kLanes), keep, c[p][x][1]));
    }
  }
}

template <typename T, int P>
void add_values(Few& few, int i, i64 panel, i64 panels, const typename T::Stored* v, i64 v_row, i64 n,
                const Ahead& keys) {
  constexpr int kAtOnce = kSumsAtOnce / (2 * P) < 4 ? kSumsAtOnce / (2 * P) : 4;
  const i64 begin = panel, end = panel + panels;
  const auto ahead = [&] { return panel == begin ? keys : Ahead{}; };
  for (; panel + kAtOnce <= end; panel += kAtOnce, v = forward(T{}, v, kAtOnce * kPanel))
    add_panels<T, P, kAtOnce>(few, i, panel, v, v_row, n, ahead());
  for (; panel < end; ++panel, v = forward(T{}, v, kPanel)) add_panels<T, P, 1>(few, i, panel, v, v_row, n, ahead());
}

// Panels [panel, panel + panels) of the results of all queries.
template <typename T>
void add_values(Few& few, int queries, i64 panel, i64 panels, const void* v, i64 v_row, i64 n, const Ahead& keys = {}) {
  const auto* rows = static_cast<const typename T::Stored*>(v);
  int i = 0;
  const auto ahead = [&] { return i == 0 ? keys : Ahead{}; };
  for (; kRowsAtOnce == 4 && i + 4 <= queries; i += 4)
    add_values<T, kRowsAtOnce>(few, i, panel, panels, rows, v_row, n, ahead());
  for (; i + 2 <= queries; i += 2) add_values<T, 2>(few, i, panel, panels, rows, v_row, n, ahead());
  if (i < queries) add_values<T, 1>(few, i, panel, panels, rows, v_row, n, ahead());
}

// Keys and values whose rows are not whole panels, or panels not whole blocks of q8_0, are widened to padded rows of
// f32.
void scores_widened(Few& few, const AttentionHead& h, int queries, i64 row0, i64 n) {
  constexpr i64 kRows = 8;
  alignas(64) float wide[kRows * (kMaxHeadSize + kPanel)];
  for (i64 s = 0; s < n; s += kRows) {
    const i64 rows = smaller(kRows, n - s);
    for (i64 y = 0; y < rows; ++y) {
      widen_row(h.k, h.kv, (row0 + s + y) * h.k_row, 0, h.d, wide + y * few.depth);
      for (i64 x = h.d; x < few.depth; ++x) wide[y * few.depth + x] = 0;
    }
    scores_of<F32>(few, queries, wide, few.depth, s, rows);
  }
}
void add_values_widened(Few& few, const AttentionHead& h, int queries, i64 row0, i64 n) {
  alignas(64) float wide[kFewKeys * kPanel];
  for (i64 panel = 0; panel < few.panels; ++panel) {
    const i64 width = smaller(kPanel, h.dv - panel * kPanel);
    for (i64 s = 0; s < n; ++s) {
      widen_row(h.v, h.kv, (row0 + s) * h.v_row, panel * kPanel, width, wide + s * kPanel);
      for (i64 x = width; x < kPanel; ++x) wide[s * kPanel + x] = 0;
    }
    add_values<F32>(few, queries, panel, 1, wide, kPanel, n);
  }
}

// The keys that the first query reads first, one block of them at most, spread over `turns` computed rows.
Ahead first_keys(const AttentionHead& h, i64 turns) {
  const i64 begin = keys_begin(h, 0), row = row_of(h, begin), bytes = row_bytes(h.kv, h.k_row);
  const i64 count = together(h, row, smaller(kFewKeys, keys_end(h, 0) - begin));
  return {static_cast<const char*>(h.k) + row * bytes, bytes, row_bytes(h.kv, h.d), count, (count + turns - 1) / turns};
}

// Prefetches one cache line of each page of the first keys and values: address translation takes as long as the read.
// The hardware prefetcher finds the pages after these.
GRAFT_VEC void prefetch_pages(const AttentionHead& h) {
  constexpr i64 kPage = 4096, kMostPages = 64;
  const i64 begin = keys_begin(h, 0), row = row_of(h, begin), rows = together(h, row, keys_end(h, 0) - begin);
  const auto prefetch = [&](const void* p, i64 bytes) __attribute__((always_inline)) {
    const char* from = static_cast<const char*>(p) + row * bytes;
    for (i64 i = 0; i < smaller(rows * bytes, kMostPages * kPage); i += kPage) __builtin_prefetch(from + i);
  };
  prefetch(h.k, row_bytes(h.kv, h.k_row));
  prefetch(h.v, row_bytes(h.kv, h.v_row));
}

// Up to kFewQueries queries (decoding): lanes are elements of a head; keys and values are read once for all queries.
void few_queries(const AttentionHead& h, i64 t0, i64 t1) {
  const int queries = static_cast<int>(t1 - t0);
  const bool whole = (h.kv != RowType::q8_0 || kPanel == kQ8Block) && h.d % kPanel == 0 && h.dv % kPanel == 0;
  const bool dealt = whole && h.kv == RowType::bf16;
  Few few;
  few.panels = (h.dv + kPanel - 1) / kPanel;
  few.depth = (h.d + kPanel - 1) / kPanel * kPanel;
  float largest[kFewQueries], total[kFewQueries];
  i64 sees_from[kFewQueries], sees_to[kFewQueries];  // key ranges
  for (int i = 0; i < queries; ++i) {
    sees_from[i] = keys_begin(h, t0 + i);
    sees_to[i] = keys_end(h, t0 + i);
    float* q = few.q + i * few.depth;
    widen(at(h.q, h.dtype, (t0 + i) * h.q_row), h.dtype, 1, h.d, q);
    for (i64 x = 0; x < h.d; ++x) q[x] *= h.scale;
    for (i64 x = h.d; x < few.depth; ++x) q[x] = 0;
    for (i64 x = 0; dealt && x < few.depth; x += kPanel) deal(q + x);
    largest[i] = h.sink != nullptr ? h.sink[(t0 + i) % h.group] : kMinusInfinity;
    total[i] = h.sink != nullptr ? 1 : 0;
  }
  for (i64 panel = 0; panel < few.panels; ++panel) {
    float* acc = few.acc + panel * kFewQueries * kPanel;
    for (i64 i = 0; i < queries * kPanel; i += kLanes) store(acc + i, zero());
  }
  if (h.next != nullptr) prefetch_pages(*h.next);
  const i64 begin = sees_from[0], end = sees_to[queries - 1];
  for (i64 s0 = begin, n = 0; s0 < end; s0 += n) {
    const i64 row0 = row_of(h, s0);
    n = together(h, row0, smaller(kFewKeys, end - s0));
    const void* k = row_at(h.k, h.kv, row0 * h.k_row);
    const void* v = row_at(h.v, h.kv, row0 * h.v_row);
    // While scores are computed the values of these keys are prefetched; with the values, the next block of keys.
    const i64 next = row0 + n, rows = h.ring > 0 ? h.ring : h.s - h.origin, key_row = row_bytes(h.kv, h.k_row);
    const Ahead values = {static_cast<const char*>(v), row_bytes(h.kv, h.v_row), row_bytes(h.kv, h.dv), n};
    Ahead keys = {static_cast<const char*>(k) + n * key_row, key_row, row_bytes(h.kv, h.d),
                  rows - next < n ? rows - next : n};
    if (s0 + n == end && h.next != nullptr) keys = first_keys(*h.next, n);
    if (!whole) {
      scores_widened(few, h, queries, row0, n);
    } else if (h.kv == RowType::f32) {
      scores_of<F32>(few, queries, k, h.k_row, 0, n, values);
    } else if (h.kv == RowType::bf16) {
      scores_of<BF16>(few, queries, k, h.k_row, 0, n, values);
    } else if (h.kv == RowType::q8_0) {
      scores_of<Q8>(few, queries, k, h.k_row, 0, n, values);
    } else {
      scores_of<F16>(few, queries, k, h.k_row, 0, n, values);
    }
    for (int i = 0; i < queries; ++i) {
      float* row = few.scores + i * kFewKeys;
      if (h.softcap != 0) {
        for (i64 s = 0; s < n; s += kLanes)
          store_some<F32>(row + s, cap(load_some<F32>(row + s, n - s), h.softcap), n - s);
      }
      if (h.mask != nullptr) add_mask_row(h, t0 + i, s0, n, row);
      if (h.bias != nullptr) {
        for (i64 s = 0; s < n; ++s) row[s] += bias_at(h, t0 + i, s0 + s);
      }
      for (i64 s = smaller(sees_from[i] - s0, n) - 1; s >= 0; --s) row[s] = kMinusInfinity;
      for (i64 s = sees_to[i] > s0 ? sees_to[i] - s0 : 0; s < n; ++s) row[s] = kMinusInfinity;
      vf m = splat(largest[i]);
      for (i64 s = 0; s < n; s += kLanes) m = max_nan(keep_n(load_some<F32>(row + s, n - s), n - s, kMinusInfinity), m);
      const float top = max_lanes_nan(m);
      const vf shift = finite_shift(splat(top));
      few.keep[i] = exp(splat(largest[i]) - shift)[0];
      vf sum = zero();
      for (i64 s = 0; s < n; s += kLanes) {
        const vf e = keep_n(exp(load_some<F32>(row + s, n - s) - shift), n - s, 0.f);
        store_some<F32>(row + s, e, n - s);
        sum += e;
      }
      total[i] = total[i] * few.keep[i] + sum_lanes(sum);
      largest[i] = top;
    }
    if (!whole) {
      add_values_widened(few, h, queries, row0, n);
    } else if (h.kv == RowType::f32) {
      add_values<F32>(few, queries, 0, few.panels, v, h.v_row, n, keys);
    } else if (h.kv == RowType::bf16) {
      add_values<BF16>(few, queries, 0, few.panels, v, h.v_row, n, keys);
    } else if (h.kv == RowType::q8_0) {
      add_values<Q8>(few, queries, 0, few.panels, v, h.v_row, n, keys);
    } else {
      add_values<F16>(few, queries, 0, few.panels, v, h.v_row, n, keys);
    }
  }
  Epilogue e;
  e.out = h.out;
  e.out_dtype = h.dtype;
  e.out_r = h.out_row;
  e.out_j = 1;
  for (i64 panel = 0; panel < few.panels; ++panel) {
    float* acc = few.acc + panel * kFewQueries * kPanel;
    for (int i = 0; i < queries; ++i) {
      float* a = acc + i * kPanel;
      const float inverse = total[i] == 0.f ? 0.f : 1.f / total[i];
      for (int x = 0; x < kPanel; x += kLanes) store(a + x, load(a + x) * inverse);
      if (dealt) gather(a);
    }
    finish(e, acc, t0, queries, panel * kPanel, static_cast<int>(smaller(kPanel, h.dv - panel * kPanel)));
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

static_assert(kPanel >= kLeastQueriesAtOnce);
const AttentionTable kAttention = {kPanel, run, store_row, widen_rows, false};

}  // namespace graft::simd::GRAFT_ISA
