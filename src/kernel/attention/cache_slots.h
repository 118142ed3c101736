#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace graft {

// What a device is told of a call's tokens in the caches of keys and values, whose addresses there do not depend on
// data. Positions are i64 [B, T], contiguous, as kCachePositions has checked them; row b of the batch uses row
// KernelContext::kv_row(b) of the caches.

struct CacheSlotsAttrs {
  std::int64_t heads = 0;         // of the caches
  std::int64_t slots = 0;         // of a head
  std::int64_t rows = 0;          // of the caches
  std::int64_t ring = 0;          // position p is in slot p % ring; 0: in slot p
  std::int64_t tokens_first = 0;  // the order of the output: [B, T, H], else [B, H, T]
};

// Where each token's key and value go, in a cache [rows, heads, slots] that is seen as one list of slots. Input:
// positions. Output: i64 [B * T * H]. Padding goes to the slot after the last one.
extern const Kernel kCacheSlots;

struct CacheMaskAttrs {
  std::int64_t window = 0;  // as CachedAttentionAttrs
  std::int64_t chunk = 0;
  std::int64_t ring = 0;
  std::int64_t by_cache_row = 0;  // the output's rows are those of the caches; of rows that no token uses all is hidden
  std::int64_t has_blocks = 0;
  std::int64_t whole_blocks = 0;  // as CachedAttentionAttrs
};

// What each token sees: 0 for a slot that it sees, else -inf. Inputs: positions; with has_blocks the tokens' blocks, as
// kCachedAttention has them. Output: f16 [B, T, S], or with
// by_cache_row [R, T, S], contiguous: the first S slots. Padding sees the first one, since an average of nothing is
// NaN.
extern const Kernel kCacheMask;

// KernelContext::kv_row(b) of each row of the batch. Input: positions. Output: i32 [B].
extern const Kernel kCacheRows;

}  // namespace graft
