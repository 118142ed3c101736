#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "kernel/quantized/quantized.h"
#include "kernel/quantized/quantized_vec.h"

// How kernel/quantized*.cpp read the inputs of a launch.
namespace graft {

inline constexpr std::int64_t align_64(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// The value at `row` of a parameter with one element or one per row.
inline double quantized_parameter(const KernelContext& ctx, int input, std::int64_t row) {
  const TensorDesc& desc = ctx.in(input);
  const std::int64_t i = desc.numel() == 1 ? 0 : row;
  switch (desc.dtype) {
    case DType::f32:
      return static_cast<double>(ctx.input<float>(input)[i]);
    case DType::f64:
      return ctx.input<double>(input)[i];
    case DType::i8:
      return ctx.input<std::int8_t>(input)[i];
    case DType::i32:
      return ctx.input<std::int32_t>(input)[i];
    default:
      return static_cast<double>(ctx.input<std::int64_t>(input)[i]);
  }
}

// The operands of a launch; points into itself and the launch's inputs.
class QuantizedOperands {
 public:
  QuantizedOperands(const KernelContext& ctx, const QuantizedAttrs& attrs, std::int64_t depth)
      : ctx_(ctx), attrs_(attrs) {
    int input = 2;
    weight_.q = ctx.input<std::byte>(1);
    weight_.bits = attrs.bits;
    weight_.depth = depth;
    weight_.group = attrs.group;
    const std::int64_t groups = depth / attrs.group;
    if (attrs.has_weight_scale != 0) {
      weight_.scale = ctx.input<float>(input);
      if (ctx.in(input).numel() > 1) {
        weight_.scale_row = groups;
        weight_.scale_group = 1;
      }
      ++input;
    } else if (attrs.weight_scale != 1) {
      weight_.scale = &attrs_.weight_scale;
    }
    if (attrs.has_weight_zero != 0) {
      weight_.zero = ctx.inputs[input];
      weight_.zero_dtype = ctx.in(input).dtype;
      if (ctx.in(input).numel() > 1) {
        weight_.zero_row = groups;
        weight_.zero_group = 1;
      }
      ++input;
    } else if (attrs.weight_zero != 0) {
      weight_.zero = &attrs_.weight_zero;
      weight_.zero_dtype = DType::i32;
    }
    if (attrs.has_input_scale != 0) input_scale_ = input++;
    if (attrs.has_input_zero != 0) input_zero_ = input++;
    if (attrs.has_bias != 0) bias_ = input;
  }
  QuantizedOperands(const QuantizedOperands&) = delete;
  QuantizedOperands& operator=(const QuantizedOperands&) = delete;

  const simd::QuantizedWeight& weight() const { return weight_; }
  float input_scale(std::int64_t row) const {
    return input_scale_ < 0 ? attrs_.input_scale : static_cast<float>(quantized_parameter(ctx_, input_scale_, row));
  }
  // The zero point of the input as unsigned bytes.
  std::int32_t input_zero(std::int64_t row) const {
    const std::int32_t shift = ctx_.in(0).dtype == DType::i8 ? 128 : 0;
    if (input_zero_ < 0) return attrs_.input_zero + shift;
    const double zero = quantized_parameter(ctx_, input_zero_, row);
    if (std::abs(zero) < 65536) return static_cast<std::int32_t>(zero) + shift;
    ctx_.fail("the input's zero point ", zero, " is out of range");
    return shift;
  }
  int bias() const { return bias_; }  // input index, or -1

 private:
  const KernelContext& ctx_;
  const QuantizedAttrs attrs_;
  simd::QuantizedWeight weight_;
  int input_scale_ = -1, input_zero_ = -1, bias_ = -1;
};

// Copies n bytes of the input, as unsigned bytes.
inline void copy_as_unsigned(const void* from, DType dtype, std::int64_t n, std::uint8_t* to) {
  std::memcpy(to, from, static_cast<std::size_t>(n));
  if (dtype == DType::i8)
    for (std::int64_t i = 0; i < n; ++i) to[i] ^= 0x80;
}

// Sums of a row by group.
inline void sum_groups(const std::uint8_t* row, std::int64_t depth, std::int64_t group, std::int32_t* sums) {
  for (std::int64_t k = 0; k < depth; k += group) {
    std::int32_t sum = 0;
    for (std::int64_t i = k; i < k + group; ++i) sum += row[i];
    sums[k / group] = sum;
  }
}

// Rows of sums finished at once.
inline constexpr int kQuantizedRows = 16;
inline constexpr int kMostPanelColumns = 64;

}  // namespace graft
