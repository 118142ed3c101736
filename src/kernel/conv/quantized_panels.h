#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernel/conv/conv_input.h"
#include "kernel/conv/packed_quantized_conv.h"

// The layout of packed 8-bit convolution weights and the epilogue of their sums, for packing and for the kernels.
namespace graft {

// Header bytes of a channel: the initial sum, the scale and the bias.
inline constexpr std::int64_t kPlaceHeaderBytes = 12;

// Runs of the input may be read in whole rows of the weight, up to this many bytes past their end: the weights there
// are zero.
inline constexpr std::int64_t kMostByteStep = 4;

inline std::uint8_t flip_of(DType dtype) { return dtype == DType::i8 ? 0x80 : 0; }

// A group's output channels in panels: whole ones of 4 vectors, and a last one of 1, 2 or 4.
struct BytePanels {
  std::int64_t width = 0, count = 0, rows = 0, row_bytes = 0;  // row_bytes: of a channel's weights
  int lanes = 0;

  BytePanels() = default;
  BytePanels(std::int64_t channels, std::int64_t sum_rows, const simd::QuantizedConvTable& table)
      : width(4 * table.lanes),
        count(ceil_div(channels, width)),
        rows(channels),
        row_bytes(sum_rows * table.step),
        lanes(table.lanes) {}
  int channels(std::int64_t panel) const { return static_cast<int>(std::min(width, rows - panel * width)); }
  int vectors(std::int64_t panel) const {
    const int needed = static_cast<int>(ceil_div(channels(panel), lanes));
    return needed == 3 ? 4 : needed;
  }
  std::int64_t bytes(std::int64_t panel) const { return vectors(panel) * lanes * (kPlaceHeaderBytes + row_bytes); }
  std::int64_t group_bytes() const { return (count - 1) * bytes(0) + bytes(count - 1); }
  std::int64_t offset(std::int64_t group, std::int64_t panel) const { return group * group_bytes() + panel * bytes(0); }
};

// Whether the taps of a kernel row are one run.
inline bool whole_lines(const ConvAttrs& conv, std::int64_t taps) {
  return conv.dilation[2] == 1 && conv.groups == 1 && taps > 1;
}

// Rows of the packed weight in a sum.
inline std::int64_t sum_rows(const Shape& weight, const ConvAttrs& conv, std::int64_t step) {
  if (whole_lines(conv, weight[4])) return weight[2] * weight[3] * ceil_div(weight[4] * weight[1], step);
  return weight[2] * weight[3] * weight[4] * ceil_div(weight[1], step);
}

inline bool packs_pairs(const ConvAttrs& conv, std::int64_t taps, const simd::QuantizedConvTable& table) {
  return table.packs_pairs && taps <= 3 && conv.stride[2] == 1 && conv.dilation[2] == 1;
}

// The epilogue for an output of that dtype, without its pointers. `residual`: its descriptor, or null.
inline simd::QuantizedEpilogue quantized_epilogue(const PackedQuantizedConvAttrs& attrs, DType out,
                                                  const TensorDesc* residual) {
  const auto less_128 = [](DType dtype) { return dtype == DType::u8 ? 128 : 0; };
  const auto flip = [](DType dtype) -> std::uint8_t { return dtype == DType::u8 ? 0x80 : 0; };
  simd::QuantizedEpilogue e;
  e.floats = out == DType::f32;
  if (e.floats) return e;
  e.first = attrs.first;
  e.zero = attrs.zero - less_128(out);
  e.flip = flip(out);
  if (residual == nullptr) return e;
  e.second = attrs.second;
  e.scale = attrs.scale;
  e.residual_scale = attrs.residual_scale;
  e.residual_zero = static_cast<float>(attrs.residual_zero - less_128(residual->dtype));
  e.residual_flip = flip(residual->dtype);
  return e;
}

inline std::string epilogue_text(const PackedQuantizedConvAttrs& attrs, DType out) {
  std::string text = attrs.has_residual != 0 ? ", a sum" : "";
  if (out != DType::f32) text += text.empty() ? ", quantized in the epilogue" : " and quantized in the epilogue";
  return text;
}

}  // namespace graft
