#pragma once

#include "kernel/kernel.h"
#include "kernel/norm/norm_vec.h"

namespace graft {

// Rotary position embedding. Inputs x [B, H, T, D] f32 with contiguous rows, cos and sin f32 of x's shape (expanded:
// stride 0), their rows contiguous. Output [B, H, T, D] f32, rows contiguous. No attributes.
extern const Kernel kRope;

// The same with the kernels of a given instruction set.
void run_rope(const KernelContext& ctx, const simd::RowsTable& table) noexcept;

}  // namespace graft
