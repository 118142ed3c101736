#pragma once

#include <cstdint>

#include "kernel/simd/dispatch.h"

// Inner loops of channels-last convolutions in 8 bits with packed weights. Strides are in elements.
namespace graft::simd {

// round(x * inverse), half to even, clamped to [low, high]: a quantized number less its zero point. A NaN becomes a
// bound.
struct QuantizeTo {
  float inverse = 1;
  float low = -128, high = 127;
};

// The epilogue of an integer sum of output channel c: y = sum * scale[c] + bias[c], with the scale and bias of the
// panel, is written as f32. As a byte: t = first(y), with a residual r also
// t = second(t * scale + (r - residual_zero) * residual_scale); then t + zero is written. Arithmetic is on signed
// bytes: unsigned ones are offset by -128, and zero points are given accordingly. A flip is 0x80 for unsigned bytes and
// 0 for signed ones.
struct QuantizedEpilogue {
  void* out = nullptr;
  std::int64_t out_row = 0;  // stride of positions
  bool floats = false;
  QuantizeTo first, second;
  std::int32_t zero = 0;
  std::uint8_t flip = 0;
  const std::uint8_t* residual = nullptr;  // may be null
  std::int64_t residual_row = 0;
  float scale = 1, residual_scale = 1, residual_zero = 0;
  std::uint8_t residual_flip = 0;
};

// A contiguous run of an output's inputs: `depth` bytes from `offset` on. It has depth / step, rounded up, rows of the
// panel.
struct ByteRun {
  std::int64_t offset = 0;
  std::int64_t depth = 0;
};

// A tile: `rows` outputs whose inputs are `row` bytes apart.
struct ByteTile {
  const std::uint8_t* x = nullptr;
  std::int64_t first = 0;  // first output, for the epilogue
  int rows = 0;            // 1 .. tile_rows
};

// The order of W output channels in a panel: with n = W / lanes vectors, channel 4 n l + 4 j + i is at index
// j lanes + 4 l + i (i < 4), the order in which widening bytes vector by vector produces them.
[[gnu::always_inline]] constexpr int slot_of(int channel, int vectors, int lanes) {
  return channel / 4 % vectors * lanes + channel / (4 * vectors) * 4 + channel % 4;
}

// Inputs are unsigned bytes, or, with `flip` 0x80, signed ones read as unsigned bytes offset by 128.
struct QuantizedConvTable {
  int lanes;      // a panel has 1, 2 or 4 vectors of this many channels
  int step;       // weights are stored as [rows of the sum][channel][step]
  int tile_rows;  // the most rows of a tile

  // A tile of one panel: [i32 initial sum][f32 scale][f32 bias][weights], channels in slot_of() order; `width` of them
  // exist.
  void (*tile)(const ByteTile& tile, std::int64_t row, std::uint8_t flip, const ByteRun* runs, std::int64_t run_count,
               const std::byte* panel, int vectors, std::int64_t first_channel, int width,
               const QuantizedEpilogue& epilogue);

  // A row of outputs of a depthwise convolution. Input column c of row l is at columns[l * pitch + c], where columns
  // count from the first padding column; output o sees column o * step + t * tap for each tap t. Channels come in
  // blocks of block_width() of those left, 4 vectors each of a quarter of that, packed as [initial sum][scale][bias],
  // then [rows][groups of `step` taps][channel][step], channels in slot_of() order. With `pairs` (steps and taps of 1,
  // at most 3 taps, and if packs_pairs) a row has two such groups, the second shifted by one tap, so that two outputs
  // use the same loaded columns.
  struct Line {
    const std::uint8_t* const* columns = nullptr;
    std::int64_t pitch = 0, lines = 0, taps = 0, tap = 1, step = 1, outputs = 0, channels = 0;
    bool pairs = false;
    std::uint8_t flip = 0;
    const std::byte* weight = nullptr;
  };
  bool packs_pairs;
  void (*depthwise)(const Line& line, const QuantizedEpilogue& epilogue);

  // Channels of the next block of a depthwise weight: 16, 32 or 64, at most 4 * lanes.
  [[gnu::always_inline]] int block_width(std::int64_t left) const {
    for (int width = 16; width < 4 * lanes; width *= 2)
      if (left <= width) return width;
    return 4 * lanes;
  }
};

GRAFT_TABLE("baseline vnni", QuantizedConvTable, kQuantizedConv, quantized_conv)

}  // namespace graft::simd
