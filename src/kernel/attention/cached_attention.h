#pragma once

#include <array>
#include <cstdint>

#include "kernel/attention/attention_vec.h"
#include "kernel/kernel.h"

namespace graft {

// Index of the first token that is not padding in a row of positions as kCachePositions has checked them; `tokens`:
// there is none.
inline std::int64_t first_token(const std::int64_t* row, std::int64_t tokens) {
  std::int64_t t = 0;
  while (t < tokens && row[t] < 0) ++t;
  return t;
}

struct CachedAttentionAttrs {
  float scale = 1;
  float softcap = 0;        // scores become softcap * tanh(score / softcap); 0: unchanged
  std::int64_t window = 0;  // a token sees the last `window` positions, its own included; 0: all
  std::int64_t chunk = 0;   // a token sees its own chunk of positions; 0: all
  std::int32_t has_sinks = 0;
  std::int32_t has_bias = 0;
  std::int32_t staged = 0;   // see below
  std::int64_t ring = 0;     // slots of a ring buffer: position p is in slot p % ring; 0: in slot p
  std::int64_t history = 0;  // positions kept before staged tokens: the window less 1
  std::int32_t has_blocks = 0;
  std::int32_t whole_blocks = 0;  // a token sees all of its block; 0: what the window has of it
};

// Attention of new tokens over a cache of keys and values, in which the tokens are stored first.
// Inputs: q [B, H, T, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv] of one dtype (f32, f16, bf16), the last dimension
// contiguous; position i64 [B, T] contiguous, as kCachePositions has checked them; with has_sinks sinks f32 [H]
// contiguous; with has_bias a bias f32 [H, N] contiguous, added to the scores: element min(n, N - 1) for a key n
// positions back; with has_blocks blocks i64 [B, T, 2] contiguous, as kCachePositions has checked them: the first and
// the last position of the block of tokens that see each other, for a token without one its own. Outputs: [B, T, H, Dv]
// of q's dtype, contiguous; the caches of keys [R, Hkv, C, D] and values [R, Hkv, C, Dv], R >= B, contiguous: f32, f16,
// bf16, or u8, the bytes of blocks of 32 elements (q8_0: 34, q4_0: 18). Row b of the batch uses row
// KernelContext::kv_row(b) of the caches; a token at position p is written to slot p and sees the slots up to p.
// Padding (position -1) is not written; its output is zeros. In a ring buffer a token sees at most the last W positions
// up to its own. A ring of W - 1 slots plus one per token keeps all that the tokens see. When more tokens come than it
// has slots for, they are `staged`: two more inputs, the rings of keys and values, are read, and the outputs are [B,
// Hkv, history + T, D] instead of the caches: the W - 1 positions (`history`) before the tokens, from the rings, then
// the tokens, padding included. kRingStore copies them into the ring.
extern const Kernel kCachedAttention;

// Copies staged tokens into the ring, once the run can no longer fail. Inputs: keys and values as kCachedAttention
// staged them; position i64 [B, T]. Outputs: the rings of keys and values.
extern const Kernel kRingStore;

inline constexpr int kMaxWindows = 8;

struct CachePositionsAttrs {
  std::int64_t capacity = 0;                          // tokens of a row
  std::int64_t windows = 0;                           // number of ring windows, at most kMaxWindows
  std::array<std::int64_t, kMaxWindows> window = {};  // the windows: positions that a token sees
  std::array<std::int64_t, kMaxWindows> slots = {};   // slots of the ring of each window; 0: it holds all tokens
  std::int32_t staged = 0;                            // the tokens enter the rings at the end of the run
  std::int64_t layers = 0;                            // with a length of their own
  std::int32_t recurrent = 0;                         // layers have recurrent states
  std::int32_t blocks = 0;                            // tokens see each other in blocks
};

// Checks the positions of new tokens. Inputs: position i64 [B, T], length i64 [R], with `windows` first i64
// [R, windows]: the first position that each ring still holds; with `layers` the lengths of these layers, i64
// [R, layers]; with `recurrent` half i64 [R], 0 or 1; with `blocks` blocks i64 [B, T, 2]; all contiguous. Outputs:
// position i64 [B, T], length i64 [R], with `windows` first, with `recurrent` half; then the states of length, first
// and the layers' lengths themselves. A row's tokens from the first position on are replaced. Each row must have its
// padding (negative) first, then consecutive positions, the first of them at most the length of the cache's row; a
// smaller one truncates the row at once, which with `recurrent` only 0 can. A block has its token's position in it,
// ends with the run at the latest and begins and ends no earlier than that of the token before. The run fails
// otherwise, also when a ring no longer holds what the first token sees. Padding is output as -1, length and first as
// they are after the tokens, half as the other one for rows with tokens. Unless staged, the state `first` is raised
// before anything is overwritten.
extern const Kernel kCachePositions;

struct LayerPositionsAttrs {
  std::int64_t column = 0;
  std::int64_t layer = 0;  // for messages
};

// Before a layer that runs may skip attends. Inputs: position i64 [B, T] as kCachePositions has checked it; the lengths
// of layers, i64 [R, layers]. Outputs: the positions, the lengths. The layer then holds the tokens of this run; the run
// fails where it holds fewer than those before them.
extern const Kernel kLayerPositions;

// The same as kCachedAttention with the kernels of a given instruction set.
void run_cached_attention(const KernelContext& ctx, const simd::AttentionTable& table) noexcept;

}  // namespace graft
