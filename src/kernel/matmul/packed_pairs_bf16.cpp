// Compiled for AVX-512 with BF16 only: see cmake/GraftLibrary.cmake.
#include "kernel/matmul/packed_pairs_vec.h"

#include "kernel/conv/channel_epilogue.h"
#include "kernel/matmul/pair_tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// A block is summed on its own first, as in tile(), so that the rounding error does not grow with the depth before it.
constexpr i64 kBlock = kDepthBlock;  // pairs

void pack_panel(const MatrixView& v, i64 depth, i64 columns, i64 panel, i64 k0, i64 k1, Pair* packed) {
  kPairProducts.pack(v, depth, columns, panel, k0, k1, packed);
}

void round(const float* from, i64 n, std::uint16_t* to) { round_row(from, n, to); }

void tiles(const std::uint16_t* x, i64 row, i64 rows, i64 tiles, i64 from, i64 to, i64 depth, const Pair* panel,
           i64 first_channel, int width, const ChannelEpilogue& epilogue) {
  const Epilogue e = in_registers(epilogue);
  alignas(64) float sums[kTileRows * kPanel];
  vf bias[2] = {};
  for (int j = 0; j < width; j += kLanes) bias[j / kLanes] = bias_of(e, first_channel + j, width - j);
  const i64 pairs = (depth + 1) / 2, row_bytes = row * 2;
  for (i64 t = from; t < to; ++t) {
    const i64 first = rows * t / tiles, n = rows * (t + 1) / tiles - first;
    const i64 ahead = t + 1 < to ? n * row_bytes : 0;
    const char* s = reinterpret_cast<const char*>(x + first * row);
    for (i64 k = 0; k < pairs; k += kBlock)
      kPairTiles[width > kLanes][n - 1](s + k * 4, row_bytes, sizeof(Pair), panel + k * kPanel,
                                        smaller(kBlock, pairs - k), sums, k > 0, 1.f, ahead);
    for (i64 r = 0; r < n; ++r)
      for (int j = 0; j < width; j += kLanes)
        put(e, load(sums + r * kPanel + j), bias[j / kLanes], first + r, first_channel + j, width - j);
  }
}

}  // namespace

const PackedPairTable kPackedPairs = {kPanel, kTileRows, pack_panel, round, tiles};

}  // namespace graft::simd::GRAFT_ISA
