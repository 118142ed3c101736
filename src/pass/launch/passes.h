#pragma once

#include <cstddef>

#include "lowering/launch.h"

namespace graft {

// Passes over the launches of a plan, before they get memory. src/pass/pipeline.cpp lists them in order. Which launches
// become one their kernels declare (kernel/fusion.h); the numbers are the same. A launch that became part of another is
// left without outputs, for drop_dead_launches to remove. Each returns the number of its rewrites.

// An activation or a clamp that alone reads the f32 result of a product or convolution becomes its epilogue, and a sum
// of that result with another tensor its residual.
std::size_t fuse_epilogues(LaunchSequence& sequence);

// A depthwise convolution becomes one launch with the convolution before it and the pointwise one after it where what
// lies between them is large: bands of rows at a time, on up to `threads` threads. Needs a sequence without dead
// launches.
std::size_t fuse_separable(LaunchSequence& sequence, int threads);

// Products of the same rows with several weights (queries, keys and values; both halves of a gated layer) become one
// launch, at the place of the first: the rows are quantized or rounded once, and threads have more to divide between
// two barriers. Needs a sequence without dead launches.
std::size_t merge_products(LaunchSequence& sequence);

// Elementwise launches and conversions whose result one later such launch of the same shape alone reads become one
// launch with it, kElementwiseChain, without the tensors in between.
std::size_t fuse_chains(LaunchSequence& sequence);

// Removes launches whose results nothing reads.
std::size_t drop_dead_launches(LaunchSequence& sequence);

// Brings launches of one side, CPU or device, together as far as what they read and write allows, so that a run changes
// sides less often. Launches from LaunchSequence::commit_begin on stay last. Counts the launches that move.
std::size_t order_for_stages(LaunchSequence& sequence);
// A copy by one of ggml's ops: it runs on the side where its input is.
bool is_ggml_copy(const Launch& launch);

// Lets an output take over the memory of an input that dies at the same launch (Launch::inplace). Leaves the lifetimes
// of all buffers in them.
std::size_t merge_inplace(LaunchSequence& sequence);

}  // namespace graft
