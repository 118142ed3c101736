#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv_vec.h"

// Inner loops of linear layers in f32 with operands rounded to bf16 and weights packed as by PairProducts::pack.
namespace graft::simd {

struct PackedPairTable {
  int panel_width;  // output channels of a panel
  int tile_rows;    // the most rows of a tile

  // PairProducts::pack with panels of panel_width.
  void (*pack)(const MatrixView& v, std::int64_t depth, std::int64_t columns, std::int64_t panel, std::int64_t k0,
               std::int64_t k1, std::uint32_t* packed);

  // n numbers rounded to bf16, to nearest even.
  void (*round)(const float* from, std::int64_t n, std::uint16_t* to);

  // Tiles [from, to) of one panel, which has `width` channels. The `rows` rows of x are divided into `tiles` tiles of
  // at most tile_rows; rows are `row` numbers apart and have `depth` numbers, then a zero when that is odd.
  void (*tiles)(const std::uint16_t* x, std::int64_t row, std::int64_t rows, std::int64_t tiles, std::int64_t from,
                std::int64_t to, std::int64_t depth, const std::uint32_t* panel, std::int64_t first_channel, int width,
                const ChannelEpilogue& epilogue);
};

GRAFT_OPTIONAL_TABLE("bf16 amxbf16", PackedPairTable, kPackedPairs, packed_pairs)

}  // namespace graft::simd
