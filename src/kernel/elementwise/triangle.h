#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace graft {

struct TriangleAttrs {
  std::int64_t diagonal = 0;
  bool upper = false;  // keep what is on and above the diagonal instead of on and below
};
// inputs {x}, outputs {y}: same shape of rank 2 or more, same dtype (any), any strides. Elements not kept become 0.
extern const Kernel kTriangle;

}  // namespace graft
