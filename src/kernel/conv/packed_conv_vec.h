#pragma once

#include <cstdint>

#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/dispatch.h"

// Inner loops of convolutions in f32 whose channels lie beside each other in memory ("channels last") and whose weights
// are packed, and of pools over them. Strides are in floats.
namespace graft::simd {

// What happens to a finished sum x of output channel j: out = clamp(activation(x + bias[j] + residual[j])).
struct ChannelEpilogue {
  const float* bias = nullptr;      // by channel; may be null
  const float* residual = nullptr;  // as `out`; may be null
  float* out = nullptr;
  std::int64_t residual_row = 0, out_row = 0;  // from one position to the next
  Activation activation = Activation::none;
  bool clamps = false;  // a NaN stays
  float low = 0, high = 0;
};

// A K block, part of the sum that an output is: `depth` inputs beside each other from `offset` on, and as many rows of
// a panel.
struct KBlock {
  std::int64_t offset = 0;
  std::int64_t depth = 0;
};

// The most steps of a sum that are taken at once: a block of weights of that depth stays in the first-level cache.
inline constexpr std::int64_t kConvDepth = 256;
inline std::int64_t k_block_count(std::int64_t depth) { return (depth + kConvDepth - 1) / kConvDepth; }

// Cuts `depth` inputs beside each other from `offset` on into k_block_count(depth) K blocks of about the same depth:
// the weights of a block are prefetched during the block before it, for which a short one leaves no time. Returns the
// end.
inline KBlock* cut_k_blocks(std::int64_t offset, std::int64_t depth, KBlock* to) {
  for (std::int64_t left = k_block_count(depth); left > 0; --left) {
    const std::int64_t part = (depth + left - 1) / left;
    *to++ = {offset, part};
    offset += part;
    depth -= part;
  }
  return to;
}

// The most tiles of one call: their partial sums are kept between blocks of the depth.
inline constexpr int kConvTiles = 24;
// Tiles that all panels are read for, one after the other: their inputs stay in the first caches.
inline constexpr int kConvTilesAtOnce = 8;

// Rows of a tile: outputs that are `row` floats of input apart.
struct ConvTile {
  const float* x = nullptr;
  std::int64_t first = 0;  // of the outputs, for the epilogue
  int rows = 0;            // 1 .. tile_rows
};

struct PackedConvTable {
  int lanes;
  int panel_width;  // output channels of a panel: weights lie as [panel][step of the sum][panel_width]
  int tile_rows;    // the most rows of a tile

  // MatmulTable::pack: the panels of a weight [K, channels].
  void (*pack)(const MatrixView& v, std::int64_t depth, std::int64_t columns, std::int64_t panel, std::int64_t k0,
               std::int64_t k1, float* packed);

  // `count` tiles (at most kConvTiles) of one panel, which has `width` channels: the sum over all K blocks, each at
  // most kConvDepth deep. `next`: the panel that the caller takes next. Blocks of this one and the first block of that
  // one are prefetched; null where weights are in the second-level cache: prefetching costs some percent of the
  // products then. `fresh`: the inputs may be in another core's caches. Those of a tile are prefetched during the tile
  // before it.
  void (*tiles)(const ConvTile* tiles, int count, std::int64_t row, const KBlock* k_blocks, std::int64_t block_count,
                const float* panel, const float* next, bool fresh, std::int64_t first_channel, int width,
                const ChannelEpilogue& epilogue);

  // A panel is narrow where half vectors leave less of the last vector empty: of one and three of them, where sums are
  // of an even number of `steps`, at most kConvDepth, over one place of the input (`taps`). Its weights lie as [pair of
  // steps][half vector of channels][channel of it][step of the pair]: a vector has two steps of half as many channels.
  // Returns the half vectors, 0 where it is not narrow.
  int narrow_halves(std::int64_t taps, std::int64_t steps, std::int64_t width) const {
    const auto halves = static_cast<int>((width + lanes / 2 - 1) / (lanes / 2));
    return taps == 1 && steps % 2 == 0 && steps <= kConvDepth && halves % 2 == 1 ? halves : 0;
  }
  // The same as `tiles` of a narrow panel.
  void (*narrow_tiles)(const ConvTile* tiles, int count, std::int64_t row, std::int64_t steps, const float* panel,
                       std::int64_t first_channel, int width, const ChannelEpilogue& epilogue);

  // Lines of outputs of a convolution with one input channel per output channel: out[r, o, c] = sum over lines l and
  // taps t of weight[l, t, c] * lines[r][l][o * step + t * tap - pad, c], where that lies in [0, columns). A line that
  // is null counts as zeros. Weights [line_count, taps, weight_row]; vectors of channels can be read whole.
  struct Lines {
    std::int64_t rows = 1;                // lines of outputs, without gaps
    const float* const* lines = nullptr;  // [rows, line_count]
    int line_count = 0;
    std::int64_t taps = 0, tap = 1, step = 1, pad = 0, columns = 0, outputs = 0, channels = 0;
    std::int64_t column = 0;  // floats from one input column to the next
    const float* weight = nullptr;
    std::int64_t weight_row = 0;  // floats from the weights of one tap to those of the next
  };
  void (*depthwise)(const Lines& lines, const ChannelEpilogue& epilogue);

  // out[c] = the largest of inputs[0 .. count)[c], a NaN if one is; count > 0.
  void (*largest)(const float* const* inputs, std::int64_t count, std::int64_t channels, float* out);

  // to[w, c] = from[c * channel + w] for few channels.
  void (*interleave)(const float* from, std::int64_t channel, std::int64_t channels, std::int64_t columns, float* to);
};

GRAFT_TABLE("vec", PackedConvTable, kPackedConv, packed_conv)

}  // namespace graft::simd
