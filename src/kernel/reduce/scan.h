#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace graft {

enum class ScanOp : std::int32_t { sum, prod };
struct ScanAttrs {
  ScanOp op = ScanOp::sum;
  std::int32_t dim = 0;
};
// inputs {x}, outputs {y}: running sums or products along a dimension; both of any strides, same shape.
// Floats accumulate in double. Scratch: scan_scratch_bytes().
extern const Kernel kScan;

// Scratch bytes of a launch with few long scans, each of which threads divide; 0 otherwise.
std::int64_t scan_scratch_bytes(const TensorDesc& x, const ScanAttrs& attrs);

}  // namespace graft
