#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/simd/matmul.h"

namespace graft {

// Each row times the matrix of its own expert, for mixtures of experts: rows of one expert are brought together, and a
// matrix that no row names is not read.
struct ExpertLinearAttrs {
  std::int32_t has_bias = 0;
};
// Inputs: rows [N, K, in] or [N, 1, in] f32, experts [N, K] i64 or i32, weight [E, out, in] f32, f16 or bf16 and, when
// has_bias, bias [E, out] f32; output [N, K, out] f32. All contiguous, in and K at least 1. A row of [N, 1, in] serves
// all K experts. Fails the run on an expert that is not in [0, E), without reading there.
extern const Kernel kExpertLinear;

// Scratch that it needs when `threads` threads run it.
std::int64_t expert_linear_scratch_bytes(const TensorDesc& rows, const TensorDesc& experts, const TensorDesc& weight,
                                         int threads);

// The same with the kernels of a given level.
void run_expert_linear(const KernelContext& ctx, const simd::MatmulTable& table) noexcept;

}  // namespace graft
