#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv.h"
#include "kernel/kernel.h"
#include "kernel/matmul/packed_pairs_vec.h"

// Linear layers in f32 with operands rounded to bf16 (MatmulPrecision::medium); weights are rounded and packed at load.
// Only where the CPU multiplies bf16 (simd::packed_pairs() is not null).
namespace graft {

// Packs a weight [N, K] in f32 or bf16, contiguous. Output: packed_pair_words() words of 32 bits, each a pair of bf16.
extern const Kernel kPackPairs;
std::int64_t packed_pair_words(std::int64_t outputs, std::int64_t depth, const simd::PackedPairTable& table);

// Attributes (PackedConvAttrs) and operands as those of kPackedLinear, with a weight packed by kPackPairs.
extern const Kernel kPackedPairs;
// kPackedLinears with such weights: the rows are rounded once.
extern const Kernel kPackedPairLinears;

// Scratch bytes for the rounded rows of x, an input of kPackedPairs.
std::int64_t packed_pair_scratch_bytes(const TensorDesc& x);

// With the inner loops of a given instruction set.
void run_pack_pairs(const KernelContext& ctx, const simd::PackedPairTable& table) noexcept;
void run_packed_pairs(const KernelContext& ctx, const simd::PackedPairTable& table) noexcept;

}  // namespace graft
