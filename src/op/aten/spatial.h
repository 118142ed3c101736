#pragma once

#include "kernel/conv/conv.h"
#include "lowering/tensor.h"

// Operators on one to three spatial dimensions: their kernels take three.
namespace graft {

class Call;
class Lowering;

// A tensor whose last `spatial` dimensions are the spatial ones, as [a, b, D, H, W]: the missing spatial dimensions
// have size 1, and so has a missing first one. A view.
Tensor with_three_spatial(const Tensor& tensor, int spatial);
// [O, C, D, H, W] of a weight [O, C, ...] with one to three spatial dimensions.
Shape with_three_spatial(const Shape& weight);

// A new tensor [N, C, ...] with its channels beside each other in memory.
Tensor allocate_channels_last(DType dtype, const Shape& shape, Lowering& lowering);
// A tensor [N, C, D, H, W] with its channels beside each other: as it is where they are, else a copy.
Tensor channels_last(const Tensor& x, Lowering& lowering);
// A copy where positions, too, are evenly apart.
Tensor dense_channels_last(const Tensor& x, Lowering& lowering);
// Whether its channels are, and fill a vector.
bool has_channels_last(const Tensor& x);

// The argument weight_size of a convolution with a packed weight. Throws InvalidArgument for a size below 1.
Shape weight_size(const Call& call);

// The arguments of a convolution (those of aten.convolution), with an entry for each of three spatial dimensions.
struct ConvolutionSizes {
  ConvAttrs attrs;
  int spatial = 0;  // dimensions that the caller has
  Shape out;        // as the caller sees it
};
// For a weight of these sizes. Throws InvalidArgument where they do not fit each other.
ConvolutionSizes convolution_sizes(const Call& call, const Shape& weight);

}  // namespace graft
