#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "graft/tensor.h"

// Weights in the types that packages store them as: f16, bf16, and ggml's block formats ("q8_0", "q4_K", ...).
namespace graft {

// The type to store a tensor as when `wanted` (in letters of any case) is asked for, as ggml writes it. `wanted` itself
// where its rows, which lie along the last dimension, divide into blocks; else the nearest that they do divide into:
// q4_0 or q8_0 (blocks of 32) for formats with larger blocks, then f16. Throws InvalidArgument for a type that is not
// known or that ggml quantizes with data about importance only, and for a number (no dimensions).
GRAFT_API std::string storable_type(std::string_view wanted, const Shape& shape);

// Bytes of a tensor stored as that type. Throws InvalidArgument when the rows do not divide into blocks.
GRAFT_API std::uint64_t stored_byte_count(std::string_view type, const Shape& shape);

// Writes a contiguous tensor of f32, f16 or bf16 as that type, by ggml's own quantizers, with that many threads.
// `out` has stored_byte_count() bytes. Throws InvalidArgument, also for values that are infinite or NaN.
GRAFT_API void quantize(const TensorView& tensor, std::string_view type, std::span<std::byte> out, int threads = 1);

// Matrices in blocks can lie in a package in the layout that graft's kernels read, so that nothing is left to do when
// it is loaded. The bytes that one takes; 0 where there is no such layout for the type or the shape.
GRAFT_API std::uint64_t packed_byte_count(std::string_view type, const Shape& shape);

// Lays out the blocks of a matrix. `out` has packed_byte_count() bytes. Throws InvalidArgument for other counts.
GRAFT_API void pack_blocks(std::span<const std::byte> blocks, std::string_view type, const Shape& shape,
                           std::span<std::byte> out);

}  // namespace graft
