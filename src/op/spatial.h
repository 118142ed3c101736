#pragma once

#include "kernel/conv.h"
#include "plan/tensor.h"

// Operators on one to three spatial dimensions: their kernels take three.
namespace graft {

class Call;

// A tensor whose last `spatial` dimensions are the spatial ones, as [a, b, D, H, W]: the missing spatial dimensions
// have size 1, and so has a missing first one. A view.
Tensor with_three_spatial(const Tensor& tensor, int spatial);

// The arguments of a convolution (those of aten.convolution), with an entry for each of three spatial dimensions.
struct ConvolutionSizes {
  ConvAttrs attrs;
  int spatial = 0;  // dimensions that the caller has
  Shape out;        // as the caller sees it
};
// Throws InvalidArgument where they do not fit each other.
ConvolutionSizes convolution_sizes(const Call& call);

}  // namespace graft
