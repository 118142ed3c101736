#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "ir/program.h"
#include "weight/weights.h"

namespace graft {

// Passes over the graph of a method whose weights are placed. src/pass/pipeline.cpp lists them in order, with those of
// kv_cache.h, partition.h and stored_weights.h that run before. Each leaves a valid program that computes the same
// values. The result depends on graph, weights and options alone, so that a graph that is read again comes out the
// same. Each returns the number of nodes that it rewrote.

// The value that all elements of a weight (by index) have; nullopt if they differ or it cannot be known.
using UniformWeight = std::function<std::optional<double>(std::uint32_t weight)>;

// A 0-d weight in an addition, multiplication or the like becomes a number in the graph. (ExecuTorch's edge dialect
// turns literal numbers of a model into weights.)
std::size_t inline_scalars(ir::Program& program, const UniformWeight& uniform);

// pow, mean, add, rsqrt and multiplications that spell a root-mean-square norm over the last dimension in f32 become
// one aten.rms_norm. A norm in f16 or bf16 stays as it is: PyTorch rounds between the steps.
std::size_t fuse_rms_norm(ir::Program& program);

// x * cos + cat(-x[d/2:], x[:d/2]) * sin in f32 becomes one graft.rope.
std::size_t fuse_rope(ir::Program& program);
// The same where the angles are products of positions and constant frequencies: one graft.rope_at.
std::size_t rope_at_positions(ir::Program& program);

// Linear layers and convolutions use weights quantized by torchao or PT2E without dequantizing them first: f32 products
// for f32 inputs, integer products if the input was quantized too. 4-bit weights are packed two to a byte.
std::size_t fuse_quantized(ir::Program& program);

// Quantized convolutions with constant weights pack them (graft.packed_quantized_conv). They write bytes if only
// bytes are read: a clamp, a residual of bytes, and a dequantize-quantize pair between them become part of the
// convolution.
std::size_t pack_quantized_convolutions(ir::Program& program, const UniformWeight& uniform);

// f32 convolutions with constant weights pack them (graft.packed_conv). A batch norm with given statistics that
// alone reads one is folded into its weight and bias.
std::size_t pack_convolutions(ir::Program& program);
// For devices: the batch norm alone, into the weight as ggml's op reads it.
std::size_t fold_batch_norms(ir::Program& program);

// f32 linear layers with more than a few rows, or an unknown number, use packed weights (graft.packed_linear) if
// nothing else reads the weights, unless these are very large in total. `in_bf16`: packed as bf16, beside the weights
// where the number of rows is unknown, as few are not rounded; weights stored in bf16, too. `others`: counted as if
// they were in the program.
std::size_t pack_linear_layers(ir::Program& program, bool in_bf16, const OtherStages& others = {});

// Of integers and booleans (ids, positions, masks): a node that computes what an earlier one does is replaced by that
// one's result, and a sum with 0 by its operand.
std::size_t merge_equal_nodes(ir::Program& program);

// Removes nodes whose results nothing reads, which other passes leave behind.
void drop_dead_nodes(ir::Program& program);

// Whether constant folding (load/fold.cpp) keeps a node's results, given the bytes of its inputs and results: small
// ones always, others if they do not grow much.
bool is_kept_at_load(std::int64_t input_bytes, std::int64_t result_bytes);

}  // namespace graft
