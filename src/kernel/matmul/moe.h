#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/matmul/matmul_vec.h"
#include "weight/stored.h"

namespace graft {

// Each row times the matrix of its own expert, for mixtures of experts: rows of one expert are gathered, and the matrix
// of an expert without rows is not read.
struct ExpertLinearAttrs {
  std::int64_t experts = 0, out = 0, in = 0;  // sizes of the weight
  BlockType block = -1;                       // the weight's block type; -1: plain elements
  std::int16_t has_bias = 0;
  std::int16_t panels = 0;  // 1: the matrices are packed in panels, one behind the other; out is a multiple of 16
};
// Inputs: rows [N, K, in] or [N, 1, in] f32, experts [N, K] i64 or i32, weight [experts, out, in] f32, f16 or bf16, or
// its bytes (u8) when it is stored in ggml's blocks, and, when has_bias, bias [experts, out] f32; output [N, K, out]
// f32. All contiguous, in and K at least 1. A row of [N, 1, in] serves all K experts. With blocks, rows are first
// quantized to the type that ggml multiplies the weight's with, with panels to that of kBlockMatmul. Fails the run on
// an expert outside [0, experts), without reading there.
extern const Kernel kExpertLinear;

// Scratch bytes when up to `threads` threads run it.
std::int64_t expert_linear_scratch_bytes(const ExpertLinearAttrs& attrs, const TensorDesc& rows,
                                         const TensorDesc& experts, int threads);

// The same with the kernels of a given instruction set.
void run_expert_linear(const KernelContext& ctx, const simd::MatmulTable& table) noexcept;

}  // namespace graft
