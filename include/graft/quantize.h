#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "graft/tensor.h"

// Storage types of weights in packages: f16, bf16, and ggml's block formats ("q8_0", "q4_K", ...).
namespace graft {

// The type to store a tensor in when `wanted` (any letter case) is requested, spelled as in ggml: `wanted` itself where
// the rows (last dimension) divide into its blocks; else the nearest type that they divide into: q4_0 or q8_0 (blocks
// of 32) for formats with larger blocks, then f16. Throws InvalidArgument for an unknown type, for one that ggml
// quantizes only with an importance matrix, and for rank 0.
GRAFT_API std::string storable_type(std::string_view wanted, const Shape& shape);

// Bytes of a tensor stored in that type. Throws InvalidArgument when the rows do not divide into blocks.
GRAFT_API std::uint64_t stored_byte_count(std::string_view type, const Shape& shape);

// Writes a contiguous tensor of f32, f16 or bf16 in that type, with ggml's quantizers and this many threads. `out` has
// stored_byte_count() bytes. Throws InvalidArgument, also for values that are infinite or NaN.
GRAFT_API void quantize(const TensorView& tensor, std::string_view type, std::span<std::byte> out, int threads = 1);

// Packages can store matrices in block formats packed for graft's kernels, so that loading has nothing left to do, and
// stacks [n, rows, columns] of matrices. The bytes of such a one; 0 where the type or the shape has no packed layout.
GRAFT_API std::uint64_t packed_byte_count(std::string_view type, const Shape& shape);

// Packs the blocks of a matrix or a stack. `out` has packed_byte_count() bytes. Throws InvalidArgument for other
// counts.
GRAFT_API void pack_blocks(std::span<const std::byte> blocks, std::string_view type, const Shape& shape,
                           std::span<std::byte> out);

}  // namespace graft
