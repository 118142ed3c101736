#pragma once

#include "kernel/kernel.h"
#include "kernel/norm/norm_vec.h"

namespace graft {

// Rotary position embedding. Inputs x [B, H, T, D] f32 with contiguous rows, cos and sin f32 of x's shape (expanded:
// stride 0), their rows contiguous. Output [B, H, T, D] f32, rows contiguous. No attributes.
extern const Kernel kRope;

struct RopeAnglesAttrs {
  double scale = 1;
};

// Inputs: positions i32 or i64 [B, T] and frequencies f32 [D / 2], contiguous. Outputs: f32 [B, 1, T, D], the scaled
// cosines and sines of position * frequency, twice in a row.
extern const Kernel kRopeAngles;

// The same with the kernels of a given instruction set.
void run_rope(const KernelContext& ctx, const simd::RowsTable& table) noexcept;

}  // namespace graft
