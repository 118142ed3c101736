#pragma once

#include "kernel/attention/attention_vec.h"

// What targets with more than AVX-512 take from its table. They call it, since a table of another source may not be
// initialized yet when theirs is. Included only by their sources: see vec.h.
namespace graft::simd::GRAFT_ISA {
namespace {

void widen_rows(const void* from, DType dtype, std::int64_t row, std::int64_t rows, std::int64_t n, float* to) {
  avx512::kAttention.widen_rows(from, dtype, row, rows, n, to);
}
void store_row(const void* from, DType dtype, std::int64_t n, RowType type, void* to) {
  avx512::kAttention.store_row(from, dtype, n, type, to);
}

}  // namespace
}  // namespace graft::simd::GRAFT_ISA
