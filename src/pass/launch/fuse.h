#pragma once

#include "lowering/launch.h"

namespace graft {

// Passes over the launches of a plan before memory is laid out. A launch that became part of another is left without
// outputs, so that dropping dead launches removes it.

// A matrix product or convolution whose f32 result one activation alone reads (relu, silu, gelu; of a convolution also
// clamps) writes the activation's result, and a convolution whose result one addition alone reads writes the sum. The
// same numbers: all of it is applied to the f32 sum before it is stored.
void fuse_sums(LaunchSequence& sequence);

// A depthwise convolution in f32 or in 8 bits becomes one launch with the convolution before it and the pointwise one
// after it where what lies between them is large: lines of it at a time, on up to `threads` threads. Needs a plan
// without dead launches.
void fuse_separable(LaunchSequence& sequence, int threads);

// Elementwise launches and conversions whose result one later such launch of the same shape alone reads become one
// launch with it, kElementwiseChain: the same numbers without the tensors in between.
void fuse_chains(LaunchSequence& sequence);

}  // namespace graft
