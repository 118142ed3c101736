#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace graft {

struct DistanceAttrs {
  double p = 2;          // not negative; infinity: the largest difference, 0: the number of differences
  std::int32_t own = 0;  // 1: all pairs i < j of the rows of one tensor
};
// f32 or f64, all contiguous and of one dtype: the p-norm of the difference of every row of x1 with every row of x2.
// inputs {x1 [B, P, M], x2 [B, R, M]}, outputs {[B, P, R]}; with `own`, inputs {x [N, M]}, outputs {[N * (N - 1) / 2]},
// the pairs in the order (0, 1), (0, 2), ..., (1, 2), ...
extern const Kernel kDistance;

}  // namespace graft
