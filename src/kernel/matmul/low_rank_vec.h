#pragma once

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Products with matrices of low rank. Each row is summed in an order that depends on its own operands alone, not on how
// many rows are computed together: its bits are the same in every batch.
namespace graft::simd {

// Rows of one call at most.
inline constexpr int kLowRankRows = 4;

struct LowRankTable {
  // t[r, q] = sum_k x[r, k] * a[q, k] for `rows` rows and q in [q0, q1). x of `dtype` (f32, f16, bf16); strides in
  // elements; a [.., depth] contiguous.
  void (*down)(const void* x, DType dtype, std::int64_t x_stride, int rows, std::int64_t depth, const float* a,
               std::int64_t q0, std::int64_t q1, float* t, std::int64_t t_stride);

  // out[r, j] = y[r, j] + sum_q t[r, q] * b[q, j] for j in [j0, j1), rounded once; y and out of `dtype`, which may be
  // the same memory; b [rank, columns] contiguous.
  void (*up)(const void* y, std::int64_t y_stride, void* out, std::int64_t out_stride, DType dtype, int rows,
             const float* t, std::int64_t t_stride, std::int64_t rank, const float* b, std::int64_t columns,
             std::int64_t j0, std::int64_t j1);
};

GRAFT_TABLE("vec", LowRankTable, kLowRank, low_rank)

}  // namespace graft::simd
