#pragma once

#include <cstdint>

#include "kernel/kernel.h"

// Reductions over any set of dimensions.
namespace graft {

enum class ReduceOp : std::int32_t {
  sum,
  mean,
  prod,
  amax,  // NaN wins
  amin,
  any,  // NaN counts as true
  all,
  count_nonzero,
  abs_sum,          // 1-norm
  root_of_squares,  // 2-norm
  abs_max,          // infinity norm
  abs_min,
  power_norm,         // (sum |x|^p)^(1/p), p in `parameter`
  variance,           // parameter: correction
  deviation,          // its square root
  mean_and_variance,  // second output: the mean
  log_sum_exp,
  argmax,  // i64 output: first index of the largest (or first NaN), counted along the reduced dimensions
  argmin,
  max_and_index,  // second output (i64): its index
  min_and_index,
};

struct ReduceAttrs {
  ReduceOp op = ReduceOp::sum;
  std::uint32_t reduced = 0;  // bit mask of the input's dimensions that are reduced
  double parameter = 0;
};

// inputs {x}, any strides; outputs: contiguous, one element per index of the kept dimensions, in their order (extra
// dimensions of size 1 do not matter). Floats accumulate in double, integers and bool in wrapping int64, whatever the
// output's dtype is; conversion to it is the last step. An empty reduction gives the op's identity, NaN for mean. The
// result does not depend on the number of threads. Scratch: reduce_scratch_bytes().
extern const Kernel kReduce;

// Scratch bytes of a launch whose outputs are too few to divide among threads; 0 otherwise.
std::int64_t reduce_scratch_bytes(std::int64_t outputs, std::int64_t inputs, int max_threads);

}  // namespace graft
