#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/norm/norm_vec.h"

namespace graft {

// Softmax over rows of `row` elements, `inner` elements apart: the input is contiguous [.., row, inner], of f32, f16,
// bf16 or f64. Output: the input's dtype, or f32 for f16 and bf16. Scratch: softmax_scratch_bytes().
struct SoftmaxAttrs {
  std::int64_t row = 0;
  std::int64_t inner = 1;
  std::int32_t logarithm = 0;
};
extern const Kernel kSoftmax;

// Scratch bytes of a launch with few long rows, each of which threads divide; 0 otherwise.
std::int64_t softmax_scratch_bytes(const SoftmaxAttrs& attrs, std::int64_t elements);

// With the kernels of a given instruction set.
void run_softmax(const KernelContext& ctx, const simd::RowsTable& table) noexcept;

}  // namespace graft
