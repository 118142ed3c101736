#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/simd/attention.h"

namespace graft {

struct CachedAttentionAttrs {
  float scale = 1;
  float softcap = 0;        // scores become softcap * tanh(score / softcap); 0: as they are
  std::int64_t window = 0;  // a token sees the last `window` positions, its own among them; 0: all
  std::int64_t chunk = 0;   // a token sees its own chunk of positions; 0: all
  std::int32_t has_sinks = 0;
};

// Attention of new tokens over a cache of keys and values, which the tokens join first.
// Inputs: q [B, H, T, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv] of one dtype (f32, f16, bf16), elements of the last dim
// next to each other; position i64 [B, T] contiguous, as kCachePositions has checked them; with has_sinks sinks f32
// [H] contiguous. Outputs: [B, T, H, Dv] of q's dtype, contiguous; the caches of keys [R, Hkv, C, D] and values
// [R, Hkv, C, Dv], R >= B, contiguous: f32, f16, bf16, or u8 with 34 bytes for each 32 elements of a row (q8_0).
// Row b of the batch uses row b of the caches; a token at position p is written to slot p and sees the slots up to p.
// Padding (position -1) is not written; its output is zeros.
extern const Kernel kCachedAttention;

struct CachePositionsAttrs {
  std::int64_t capacity = 0;  // slots of a row
};

// Checks the positions of new tokens. Inputs: position i64 [B, T], length i64 [R], both contiguous. Outputs: position
// i64 [B, T], length i64 [R]. Each row must have its padding (negative) first, then positions that follow each other;
// the first at most length[b]: a smaller one truncates the row. Fails the run otherwise. Padding comes out as -1, and
// length as it is after the tokens.
extern const Kernel kCachePositions;

// The same as kCachedAttention with the kernels of a given level.
void run_cached_attention(const KernelContext& ctx, const simd::AttentionTable& table) noexcept;

}  // namespace graft
