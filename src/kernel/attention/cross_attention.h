#pragma once

#include <cstdint>

#include "kernel/attention/attention_vec.h"
#include "kernel/kernel.h"

namespace graft {

struct SourcePositionsAttrs {
  std::int64_t capacity = 0;  // tokens of a row
  std::int64_t append = 0;    // 1: the first position of a row is any up to its length, and the decoder's tokens stay
};

// Begins new encoder outputs for cross-attention, or goes on with them. Inputs: position i64 [B, S] contiguous: 0, 1,
// 2,
// ... for the tokens of each row, negative for padding, anywhere. Outputs: position i64 [B, S]; length i64 [R]: its
// value once the encoder output is stored; then the states of the encoder output's length and of the decoder's, i64
// [R], R >= B: set to 0 at once for the rows of the batch, so that nothing attends to half an encoder output or
// continues with another one's. To append sets the first to the row's first position, and leaves the second alone.
extern const Kernel kSourcePositions;

// Stores an encoder output. Inputs: key [B, Hkv, S, D], value [B, Hkv, S, D] of one dtype (f32, f16, bf16), the last
// dimension contiguous; position i64 [B, S] as kSourcePositions has checked it. Outputs: the caches of keys and values
// [R, Hkv, C, D], R >= B, of the types that kCachedAttention takes.
extern const Kernel kStoreEncoderKv;

struct SourceAttentionAttrs {
  float scale = 1;
  std::int32_t has_ranges = 0;
};

// Cross-attention over each row's whole encoder output, or the range of it that each token sees. Inputs: q [B, H, T,
// D], the last dimension contiguous; length i64 [R]; the caches of keys and values; with ranges i64 [B, T, 2]
// contiguous: the first and the last position that a token sees, 0 and -1 for one that sees none, whose result is
// zeros. Output: [B, T, H, D] of q's dtype, contiguous. Fails the run when a row has no encoder output, and for a range
// beyond it.
extern const Kernel kCrossAttention;

}  // namespace graft
