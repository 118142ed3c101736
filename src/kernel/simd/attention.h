#pragma once

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Scaled dot-product attention of one head: softmax(scale * q k^T + mask) v without the score matrix, in blocks of
// keys.
namespace graft::simd {

inline constexpr std::int64_t kMaxHeadSize = 512;

// One head. q [T, D], k [S, D], v [S, Dv], output [T, Dv]; all of `dtype` (f32, f16, bf16), elements of the last dim
// next to each other, rows the given strides apart (in elements). D and Dv at most kMaxHeadSize.
struct AttentionHead {
  std::int64_t t = 0, s = 0, d = 0, dv = 0;
  DType dtype = DType::f32;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  std::int64_t q_row = 0, k_row = 0, v_row = 0, out_row = 0;
  // Added to the scores when float; where a bool is false the key is not seen. May be null; any strides.
  const void* mask = nullptr;
  DType mask_dtype = DType::b8;
  std::int64_t mask_row = 0, mask_col = 0;
  bool causal = false;  // query t sees keys 0 .. t
  float scale = 1;
  float* lse = nullptr;  // log of the sum of exponentials of each query's scores; may be null
};

struct AttentionTable {
  int block;  // queries that are best done in one call
  // Queries [t0, t1), at most `block` of them. A query that sees no key gives zeros, as PyTorch.
  void (*run)(const AttentionHead& head, std::int64_t t0, std::int64_t t1);
};

// The table of a level that is available here.
const AttentionTable& attention(Isa isa);
inline const AttentionTable& attention() { return attention(active_isa()); }

namespace baseline {
extern const AttentionTable kAttention;
}
namespace avx2 {
extern const AttentionTable kAttention;
}
namespace avx512 {
extern const AttentionTable kAttention;
}

}  // namespace graft::simd
