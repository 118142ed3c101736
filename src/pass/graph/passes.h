#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "ir/program.h"

namespace graft {

// Passes over the graph of a method whose weights are placed. src/pass/pipeline.cpp lists them in order, with those of
// kv_cache.h, partition.h and stored_weights.h that run before. Each leaves a valid program that computes the same;
// graph, weights and options alone decide what it does, so that a graph that is read again comes out the same. Each
// returns the number of nodes that it rewrote.

// The number that all elements of a weight are, by index; nothing when they differ or it cannot be known.
using UniformWeight = std::function<std::optional<double>(std::uint32_t weight)>;

// A weight without dimensions that is added, multiplied or the like becomes a number in the graph. (ExecuTorch's edge
// dialect makes weights of the numbers that a model was written with.)
std::size_t inline_scalars(ir::Program& program, const UniformWeight& uniform);

// pow, mean, add, rsqrt and multiplications that spell a root-mean-square norm over the last dimension in f32 become
// one aten.rms_norm. A norm in f16 or bf16 stays as it is: PyTorch rounds between the steps.
std::size_t fuse_rms_norm(ir::Program& program);

// x * cos + cat(-x[d/2:], x[:d/2]) * sin in f32 becomes one graft.rope.
std::size_t fuse_rope(ir::Program& program);

// Linear layers and convolutions with weights that torchao or PT2E quantized read these as they are: products of f32
// where the input is f32, of integers where it was quantized too. Weights of 4 bits are packed two to a byte.
std::size_t fuse_quantized(ir::Program& program);

// Such convolutions of bytes with weights of the program read these packed (graft.packed_quantized_conv), and write
// bytes where these alone are read: a clamp, the sum with another tensor of bytes, and what dequantizes and quantizes
// between them become part of the convolution.
std::size_t pack_quantized_convolutions(ir::Program& program, const UniformWeight& uniform);

// Convolutions in f32 with weights of the program read these packed (graft.packed_conv). A batch norm with given
// statistics that alone reads one becomes part of its weight and bias.
std::size_t pack_convolutions(ir::Program& program);

// Linear layers in f32 of more than a few rows, or of a number of rows that is open, whose weights nothing else reads
// read these packed (graft.packed_linear), unless the weights are very large. `in_bf16`: rounded to bf16, where the
// number of rows is known; those that are stored in it, too.
std::size_t pack_linear_layers(ir::Program& program, bool in_bf16);

// Removes nodes whose results nothing reads: what a pass leaves behind.
void drop_dead_nodes(ir::Program& program);

// Whether constant folding (load/fold.cpp) keeps the results of a node, given its inputs' bytes and theirs: small ones
// always, others where they do not grow much.
bool is_kept_at_load(std::int64_t input_bytes, std::int64_t result_bytes);

}  // namespace graft
