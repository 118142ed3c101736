#pragma once

#include <cstdint>

#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/dispatch.h"

// Inner loops of channels-last convolutions in f32 with packed weights, and of pools. Strides are in floats.
namespace graft::simd {

// The epilogue of the sum x of output channel j: out = clamp(activation(x + bias[j] + residual[j])).
struct ChannelEpilogue {
  const float* bias = nullptr;      // by channel; may be null
  const float* residual = nullptr;  // layout of `out`; may be null
  float* out = nullptr;
  std::int64_t residual_row = 0, out_row = 0;  // strides of positions
  Activation activation = Activation::none;
  bool clamps = false;  // a NaN stays
  float low = 0, high = 0;
};

// A K block, a part of the sum of an output: `depth` contiguous inputs from `offset` on, and as many rows of a panel.
struct KBlock {
  std::int64_t offset = 0;
  std::int64_t depth = 0;
};

// Largest depth of one pass: a block of weights of that depth stays in the first-level cache.
inline constexpr std::int64_t kConvDepth = 256;
inline std::int64_t k_block_count(std::int64_t depth) { return (depth + kConvDepth - 1) / kConvDepth; }

// Cuts `depth` contiguous inputs from `offset` on into k_block_count(depth) K blocks of about the same depth: the
// weights of a block are prefetched during the one before it, for which a short one leaves no time. Returns the end.
inline KBlock* cut_k_blocks(std::int64_t offset, std::int64_t depth, KBlock* to) {
  for (std::int64_t left = k_block_count(depth); left > 0; --left) {
    const std::int64_t part = (depth + left - 1) / left;
    *to++ = {offset, part};
    offset += part;
    depth -= part;
  }
  return to;
}

// Largest number of tiles of one call: their partial sums are kept between K blocks.
inline constexpr int kConvTiles = 24;
// Tiles for which all panels are read in turn: their inputs stay in the first-level cache.
inline constexpr int kConvTilesAtOnce = 8;

// A tile: `rows` outputs whose inputs are `row` floats apart.
struct ConvTile {
  const float* x = nullptr;
  std::int64_t first = 0;  // first output, for the epilogue
  int rows = 0;            // 1 .. tile_rows
};

struct PackedConvTable {
  int lanes;
  int panel_width;  // output channels of a panel; weights are stored as [panel][step of the sum][panel_width]
  int tile_rows;    // the most rows of a tile

  // MatmulTable::pack: the panels of a weight [K, channels].
  void (*pack)(const MatrixView& v, std::int64_t depth, std::int64_t columns, std::int64_t panel, std::int64_t k0,
               std::int64_t k1, float* packed);

  // `count` tiles (at most kConvTiles) of one panel, which has `width` channels: the sum over all K blocks, each at
  // most kConvDepth deep. `next`: the panel of the caller's next call. The blocks of this panel and the first block of
  // the next are prefetched; null where weights are in the second-level cache, as prefetching then costs some percent
  // of the products. `fresh`: the inputs may be in another core's caches, so those of a tile are prefetched during the
  // tile before it.
  void (*tiles)(const ConvTile* tiles, int count, std::int64_t row, const KBlock* k_blocks, std::int64_t block_count,
                const float* panel, const float* next, bool fresh, std::int64_t first_channel, int width,
                const ChannelEpilogue& epilogue);

  // A panel is narrow when its channels fill one or three half vectors and its sum has an even number of `steps`, at
  // most kConvDepth, over a single tap (`taps`): less of the last vector is then unused. Its weights are stored as
  // [pair of steps][half vector of channels][channel of it][step of the pair], so that a vector has two steps of half
  // as many channels. Returns the number of half vectors, 0 where the panel is not narrow.
  int narrow_halves(std::int64_t taps, std::int64_t steps, std::int64_t width) const {
    const auto halves = static_cast<int>((width + lanes / 2 - 1) / (lanes / 2));
    return taps == 1 && steps % 2 == 0 && steps <= kConvDepth && halves % 2 == 1 ? halves : 0;
  }
  // `tiles` for a narrow panel.
  void (*narrow_tiles)(const ConvTile* tiles, int count, std::int64_t row, std::int64_t steps, const float* panel,
                       std::int64_t first_channel, int width, const ChannelEpilogue& epilogue);

  // Rows of outputs of a depthwise convolution: out[r, o, c] = sum over kernel rows l and taps t of
  // weight[l, t, c] * lines[r][l][o * step + t * tap - pad, c], where that is in [0, columns). A null line is padding.
  // Weights [line_count, taps, weight_row]; vectors of channels may be read whole.
  struct Lines {
    std::int64_t rows = 1;                // rows of outputs, without gaps
    const float* const* lines = nullptr;  // [rows, line_count]
    int line_count = 0;
    std::int64_t taps = 0, tap = 1, step = 1, pad = 0, columns = 0, outputs = 0, channels = 0;
    std::int64_t column = 0;  // floats between input columns
    const float* weight = nullptr;
    std::int64_t weight_row = 0;  // floats between the weights of consecutive taps
  };
  void (*depthwise)(const Lines& lines, const ChannelEpilogue& epilogue);

  // out[c] = the largest of inputs[0 .. count)[c], NaN if one is NaN; count > 0.
  void (*largest)(const float* const* inputs, std::int64_t count, std::int64_t channels, float* out);

  // to[w, c] = from[c * channel + w], for images of few channels.
  void (*interleave)(const float* from, std::int64_t channel, std::int64_t channels, std::int64_t columns, float* to);
};

GRAFT_TABLE("vec", PackedConvTable, kPackedConv, packed_conv)

}  // namespace graft::simd
