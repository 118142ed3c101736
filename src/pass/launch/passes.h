#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lowering/launch.h"

namespace graft {

// Passes over the launches of a plan, before memory is assigned. src/pass/pipeline.cpp lists them in order. Kernels
// declare which launches can fuse (kernel/fusion.h); the values stay the same. A launch that was fused into another is
// left without outputs, for drop_dead_launches to remove. Each returns the number of its rewrites.

// An activation or clamp that alone reads the f32 result of a product or convolution becomes its epilogue; an addition
// of another tensor becomes its residual.
std::size_t fuse_epilogues(LaunchSequence& sequence);

// A depthwise convolution becomes one launch with the convolution before it and the pointwise one after it if the
// tensors between them are large: it computes bands of rows, on up to `threads` threads. Needs a sequence without dead
// launches.
std::size_t fuse_separable(LaunchSequence& sequence, int threads);

// Products of the same rows with several weights (queries, keys and values; both halves of a gated layer) become one
// launch, at the position of the first: the rows are quantized or rounded once, and threads have more work between two
// barriers. Needs a sequence without dead launches.
std::size_t merge_products(LaunchSequence& sequence);

// Elementwise launches and conversions whose result only a later such launch of the same shape reads are fused into it
// (kElementwiseChain), without the intermediate tensors.
std::size_t fuse_chains(LaunchSequence& sequence);

// Removes launches whose results nothing reads.
std::size_t drop_dead_launches(LaunchSequence& sequence);

// Makes groups of launches that can run side by side (LaunchSequence::groups) where all of `threads` threads are too
// many for each: independent branches and what they compute step by step. The schedule follows from counted work
// (relative_work) and moves launches so that a group's follow each other. Returns the number of groups.
std::size_t group_branches(LaunchSequence& sequence, int threads);

// Marks the states that the device alone reads and writes: they are kept there (Buffer::kept_on_device). At the end of
// a run it writes copies of finished values to them, which come before the launches of the CPU there. Returns how many.
std::size_t keep_states(LaunchSequence& sequence);
bool touches_kept(const LaunchSequence& sequence, const Launch& launch);

// Decides which of the launches that the device has (Launch::on_device) run there: the minimum cut between them and
// those that the CPU alone has, of the bytes that cross, each value once in a run, and of what launches cost on the CPU
// that the device could run. What costs the same on both is the device's, and so is all that no value connects with a
// launch of the CPU. Launches that touch what the device keeps are there; the others
// from LaunchSequence::commit_begin on stay on the CPU. Returns the number of launches that go to the CPU.
std::size_t choose_sides(LaunchSequence& sequence);
// What a choice costs in a run: the bytes that cross, and all that choose_sides() minimizes, in bytes.
struct SideCost {
  std::int64_t bytes = 0, total = 0;
};
SideCost cost_of_sides(const LaunchSequence& sequence, const std::vector<bool>& on_device);

// Groups launches of one side, CPU or device, as far as dependencies allow, so that a run changes sides less often.
// Launches from LaunchSequence::commit_begin on stay last. Counts the launches that move.
std::size_t order_for_stages(LaunchSequence& sequence);

// Brings launches of the device together that its backend makes one kernel of: products of one operand with several
// weights follow each other, and ROPE follows the launch that made its input (mostly RMS_NORM and MUL), SET_ROWS the
// ROPE of its rows. What follows each other already and may be one kernel stays so: sums behind products, GLU behind
// both of its operands. Stages stay as they are. Counts the launches that move.
std::size_t order_for_fusion(LaunchSequence& sequence);

// Divides launches of a device that do not depend on each other into up to `streams` streams
// (LaunchSequence::sections), where that saves more than the events between them cost, by counted work. Moves launches
// of the device among each other. Returns the number of sections.
std::size_t divide_streams(LaunchSequence& sequence, std::size_t streams);

// Lets an output reuse the memory of an input that dies at the same launch (Launch::inplace). Leaves the buffers'
// lifetimes set.
std::size_t merge_inplace(LaunchSequence& sequence);

}  // namespace graft
