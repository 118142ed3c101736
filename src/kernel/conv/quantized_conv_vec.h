#pragma once

#include <cstdint>

#include "kernel/simd/dispatch.h"

// Inner loops of convolutions in 8 bits whose channels lie beside each other in memory ("channels last") and whose
// weights are packed. Strides are in elements.
namespace graft::simd {

// round(x * inverse), half to even, clamped to [low, high]: a quantized number less its zero. A NaN becomes a bound.
struct QuantizeTo {
  float inverse = 1;
  float low = -128, high = 127;
};

// What happens to a finished sum of integers of output channel c: y = sum * scale[c] + bias[c], with the scale and bias
// of the panel, is what is written as f32. As a byte: t = first(y), of a residual r also
// t = second(t * scale + (r - residual_zero) * residual_scale); then t + zero is written. Signed bytes are taken as
// they are, unsigned ones less 128: zeros are given so, and a flip is 0x80 for unsigned ones and 0 for signed ones.
struct QuantizedEpilogue {
  void* out = nullptr;
  std::int64_t out_row = 0;  // from one position to the next
  bool floats = false;
  QuantizeTo first, second;
  std::int32_t zero = 0;
  std::uint8_t flip = 0;
  const std::uint8_t* residual = nullptr;  // may be null
  std::int64_t residual_row = 0;
  float scale = 1, residual_scale = 1, residual_zero = 0;
  std::uint8_t residual_flip = 0;
};

// Beside each other in the input of an output: `depth` bytes from `offset` on. In the panel it takes as many rows as
// depth / step rounded up.
struct ByteRun {
  std::int64_t offset = 0;
  std::int64_t depth = 0;
};

// Rows of a tile: outputs that are `row` bytes of input apart.
struct ByteTile {
  const std::uint8_t* x = nullptr;
  std::int64_t first = 0;  // of the outputs, for the epilogue
  int rows = 0;            // 1 .. tile_rows
};

// The numbers of W output channels lie at W places: with n = W / lanes vectors, channel 4 n l + 4 j + i is at place
// j lanes + 4 l + i (i < 4): what widening bytes vector by vector gives.
[[gnu::always_inline]] constexpr int place_of(int channel, int vectors, int lanes) {
  return channel / 4 % vectors * lanes + channel / (4 * vectors) * 4 + channel % 4;
}

// Inputs are unsigned bytes, or signed ones that count as 128 more: `flip` is then 0x80.
struct QuantizedConvTable {
  int lanes;      // a panel has 1, 2 or 4 vectors of so many channels
  int step;       // weights lie as [rows of the sum][place][step]
  int tile_rows;  // the most rows of a tile

  // A tile of one panel: [i32 start of the sum, by place][f32 scale][f32 bias][weights]; `width` of its channels exist.
  void (*tile)(const ByteTile& tile, std::int64_t row, std::uint8_t flip, const ByteRun* runs, std::int64_t run_count,
               const std::byte* panel, int vectors, std::int64_t first_channel, int width,
               const QuantizedEpilogue& epilogue);

  // A line of outputs of a convolution with one input channel per output channel. Input column c of line l lies at
  // columns[l * pitch + c], where columns count from the padding's first; output o sees o * step + t * tap for each tap
  // t. Channels come in blocks: block_width() of those that are left, 4 vectors each of a quarter of that, packed as
  // [start][scale][bias] by place, then [lines][groups of `step` taps][place][step]. With `pairs` (steps and taps of 1,
  // at most 3 taps, and if packs_pairs) a line has two such groups, the second shifted by one tap: two outputs share
  // what was read.
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
