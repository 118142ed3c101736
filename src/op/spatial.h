#pragma once

#include "plan/tensor.h"

// Operators on one to three spatial dimensions: their kernels take three.
namespace graft {

// A tensor whose last `spatial` dimensions are the spatial ones, as [a, b, D, H, W]: the missing spatial dimensions
// have size 1, and so has a missing first one. A view.
Tensor with_three_spatial(const Tensor& tensor, int spatial);

}  // namespace graft
