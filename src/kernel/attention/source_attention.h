#pragma once

#include <cstdint>

#include "kernel/attention/attention_vec.h"
#include "kernel/kernel.h"

namespace graft {

struct SourcePositionsAttrs {
  std::int64_t capacity = 0;  // tokens of a row
};

// Begins new sources: what an encoder hands to a decoder. Inputs: position i64 [B, S] contiguous: 0, 1, 2, ... for the
// tokens of each row, negative for padding, anywhere. Outputs: position i64 [B, S], length i64 [R]: as it is after the
// source was stored; then the states of the source's length and of the decoder's, i64 [R], R >= B: at once 0 for the
// rows of the batch, so that nothing attends to half a source or goes on from another one.
extern const Kernel kSourcePositions;

// Stores a source. Inputs: key [B, Hkv, S, D], value [B, Hkv, S, D] of one dtype (f32, f16, bf16), elements of the last
// dim next to each other; position i64 [B, S] as kSourcePositions has checked it. Outputs: the caches of keys and
// values [R, Hkv, C, D], R >= B, of the types that kCachedAttention takes.
extern const Kernel kStoreSource;

struct SourceAttentionAttrs {
  float scale = 1;
};

// Attention over the whole source of each row. Inputs: q [B, H, T, D], elements of the last dim next to each other;
// length i64 [R]; the caches of keys and values. Output: [B, T, H, D] of q's dtype, contiguous. Fails the run when a
// row has no source.
extern const Kernel kSourceAttention;

}  // namespace graft
