#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/norm/norm_vec.h"

// Normalizations. All tensors contiguous; f32, f16 and bf16 with f32 arithmetic, f64 with f64 arithmetic.
namespace graft {

// Input 0 is rows of `row` elements, each normalized on its own. Inputs 1 and 2: weight and bias, when present, each of
// any float dtype. Output 0: the input's dtype and shape; outputs 1 and 2, when present: the mean (not for RMS) and
// 1 / sqrt(variance + eps) of each row.
struct NormAttrs {
  std::int64_t row = 0;
  // Elements per weight and bias: 1 for a layer norm, whose weight has `row` elements; for a group norm the size of a
  // channel, where group g of a sample has channels [g * row / inner, ...) of `channels`.
  std::int64_t inner = 1;
  std::int64_t channels = 0;  // group norm only
  double eps = 0;
  std::int32_t has_weight = 0;
  std::int32_t has_bias = 0;
};
extern const Kernel kLayerNorm;
extern const Kernel kRmsNorm;  // output 1, when present: 1 / sqrt(mean square + eps)
extern const Kernel kGroupNorm;

// Normalization with given statistics. Inputs: x as planes of `inner` elements, plane i of channel i % channels; then
// mean and variance [channels], weight and bias [channels] when present, each of any float dtype. `row` is not used.
// Output: the input's dtype and shape.
extern const Kernel kBatchNorm;

// With the kernels of a given instruction set.
void run_layer_norm(const KernelContext& ctx, const simd::RowsTable& table) noexcept;
void run_rms_norm(const KernelContext& ctx, const simd::RowsTable& table) noexcept;
void run_group_norm(const KernelContext& ctx, const simd::RowsTable& table) noexcept;
void run_batch_norm(const KernelContext& ctx, const simd::RowsTable& table) noexcept;

}  // namespace graft
