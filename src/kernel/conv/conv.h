#pragma once

#include <cstdint>

#include "kernel/conv/conv_vec.h"
#include "kernel/kernel.h"
#include "kernel/matmul/matmul_vec.h"

// Convolutions with three spatial dimensions; those with fewer have leading dimensions of size 1.
//
// Inputs: x [N, C, D, H, W] of any strides; weight, contiguous, [O, C / groups, KD, KH, KW], or when transposed
// [C, O / groups, KD, KH, KW]; with has_bias a contiguous bias [O]. Output [N, O, D', H', W'], contiguous. All of one
// dtype. C is not 0. The output's sizes are given, so output padding needs no attribute.
namespace graft {

struct ConvAttrs {
  std::int64_t groups = 1;
  std::int64_t stride[3] = {1, 1, 1};  // of D, H, W
  std::int64_t padding[3] = {0, 0, 0};
  std::int64_t dilation[3] = {1, 1, 1};
  std::int32_t transposed = 0;
  std::int32_t has_bias = 0;
};

// f32, f16 and bf16: sums are kept in f32 and rounded once.
extern const Kernel kConv;
// Scratch bytes that kConv needs on up to `threads` threads. Bounded by the cache and the number of threads, except for
// a transposed convolution, which keeps the weight in another order.
std::int64_t conv_scratch_bytes(const TensorDesc& x, const TensorDesc& weight, const TensorDesc& out,
                                const ConvAttrs& attrs, int threads);

// kConv for groups of one input channel each, not transposed.
extern const Kernel kDepthwiseConv;
std::int64_t depthwise_scratch_bytes(const TensorDesc& weight, const TensorDesc& out, const ConvAttrs& attrs,
                                     int threads);

// f64 with f64 sums, i8, u8, i16, i32 and i64 with wrapping arithmetic. Needs no scratch.
extern const Kernel kPlainConv;

// With the kernels of a given instruction set.
void run_conv(const KernelContext& ctx, const simd::MatmulTable& table) noexcept;
int conv_phases(const KernelContext& ctx, const simd::MatmulTable& table) noexcept;
std::int64_t conv_scratch_bytes(const TensorDesc& x, const TensorDesc& weight, const TensorDesc& out,
                                const ConvAttrs& attrs, int threads, const simd::MatmulTable& table);
void run_depthwise_conv(const KernelContext& ctx, const simd::ConvTable& table) noexcept;
std::int64_t depthwise_scratch_bytes(const TensorDesc& weight, const TensorDesc& out, const ConvAttrs& attrs,
                                     int threads, const simd::ConvTable& table);

}  // namespace graft
