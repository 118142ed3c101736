#pragma once

#include <cstdint>

#include "kernel/conv/conv.h"
#include "kernel/kernel.h"

// Products with affinely quantized weights, w = scale * (q - zero), with a scale and a zero point for each `group` of
// consecutive elements of a row: kernel/quantized/quantized_vec.h.
namespace graft {

// The inputs after input and weight, in this order, each present when its flag is set. Scales are f32; zero points i8,
// i32 or i64; all are contiguous.
struct QuantizedAttrs {
  std::int64_t group = 1;             // divides the weight's depth
  std::int32_t bits = 8;              // of the weight's elements: 8, or 4 as kPackInt4 makes them
  std::int32_t has_weight_scale = 0;  // of one element, or [rows, depth / group]
  std::int32_t has_weight_zero = 0;   // likewise
  std::int32_t has_input_scale = 0;   // f32 or f64, of one element or one for each row of the input
  std::int32_t has_input_zero = 0;    // likewise
  std::int32_t has_bias = 0;          // f32
  float weight_scale = 1;             // instead of the inputs
  float input_scale = 1;
  std::int32_t weight_zero = 0;
  std::int32_t input_zero = 0;
};

// Input a [M, K], weight [N, K] i8 or [N, K / 2] u8, both contiguous; bias [M, N] of any strides; output [M, N].
// a f32: the weight is dequantized row by row as needed and multiplied in f32. Output f32.
// a i8 or u8: a = scale * (q - zero) is multiplied in integers, exactly within a group while sums fit 32 bits; groups
// are scaled and added in f32. Output f32; i32 for the sums alone, which wrap (bits = 8, no scale, zero or bias).
extern const Kernel kQuantizedMatmul;
std::int64_t quantized_matmul_scratch_bytes(const QuantizedAttrs& attrs, const TensorDesc& a, int threads);

struct QuantizedConvAttrs {
  QuantizedAttrs quantized;  // bits = 8, and a group is a whole row
  ConvAttrs conv;            // not transposed; its has_bias is not read
};
// Input x [N, C, D, H, W] i8 or u8 with one scale and zero point, and weight [O, C / groups, KD, KH, KW] i8, both
// contiguous; bias [O]; output [N, O, D', H', W'] f32, contiguous. Multiplied in integers, as above. Padding is the
// input's zero point.
extern const Kernel kQuantizedConv;
std::int64_t quantized_conv_scratch_bytes(const TensorDesc& weight, int threads);

// Input [rows, depth] i8 of values -8 to 7, contiguous; output [rows, depth / 2] u8: simd::QuantizedWeight. Fails the
// run on any other value.
extern const Kernel kPackInt4;

}  // namespace graft
