#pragma once

#include <cstdint>

#include "kernel/simd/dispatch.h"

// Inner loops of reductions of f32 elements in double.
namespace graft::simd {

enum class ReduceKind : std::uint8_t {
  sum,
  absolutes,
  squares,
  squared_differences,  // (x - shift)^2
  exponentials,         // exp(x - shift), in f32
  largest,              // NaN wins
  smallest,
  count_
};
inline constexpr int kReduceKinds = static_cast<int>(ReduceKind::count_);
// Independent sums of one run of elements, to hide the latency of additions.
inline constexpr int kReduceLanes = 32;

// Results are the same with every instruction set, except for the exponentials.
struct ReduceTable {
  // Element i of a run is added to lanes[i % kReduceLanes].
  void (*run[kReduceKinds])(const float* x, std::int64_t n, double shift, double* lanes);
  // Element i of each row is added to sums[i], with shift[i]; `row` is the stride of rows in elements.
  void (*columns[kReduceKinds])(const float* x, std::int64_t row, std::int64_t rows, std::int64_t n,
                                const double* shift, double* sums);
};

GRAFT_TABLE("vec", ReduceTable, kReduce, reduce)

}  // namespace graft::simd
