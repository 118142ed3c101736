#include "kernel/attention/attention_vec.h"

#include "kernel/attention/attention_few.h"

namespace graft::simd::GRAFT_ISA {
namespace {

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

// kTiles whose sums have one order for any number of rows: the score of a query and a key must not depend on how many
// keys are behind it, or the bits of a prompt would depend on how much of it was in the cache.
constexpr ByRows<Tile, kTileRows> kOrderedTiles[2] = {
    by_rows<Tile, kTileRows>([]<int R>() -> Tile { return tile<R, 1, 1>; }),
    by_rows<Tile, kTileRows>([]<int R>() -> Tile { return tile<R, 2, 1>; })};

// Elements [first, first + n) of the row at `index`, as f32.
GRAFT_LOCAL void widen_row(const void* data, RowType type, i64 index, i64 first, i64 n, float* to) {
  if (type == RowType::f32) return widen_as<F32>(static_cast<const float*>(data) + index + first, 1, n, to);
  const std::uint16_t* half = static_cast<const std::uint16_t*>(data) + index + first;
  if (type == RowType::f16) return widen_as<F16>(half, 1, n, to);
  if (type == RowType::bf16) return widen_as<BF16>(half, 1, n, to);
  for (i64 i = 0; i < n;) {  // a panel may start inside a block
    const i64 element = index + first + i, inside = element % kBlock;
    const i64 count = smaller(kBlock - inside, n - i);
    const char* block = static_cast<const char*>(row_at(data, type, element));
    std::uint16_t half_scale[kLanes] = {};
    __builtin_memcpy(half_scale, block, 2);
    const float scale = load_f16(half_scale)[0];
    signed char q[kBlock];
    if (type == RowType::q8_0) {
      __builtin_memcpy(q, block + 2, kBlock);
    } else {
      for (int j = 0; j < kBlock / 2; ++j) {
        q[j] = static_cast<signed char>((block[2 + j] & 15) - 8);
        q[j + kBlock / 2] = static_cast<signed char>((block[2 + j] >> 4 & 15) - 8);
      }
    }
    if (count == kBlock) {
      for (i64 j = 0; j < kBlock; j += kLanes) store(to + i + j, scale * load_i8(q + j));
    } else {
      for (i64 j = 0; j < count; ++j) to[i + j] = scale * static_cast<float>(q[inside + j]);
    }
    i += count;
  }
}

// The lanes of v, which are from -128 to 127.
GRAFT_VEC void store_bytes(signed char* to, vi v) {
  typedef signed char bytes __attribute__((vector_size(kLanes)));
  const bytes narrow = __builtin_convertvector(v, bytes);
  __builtin_memcpy(to, &narrow, sizeof(narrow));
}

// The scale of a block, whose bits it stores, and its inverse. Both kinds of blocks round as ggml does.
GRAFT_VEC float inverse_of(float scale, char* block) {
  const std::uint16_t bits = float_to_f16(scale);
  __builtin_memcpy(block, &bits, 2);
  return scale == 0.f ? 0.f : 1.f / scale;
}
GRAFT_LOCAL void store_q8(const float* x, char* block) {
  constexpr float kWhole = 12582912.f;  // 1.5 * 2^23: the low bits of a sum with it are the nearest integer
  vf top = zero();
  for (i64 j = 0; j < kBlock; j += kLanes) top = max_nan(absolute(load(x + j)), top);
  const float inverse = inverse_of(max_lanes_nan(top) / 127.f, block);
  for (i64 j = 0; j < kBlock; j += kLanes) {
    const vi q = (vi)(load(x + j) * inverse + kWhole) - (vi)splat(kWhole);
    store_bytes(reinterpret_cast<signed char*>(block + 2 + j), q);
  }
}
GRAFT_LOCAL void store_q4(const float* x, char* block) {
  vf most = zero();
  for (i64 j = 0; j < kBlock; j += kLanes) most = max_nan(absolute(load(x + j)), most);
  float top = max_lanes_nan(most);
  i64 first = 0;  // the first of the largest magnitude becomes -8
  while (first < kBlock && __builtin_fabsf(x[first]) != top) ++first;
  if (first < kBlock) top = x[first];
  const float inverse = inverse_of(top / -8.f, block);
  signed char q[kBlock];
  for (i64 j = 0; j < kBlock; j += kLanes) {
    const vf y = load(x + j) * inverse + 8.5f;
    const vf inside = select(y > 15.f, splat(15.f), select(y > 0.f, y, zero()));
    store_bytes(q + j, __builtin_convertvector(inside, vi));
  }
  for (i64 j = 0; j < kBlock / 2; ++j) block[2 + j] = static_cast<char>(q[j] | q[j + kBlock / 2] << 4);
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
  for (i64 i = 0; i < n; i += kBlock, block += row_bytes(type, kBlock))
    type == RowType::q8_0 ? store_q8(wide + i, block) : store_q4(wide + i, block);
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
      kOrderedTiles[vectors_ - 1][rows - 1](k, k_row, q_, kPanel, h_.d, p + s * kPanel, false, {});
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
      load_panel(T{}, k + y * k_row + x, a, b);
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
  for (; s + kKeysAtOnce <= end; s += kKeysAtOnce, k += kKeysAtOnce * k_row) {
    for (int y = 0; y < kKeysAtOnce; ++y) prefetch(values, s + y);
    dots<T, P, kKeysAtOnce>(few, i, k, k_row, s);
  }
  for (; s < end; ++s, k += k_row) {
    prefetch(values, s);
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
  for (i64 s = 0; s < n; ++s, v += v_row) {
    prefetch(keys, s);
    vf by[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) by[p] = splat(scores[p * kFewKeys + s]);
#pragma GCC unroll 4
    for (int x = 0; x < C; ++x) {
      vf a, b;
      load_panel(T{}, v + x * kPanel, a, b);
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
  for (; panel + kAtOnce <= end; panel += kAtOnce, v += kAtOnce * kPanel)
    add_panels<T, P, kAtOnce>(few, i, panel, v, v_row, n, ahead());
  for (; panel < end; ++panel, v += kPanel) add_panels<T, P, 1>(few, i, panel, v, v_row, n, ahead());
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

// Products of few queries in f32. Lanes are elements of a head; keys and values are read once for all queries. Those
// whose rows are not whole panels, or blocks, are widened to padded rows of f32.
class FewF32Products {
 public:
  FewF32Products(const AttentionHead& h, Few& few, int queries)
      : h_(h),
        few_(few),
        queries_(queries),
        whole_(row_elements(h.kv) == 1 && h.d % kPanel == 0 && h.dv % kPanel == 0),
        dealt_(whole_ && h.kv == RowType::bf16) {
    for (i64 x = 0; dealt_ && x < queries * few.depth; x += kPanel) deal(few.q + x);
  }

  void scores(i64 row0, i64 n, const Ahead& values) {
    if (!whole_) return scores_widened(row0, n);
    const void* k = row_at(h_.k, h_.kv, row0 * h_.k_row);
    if (h_.kv == RowType::f32) return scores_of<F32>(few_, queries_, k, h_.k_row, 0, n, values);
    if (h_.kv == RowType::bf16) return scores_of<BF16>(few_, queries_, k, h_.k_row, 0, n, values);
    scores_of<F16>(few_, queries_, k, h_.k_row, 0, n, values);
  }

  void add(i64 row0, i64 n, const Ahead& keys) {
    if (!whole_) return add_values_widened(row0, n);
    const void* v = row_at(h_.v, h_.kv, row0 * h_.v_row);
    if (h_.kv == RowType::f32) return add_values<F32>(few_, queries_, 0, few_.panels, v, h_.v_row, n, keys);
    if (h_.kv == RowType::bf16) return add_values<BF16>(few_, queries_, 0, few_.panels, v, h_.v_row, n, keys);
    add_values<F16>(few_, queries_, 0, few_.panels, v, h_.v_row, n, keys);
  }

  void finish(float* panel) const {
    if (dealt_) gather(panel);
  }

 private:
  void scores_widened(i64 row0, i64 n) {
    constexpr i64 kRows = 8;
    alignas(64) float wide[kRows * (kMaxHeadSize + kPanel)];
    for (i64 s = 0; s < n; s += kRows) {
      const i64 rows = smaller(kRows, n - s);
      for (i64 y = 0; y < rows; ++y) {
        widen_row(h_.k, h_.kv, (row0 + s + y) * h_.k_row, 0, h_.d, wide + y * few_.depth);
        for (i64 x = h_.d; x < few_.depth; ++x) wide[y * few_.depth + x] = 0;
      }
      scores_of<F32>(few_, queries_, wide, few_.depth, s, rows);
    }
  }
  void add_values_widened(i64 row0, i64 n) {
    alignas(64) float wide[kFewKeys * kPanel];
    for (i64 panel = 0; panel < few_.panels; ++panel) {
      const i64 width = smaller(kPanel, h_.dv - panel * kPanel);
      for (i64 s = 0; s < n; ++s) {
        widen_row(h_.v, h_.kv, (row0 + s) * h_.v_row, panel * kPanel, width, wide + s * kPanel);
        for (i64 x = width; x < kPanel; ++x) wide[s * kPanel + x] = 0;
      }
      add_values<F32>(few_, queries_, panel, 1, wide, kPanel, n);
    }
  }

  const AttentionHead& h_;
  Few& few_;
  const int queries_;
  const bool whole_, dealt_;
};

void run(const AttentionHead& head, i64 t0, i64 t1) {
  if (head.t <= kFewQueries) {
    few_queries<FewF32Products>(head, t0, t1);
  } else {
    many_queries<F32Products>(head, t0, t1);
  }
}

}  // namespace

static_assert(kPanel >= kLeastQueriesAtOnce);
const AttentionTable kAttention = {kPanel, run, store_row, widen_rows, false, false};

}  // namespace graft::simd::GRAFT_ISA
