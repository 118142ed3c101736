#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv.h"
#include "kernel/kernel.h"
#include "kernel/matmul/packed_pairs_vec.h"

// Linear layers in f32 whose operands are rounded to bf16 (MatmulPrecision::medium), with weights that are rounded and
// packed at load. Where the CPU multiplies bf16 (simd::packed_pairs() is not null) only.
namespace graft {

// Weight [N, K] in f32 or bf16, contiguous; output: words of 32 bits, a pair of numbers each, as many as
// packed_pair_words() says.
extern const Kernel kPackPairs;
std::int64_t packed_pair_words(std::int64_t outputs, std::int64_t depth, const simd::PackedPairTable& table);

// Attributes (PackedConvAttrs) and operands as those of kPackedLinear; the packed weight is that of kPackPairs.
extern const Kernel kPackedPairs;
// The same for kPackedLinears: the rows are rounded once.
extern const Kernel kPackedPairLinears;

// Scratch for the rounded rows of x, as kPackedPairs takes it.
std::int64_t packed_pair_scratch_bytes(const TensorDesc& x);

// The same with the loops of a given instruction set.
void run_pack_pairs(const KernelContext& ctx, const simd::PackedPairTable& table) noexcept;
void run_packed_pairs(const KernelContext& ctx, const simd::PackedPairTable& table) noexcept;

}  // namespace graft
