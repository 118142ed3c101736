#pragma once

#include "kernel/conv/conv.h"
#include "lowering/tensor.h"

// Operators on one to three spatial dimensions: their kernels take three.
namespace graft {

class Call;
class Lowering;

// View of a tensor whose last `spatial` dimensions are spatial as [a, b, D, H, W]: missing spatial dimensions get size
// 1, and so does a missing first one.
Tensor with_three_spatial(const Tensor& tensor, int spatial);
// [O, C, D, H, W] of a weight [O, C, ...] with one to three spatial dimensions.
Shape with_three_spatial(const Shape& weight);

// A new tensor [N, C, ...] in channels-last order.
Tensor allocate_channels_last(DType dtype, const Shape& shape, Lowering& lowering);
// A tensor [N, C, D, H, W] in channels-last order: the tensor itself if possible, else a copy.
Tensor channels_last(const Tensor& x, Lowering& lowering);
// The same, but with a constant stride between positions, too.
Tensor dense_channels_last(const Tensor& x, Lowering& lowering);
// Whether its channels are adjacent and fill a vector.
bool has_channels_last(const Tensor& x);

// The argument weight_size of a convolution with a packed weight. Throws InvalidArgument for a size below 1.
Shape weight_size(const Call& call);

// The arguments of a convolution (those of aten.convolution), with an entry for each of three spatial dimensions.
struct ConvolutionSizes {
  ConvAttrs attrs;
  int spatial = 0;  // dimensions that the caller has
  Shape out;        // as the caller sees it
};
// For a weight of these sizes. Throws InvalidArgument if they do not fit.
ConvolutionSizes convolution_sizes(const Call& call, const Shape& weight);

}  // namespace graft
