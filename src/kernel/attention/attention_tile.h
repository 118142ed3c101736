#pragma once

#include "kernel/attention/attention_vec.h"
#include "kernel/matmul/tile.h"
#include "kernel/simd/vec_math.h"

// What the attention kernels have in common: which keys a query sees, and the softmax of blocks of scores. Included
// only by vector sources: see vec.h.
namespace graft::simd::GRAFT_ISA {
namespace {

// With at most this many queries (decoding), lanes are elements of a head, else queries.
constexpr i64 kFewQueries = kTileRows < 8 ? kTileRows : 8;

constexpr float kMinusInfinity = -__builtin_inff();

// Address of element `index` of keys or values, the start of a row.
GRAFT_VEC const void* row_at(const void* data, RowType type, i64 index) {
  return static_cast<const char*>(data) + row_bytes(type, index);
}

// What the mask adds to the score of query t and key s.
GRAFT_VEC float mask_at(const AttentionHead& h, i64 t, i64 s) {
  const i64 index = t * h.mask_row + s * h.mask_col;
  if (h.mask_dtype == DType::b8) return static_cast<const std::uint8_t*>(h.mask)[index] != 0 ? 0.f : kMinusInfinity;
  return get(h.mask, h.mask_dtype, index);
}

// scores[i] += mask of query t and keys s0 + i.
GRAFT_VEC void add_mask_row(const AttentionHead& h, i64 t, i64 s0, i64 n, float* scores) {
  i64 i = 0;
  if (h.mask_col == 0) {
    const float add = mask_at(h, t, s0);
    for (; add != 0 && i < n; ++i) scores[i] += add;
    return;
  }
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
  if (h.blocks != nullptr) return h.blocks[token * 2 + 1] + 1;
  const i64 end = token + h.shift + 1;
  return end < 0 ? 0 : smaller(h.s, end);
}

GRAFT_VEC i64 keys_begin(const AttentionHead& h, i64 t) {
  if (!h.causal || h.s == 0) return 0;  // no key: all tokens are padding
  const i64 token = t / h.group < h.first_token ? h.first_token : t / h.group;
  const i64 position = token + h.shift;
  i64 begin = h.window > 0 ? position - h.window + 1 : 0;
  if (h.chunk > 0 && position >= 0 && position / h.chunk * h.chunk > begin) begin = position / h.chunk * h.chunk;
  if (h.whole_blocks && h.blocks[token * 2] < begin) begin = h.blocks[token * 2];
  return begin < 0 ? 0 : begin;
}

// The row of keys and values that holds key s, and how many of the `n` keys from it on are contiguous.
GRAFT_VEC i64 row_of(const AttentionHead& h, i64 s) { return h.ring > 0 ? (s - h.origin) % h.ring : s - h.origin; }
GRAFT_VEC i64 together(const AttentionHead& h, i64 row, i64 n) { return h.ring > 0 ? smaller(n, h.ring - row) : n; }

GRAFT_VEC vf cap(vf x, float softcap) { return softcap * tanh(x * (1.f / softcap)); }

// What a query adds to the score of key s.
GRAFT_VEC float bias_at(const AttentionHead& h, i64 t, i64 s) {
  const i64 distance = t / h.group + h.shift - s;
  return distance < 0 ? 0.f : h.bias[t % h.group * h.biases + smaller(distance, h.biases - 1)];
}

// For masks of contiguous bools: 32 keys of a query are one word, whose bits become lanes key by key.
GRAFT_LOCAL void hide_keys(const AttentionHead& h, i64 t0, int queries, i64 s0, i64 n, float* scores) {
  const std::uint8_t* mask = static_cast<const std::uint8_t*>(h.mask) + t0 * h.mask_row + s0;
  for (int c = 0; c < queries; c += kLanes) {
    for (i64 s = 0; s < n; s += 32) {
      const i64 keys = smaller(n - s, 32);
      alignas(64) std::uint32_t seen[kLanes];
      std::uint32_t seen_by_all = ~0u;
      for (int j = 0; j < kLanes; ++j) {
        seen[j] = c + j < queries ? bits_of_bools(mask + (c + j) * h.mask_row + s, keys) : ~0u;
        seen_by_all &= seen[j];
      }
      if (seen_by_all == ~0u) continue;
      vu words;
      __builtin_memcpy(&words, seen, sizeof(words));
      for (i64 i = 0; i < keys; ++i) {
        float* row = scores + (s + i) * kPanel + c;
        const vi sees = (vi)(words >> static_cast<std::uint32_t>(i) & 1u) != 0;
        store(row, load(row) + select(sees, zero(), splat(kMinusInfinity)));
      }
    }
  }
}

// For masks of contiguous numbers, four queries at a time; most add nothing to most keys.
GRAFT_LOCAL void add_to_keys(const AttentionHead& h, i64 t0, int queries, i64 s0, i64 n, float* scores) {
  constexpr i64 kKeys = 32;
  alignas(64) float lines[4][kKeys];
  for (int j = 0; j < queries; j += 4) {
    const int rows = queries - j < 4 ? queries - j : 4;
    for (i64 s = 0; s < n; s += kKeys) {
      const i64 keys = smaller(n - s, kKeys);
      vf any = zero();
      for (int i = 0; i < 4; ++i) {
        for (i64 x = 0; x < kKeys; x += kLanes) store(lines[i] + x, zero());
        if (i < rows)
          widen(at(h.mask, h.mask_dtype, (t0 + j + i) * h.mask_row + s0 + s), h.mask_dtype, 1, keys, lines[i]);
        for (i64 x = 0; x < kKeys; x += kLanes) any = select(load(lines[i] + x) == 0.f, any, splat(1.f));
      }
      if (sum_lanes(any) == 0) continue;
      float* block = scores + s * kPanel + j;
      i64 x = 0;
      for (; x + 4 <= keys; x += 4) {
        v4 add[4];
        for (int i = 0; i < 4; ++i) add[i] = load4(lines[i] + x);
        transpose4(add[0], add[1], add[2], add[3]);
        for (int i = 0; i < 4; ++i) store4(block + (x + i) * kPanel, load4(block + (x + i) * kPanel) + add[i]);
      }
      for (; x < keys; ++x) {
        for (int i = 0; i < rows; ++i) block[x * kPanel + i] += lines[i][x];
      }
    }
  }
}

// Adds the mask to the scores [n keys][kPanel queries] of queries from t0 on and keys from s0 on.
GRAFT_LOCAL void add_mask(const AttentionHead& h, i64 t0, int queries, i64 s0, i64 n, float* scores) {
  if (h.mask_row == 0) {
    for (i64 s = 0; s < n; ++s) {
      const vf add = splat(mask_at(h, t0, s0 + s));
      for (int j = 0; j < queries; j += kLanes) store(scores + s * kPanel + j, load(scores + s * kPanel + j) + add);
    }
  } else if (h.mask_col == 0) {
    for (int c = 0; c < queries; c += kLanes) {
      vf add = zero();
      bool any = false;
      for (int j = 0; j < kLanes && c + j < queries; ++j) {
        const float x = mask_at(h, t0 + c + j, s0);
        any |= x != 0;
        add[j] = x;
      }
      for (i64 s = 0; any && s < n; ++s) store(scores + s * kPanel + c, load(scores + s * kPanel + c) + add);
    }
  } else if (h.mask_col == 1 && h.mask_dtype == DType::b8) {
    hide_keys(h, t0, queries, s0, n, scores);
  } else if (h.mask_col == 1) {
    add_to_keys(h, t0, queries, s0, n, scores);
  } else {
    for (int j = 0; j < queries; ++j) {
      for (i64 s = 0; s < n; ++s) scores[s * kPanel + j] += mask_at(h, t0 + j, s0 + s);
    }
  }
}

// Applies mask and causality to a block of scores with queries in the lanes.
GRAFT_LOCAL void mask_block(const AttentionHead& h, i64 t0, int queries, i64 s0, i64 n, float* scores) {
  if (h.mask != nullptr) add_mask(h, t0, queries, s0, n, scores);
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

// The maximum of n vectors kPanel apart. A NaN score is skipped here, but its weight is NaN, and so is the query's
// total.
GRAFT_VEC vf largest_of(const float* column, i64 n) {
  vf m[4];  // four independent maxima hide the latency of one
  for (vf& x : m) x = splat(kMinusInfinity);
  i64 s = 0;
  for (; s + 4 <= n; s += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) m[i] = larger(load(column + (s + i) * kPanel), m[i]);
  }
  for (; s < n; ++s) m[0] = larger(load(column + s * kPanel), m[0]);
  return larger(larger(m[0], m[1]), larger(m[2], m[3]));
}

// The shift subtracted from the scores is raised only when the largest score exceeds it by 8: weights up to e^8 do not
// overflow, and the sums so far need no rescaling.
GRAFT_VEC vf raised(vf shift, vf largest) { return select(largest > shift + 8.f, largest, shift); }

// Block of queries: lane j of a vector is query t0 + j, so that the softmax needs no sums across lanes. The constructor
// of `Products` packs the queries; scores() sets p[key][lane] for n <= kKeys keys from a row on, weight() is the
// exponential, and add() adds the values times these weights to acc[dv][lane].
template <typename Products>
void many_queries(const AttentionHead& h, i64 t0, i64 t1) {
  const int queries = static_cast<int>(t1 - t0);
  const int vectors = queries > kLanes ? 2 : 1;
  Products products(h, t0, queries);
  alignas(64) float acc[(kMaxHeadSize + 1) * kPanel];  // a vector may start in the middle of the last row
  alignas(64) float p[Products::kKeys * kPanel];
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
    n = together(h, row0, smaller(Products::kKeys, end - s0));
    products.scores(row0, n, p);
    if (h.softcap != 0) {
      for (i64 i = 0; i < n * kPanel; i += kLanes) store(p + i, cap(load(p + i), h.softcap));
    }
    mask_block(h, t0, queries, s0, n, p);
    for (int c = 0; c < vectors; ++c) {
      float* column = p + c * kLanes;
      const vf m = raised(largest[c], largest_of(column, n));
      const vf shift = finite_shift(m);
      const vf keep = Products::weight(largest[c] - shift);
      vf sum = zero();
      for (i64 s = 0; s < n; ++s) {
        const vf e = Products::weight(load(column + s * kPanel) - shift);
        store(column + s * kPanel, e);
        sum += e;
      }
      total[c] = fma(total[c], keep, sum);
      largest[c] = m;
      if (s0 > begin && !all_ones(keep)) {
        for (i64 i = 0; i < h.dv; ++i) store(acc + i * kPanel + c * kLanes, load(acc + i * kPanel + c * kLanes) * keep);
      }
    }
    products.add(row0, n, p, acc);
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
  // Four queries at a time: output rows may be kilobytes apart, and more would evict each other's cache lines.
  for (int j = 0; j < queries; j += 4) {
    finish(e, acc + j, 0, static_cast<int>(h.dv), j, queries - j < 4 ? queries - j : 4);
  }
  if (h.lse == nullptr) return;
  for (int j = 0; j < queries; ++j) {
    h.lse[t0 + j] = largest[j / kLanes][j % kLanes] + __builtin_logf(total[j / kLanes][j % kLanes]);
  }
}

}  // namespace
}  // namespace graft::simd::GRAFT_ISA
