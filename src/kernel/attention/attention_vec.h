#pragma once

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Scaled dot-product attention of one head: softmax(scale * q k^T + mask) v without the score matrix, in blocks of
// keys.
namespace graft::simd {

inline constexpr std::int64_t kMaxHeadSize = 512;

// How rows of keys and values are stored. q8_0: ggml's blocks of 32 elements, an f16 scale and 32 int8 each.
enum class RowType : std::uint8_t { f32, f16, bf16, q8_0 };
inline constexpr std::int64_t kQ8Block = 32;
inline constexpr std::int64_t kQ8Bytes = 34;
// The type of rows of a dtype: f32, f16 or bf16; u8 stands for the bytes of q8_0 blocks.
inline RowType row_type(DType dtype) {
  return dtype == DType::f32    ? RowType::f32
         : dtype == DType::f16  ? RowType::f16
         : dtype == DType::bf16 ? RowType::bf16
                                : RowType::q8_0;
}

// Of n elements, of q8_0 those of the whole blocks among them.
inline std::int64_t row_bytes(RowType type, std::int64_t n) {
  return type == RowType::q8_0 ? n / kQ8Block * kQ8Bytes : n * (type == RowType::f32 ? 4 : 2);
}

// One head. q [T, D], k [S, D], v [S, Dv], output [T, Dv]; q and output of `dtype` (f32, f16, bf16), elements of the
// last dim next to each other, rows the given strides apart (in elements). D and Dv at most kMaxHeadSize; of q8_0 rows
// D, Dv and the strides are multiples of kQ8Block.
struct AttentionHead {
  std::int64_t t = 0, s = 0, d = 0, dv = 0;
  DType dtype = DType::f32;
  RowType kv = RowType::f32;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  std::int64_t q_row = 0, k_row = 0, v_row = 0, out_row = 0;
  // Row of keys and values where key s lies: s - origin, or of a ring of that many rows (s - origin) % ring.
  std::int64_t origin = 0, ring = 0;
  // Added to the scores when float; where a bool is false the key is not seen. May be null; any strides.
  const void* mask = nullptr;
  DType mask_dtype = DType::b8;
  std::int64_t mask_row = 0, mask_col = 0;
  // Which keys a query sees when causal: `group` queries in a row are heads of one token, query t belongs to token
  // t / group, whose position is that + shift. It sees the keys up to its position, of these the last `window` and
  // those of its own chunk (0: all). Tokens before `first_token` are padding and see none.
  bool causal = false;
  std::int64_t group = 1, shift = 0, first_token = 0, window = 0, chunk = 0;
  // Added to the scores of causal attention, after the softcap: bias[min(position - key, biases - 1)]; heads of one
  // group have rows of bias `biases` apart. May be null.
  const float* bias = nullptr;
  std::int64_t biases = 0;
  float scale = 1;
  float softcap = 0;            // scores become softcap * tanh(score / softcap) before the mask; 0: as they are
  const float* sink = nullptr;  // [group]: a score that takes part in the softmax without a value; may be null
  float* lse = nullptr;         // log of the sum of exponentials of each query's scores; may be null
  bool in_bf16 = false;         // keys and values in f32 may be rounded to bf16: AttentionTable::bf16
  // What the caller runs next: few queries prefetch its keys and values while they work. May be null.
  const AttentionHead* next = nullptr;
};

// Of any table's `block`.
inline constexpr int kLeastQueriesAtOnce = 8;

struct AttentionTable {
  int block;  // queries that are best done in one call
  // Queries [t0, t1), at most `block` of them. A query that sees no key gives zeros, as PyTorch.
  void (*run)(const AttentionHead& head, std::int64_t t0, std::int64_t t1);
  // Converts n elements of a row of keys or values, each rounded once; n a multiple of kQ8Block for q8_0.
  void (*store_row)(const void* from, DType dtype, std::int64_t n, RowType type, void* to);
  // Rows of n elements each, `row` elements apart, as f32 beside each other.
  void (*widen_rows)(const void* from, DType dtype, std::int64_t row, std::int64_t rows, std::int64_t n, float* to);
  // Whether products with many queries are in bf16 where keys and values are, or may be rounded to it: queries and the
  // weights of values are rounded too. Sums are in f32 everywhere, and so are products with all other types.
  bool bf16;
};

GRAFT_TABLE("vec bf16", AttentionTable, kAttention, attention)

}  // namespace graft::simd
