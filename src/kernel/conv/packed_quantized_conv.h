#pragma once

#include <cstdint>

#include "kernel/conv/conv.h"
#include "kernel/conv/quantized_conv_vec.h"
#include "kernel/kernel.h"

// Convolutions of bytes, x = scale * (q - zero), with 8-bit weights packed at load: not transposed, three spatial
// dimensions as in kernel/conv/conv.h. Results are channels last, as those of kernel/conv/packed_conv.h.
namespace graft {

// Packs a weight [O, C / groups, KD, KH, KW] i8 with zero point 0, contiguous; with has_weight_scale its scale, f32 [O]
// or of one element; with conv.has_bias a bias f32 [O]. Output: u8 [packed_quantized_conv_bytes()]. The input's zero
// point is folded into the initial value of the sums, and its scale into the channels' scales.
struct PackQuantizedConvAttrs {
  ConvAttrs conv;
  float input_scale = 1;
  std::int32_t input_zero = 0;  // zero point of the input as unsigned bytes, 0 .. 255
  std::int32_t has_weight_scale = 0;
  float weight_scale = 1;  // used when no input holds the scale
};
extern const Kernel kPackQuantizedConv;
std::int64_t packed_quantized_conv_bytes(const Shape& weight, const ConvAttrs& conv);

// Largest depth whose sum fits 32 bits, whatever the bytes are.
inline constexpr std::int64_t kLongestByteSum = 65536;

// Inputs: x [N, C, D, H, W] i8 or u8 of any strides (depthwise: channels last); the packed weight; with has_residual a
// tensor of bytes [N, O, D', H', W'], channels last and positions evenly spaced. Output f32, or i8 or u8: quantized by
// `first`; with a residual, then dequantized, the residual added, and quantized by `second`. Zero points are those of
// the bytes as stored.
struct PackedQuantizedConvAttrs {
  ConvAttrs conv;
  std::int64_t kernel[3] = {1, 1, 1};
  std::int32_t input_zero = 0;  // value of the padding
  simd::QuantizeTo first, second;
  std::int32_t zero = 0;  // zero point of the output
  float scale = 1;        // scale of the result of `first`
  float residual_scale = 1;
  std::int32_t residual_zero = 0;
  std::int32_t has_residual = 0;
};
extern const Kernel kPackedQuantizedConv;
extern const Kernel kPackedQuantizedDepthwiseConv;

// Scratch bytes on up to `threads` threads.
std::int64_t packed_quantized_conv_scratch_bytes(const TensorDesc& x, const PackedQuantizedConvAttrs& attrs,
                                                 int threads);
std::int64_t packed_quantized_depthwise_scratch_bytes(const TensorDesc& x, const TensorDesc& out,
                                                      const PackedQuantizedConvAttrs& attrs, int threads);

// With the inner loops of a given instruction set, on which the layout of the packed weight depends.
std::int64_t packed_quantized_conv_bytes(const Shape& weight, const ConvAttrs& conv,
                                         const simd::QuantizedConvTable& table);
void run_pack_quantized_conv(const KernelContext& ctx, const simd::QuantizedConvTable& table) noexcept;
void run_packed_quantized_conv(const KernelContext& ctx, const simd::QuantizedConvTable& table) noexcept;
void run_packed_quantized_depthwise_conv(const KernelContext& ctx, const simd::QuantizedConvTable& table) noexcept;

}  // namespace graft
