#pragma once

#include "kernel/attention/attention_tile.h"

// Attention of few queries, as decoding has them. Included only by vector sources: see vec.h.
namespace graft::simd::GRAFT_ISA {
namespace {

constexpr i64 kFewKeys = 96;

// Rows to prefetch, `at_once` for each row computed. With few queries, keys and values come from memory, and rows may
// be a token apart, a stride that the hardware prefetcher does not follow. May be empty.
struct Ahead {
  const char* rows = nullptr;
  i64 stride = 0, bytes = 0, count = 0, at_once = 1;
};
// Into the second-level cache: for the first a core waits for fewer lines at once than memory could send. `count` rows
// from `row` on are computed.
GRAFT_VEC void prefetch(const Ahead& ahead, i64 row, i64 count = 1) {
  constexpr i64 kLine = 64;
  const i64 end = smaller((row + count) * ahead.at_once, ahead.count);
  if (ahead.stride == ahead.bytes) {  // one after the other: each line once
    const auto line = [&](i64 r) __attribute__((always_inline)) {
      return reinterpret_cast<std::uintptr_t>(ahead.rows + r * ahead.stride) / kLine * kLine;
    };
    const std::uintptr_t last = line(end);
    for (std::uintptr_t at = line(row * ahead.at_once); at < last; at += kLine)
      __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2);
    return;
  }
  for (i64 r = row * ahead.at_once; r < end; ++r) {
    const char* from = ahead.rows + r * ahead.stride;
    for (i64 i = 0; i < ahead.bytes; i += kLine) __builtin_prefetch(from + i, 0, 2);
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

// Up to kFewQueries queries. Of `Products`, scores() sets few.scores for n <= kFewKeys keys from a row on; add() sets
// few.acc to what it was times few.keep, plus the values times the weights in few.scores; finish() restores the order
// of the elements of a panel of results.
template <typename Products>
void few_queries(const AttentionHead& h, i64 t0, i64 t1) {
  const int queries = static_cast<int>(t1 - t0);
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
    largest[i] = h.sink != nullptr ? h.sink[(t0 + i) % h.group] : kMinusInfinity;
    total[i] = h.sink != nullptr ? 1 : 0;
  }
  for (i64 panel = 0; panel < few.panels; ++panel) {
    float* acc = few.acc + panel * kFewQueries * kPanel;
    for (i64 i = 0; i < queries * kPanel; i += kLanes) store(acc + i, zero());
  }
  Products products(h, few, queries);
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
    products.scores(row0, n, values);
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
    products.add(row0, n, keys);
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
      products.finish(a);
    }
    finish(e, acc, t0, queries, panel * kPanel, static_cast<int>(smaller(kPanel, h.dv - panel * kPanel)));
  }
  if (h.lse == nullptr) return;
  for (int i = 0; i < queries; ++i) h.lse[t0 + i] = largest[i] + __builtin_logf(total[i]);
}

}  // namespace
}  // namespace graft::simd::GRAFT_ISA
