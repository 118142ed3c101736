#pragma once

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Scaled dot-product attention of one head: softmax(scale * q k^T + mask) v without the score matrix, in blocks of
// keys.
namespace graft::simd {

inline constexpr std::int64_t kMaxHeadSize = 512;

// How rows of keys and values are stored. q8_0 and q4_0: ggml's blocks of 32 elements, an f16 scale and 32 int8 or 16
// bytes of two elements each.
enum class RowType : std::uint8_t { f32, f16, bf16, q8_0, q4_0 };
inline constexpr std::int64_t kBlock = 32;

// Elements that are stored together.
[[gnu::always_inline]] constexpr std::int64_t row_elements(RowType type) { return type < RowType::q8_0 ? 1 : kBlock; }

// Bytes of n elements; in blocks, of the whole ones among them.
[[gnu::always_inline]] constexpr std::int64_t row_bytes(RowType type, std::int64_t n) {
  return type == RowType::q8_0   ? n / kBlock * 34
         : type == RowType::q4_0 ? n / kBlock * 18
                                 : n * (type == RowType::f32 ? 4 : 2);
}

// The type of rows of n elements, each stored as `stored` numbers of a dtype: f32, f16, bf16, or bytes (u8) of blocks.
inline RowType row_type(DType dtype, std::int64_t stored, std::int64_t n) {
  return dtype == DType::f32                     ? RowType::f32
         : dtype == DType::f16                   ? RowType::f16
         : dtype == DType::bf16                  ? RowType::bf16
         : stored == row_bytes(RowType::q8_0, n) ? RowType::q8_0
                                                 : RowType::q4_0;
}

// One head. q [T, D], k [S, D], v [S, Dv], output [T, Dv]; q and output of `dtype` (f32, f16, bf16); the last dimension
// contiguous, rows at the given strides (in elements). D and Dv at most kMaxHeadSize; for rows in blocks D, Dv and the
// strides are multiples of kBlock.
struct AttentionHead {
  std::int64_t t = 0, s = 0, d = 0, dv = 0;
  DType dtype = DType::f32;
  RowType kv = RowType::f32;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  std::int64_t q_row = 0, k_row = 0, v_row = 0, out_row = 0;
  // Row of keys and values that holds key s: s - origin, or (s - origin) % ring in a ring buffer of `ring` rows.
  std::int64_t origin = 0, ring = 0;
  // Float: added to the scores; bool: false hides the key. May be null; any strides.
  const void* mask = nullptr;
  DType mask_dtype = DType::b8;
  std::int64_t mask_row = 0, mask_col = 0;
  // Which keys a query sees when causal: `group` consecutive queries are heads of one token, so query t belongs to
  // token t / group, whose position is t / group + shift. It sees keys up to its position; of these only the last
  // `window` and those of its own chunk (0: no limit). Tokens before `first_token` are padding and see none.
  bool causal = false;
  std::int64_t group = 1, shift = 0, first_token = 0, window = 0, chunk = 0;
  // [token][2]: the first and the last position of the token's block, whose keys it sees too: those within the window,
  // or with whole_blocks all. Both ascend with the tokens; the last is less than s. May be null.
  const std::int64_t* blocks = nullptr;
  bool whole_blocks = false;
  // Added to the scores of causal attention, after the softcap: bias[min(position - key, biases - 1)]. Each head of a
  // group has its own row of `biases` elements. May be null.
  const float* bias = nullptr;
  std::int64_t biases = 0;
  float scale = 1;
  float softcap = 0;            // scores become softcap * tanh(score / softcap) before the mask; 0: unchanged
  const float* sink = nullptr;  // [group]: a score in the softmax that has no value; may be null
  float* lse = nullptr;         // log of the sum of exponentials of each query's scores; may be null
  bool in_bf16 = false;         // keys and values in f32 may be rounded to bf16: AttentionTable::bf16
  // The head that the caller runs next: few_queries() prefetches its keys and values. May be null.
  const AttentionHead* next = nullptr;
};

// A lower bound of every table's `block`.
inline constexpr int kLeastQueriesAtOnce = 8;

struct AttentionTable {
  int block;  // the best number of queries for one call
  // Queries [t0, t1), at most `block` of them. A query that sees no key gives zeros, as in PyTorch.
  void (*run)(const AttentionHead& head, std::int64_t t0, std::int64_t t1);
  // Converts n elements of a row of keys or values, each rounded once; n a multiple of row_elements().
  void (*store_row)(const void* from, DType dtype, std::int64_t n, RowType type, void* to);
  // Copies rows of n elements, `row` elements apart, to contiguous rows of f32.
  void (*widen_rows)(const void* from, DType dtype, std::int64_t row, std::int64_t rows, std::int64_t n, float* to);
  // Whether blocks of queries are multiplied in bf16 when keys and values are bf16 or in blocks, or may be rounded to
  // it: queries and softmax weights are then rounded too. Sums are always f32, and so are products of all other types.
  bool bf16;
  // Whether up to kLeastQueriesAtOnce queries are multiplied with rows in blocks as bytes: queries, and weights times
  // the scales of the blocks, are then rounded to 16 bits of the largest of a head and of a block of keys.
  bool bytes;
};

GRAFT_TABLE("vec vnni512 bf16", AttentionTable, kAttention, attention)

}  // namespace graft::simd
