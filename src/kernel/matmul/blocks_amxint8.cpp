#include <array>
#include <utility>

#include "kernel/matmul/blocks_vec.h"
#include "kernel/matmul/tile.h"
#include "kernel/simd/vec_amx.h"

// Products of more than kFewRows and at most kMostRows rows with panels of q8_0 by AMX tiles, bit for bit those of
// AVX-512 VNNI, which computes all others. A panel's block of 32 elements is a B tile of 8 rows of 16 columns with four
// elements each; the quantized rows are A tiles in place.
//
// Every block has scales of its own, so each of its sums is scaled and added by vector instructions. These bound the
// product: on the Xeon that was measured tiles of up to 16 rows are 1.3 times as fast as VNNI, many of them no faster,
// and slower where quants are unpacked first (q4_0, q4_k).
namespace graft::simd::GRAFT_ISA {
namespace {

constexpr i64 kFewRows = 8;  // up to this many rows VNNI reads a panel once
constexpr i64 kMostRows = 2 * kTileHeight;
constexpr int kBlockRows = kPanelBlock / 4;  // rows of a B tile
constexpr int kQuantBytes = 512;             // of a block in a panel
constexpr i64 kGroup = 2;                    // blocks that have their scales behind them
constexpr i64 kAhead = 8192;  // prefetch distance in bytes, of the rows that are the first to read a panel
static_assert(kLanes == kPanelColumns && kPanel == 2 * kPanelColumns);

// Tile 0 holds sums, 1 rows, 2 a panel's block.
void configure(int rows) {
  TileConfig config;
  TileConfig::shape(config, 0, rows, kTileRowBytes);
  TileConfig::shape(config, 1, rows, kPanelBlock);
  TileConfig::shape(config, 2, kBlockRows, kTileRowBytes);
  configure_tiles(config);
}

// Products of M quantized rows with one panel. Their sums stay in registers: loading and storing them for each block
// takes longer than the product.
template <int M>
void tile_of(const std::byte* panel, const QuantizedRows& rows, i64 row, i64 depth, float* out) {
  alignas(64) std::int32_t sums[2][kTileHeight * kPanelColumns];
  const i64 blocks = depth / kPanelBlock;
  const std::int8_t* a = rows.q + row * depth;
  const float* scales = rows.scale + row * blocks;
  const std::int32_t* begins = rows.sum + row * blocks;
  vf total[M];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) total[m] = zero();
  const auto products = [&](const std::byte* quants, i64 b) __attribute__((always_inline)) {
    if (row == 0) {
      for (int i = 0; i < kQuantBytes; i += 64) __builtin_prefetch(quants + kAhead + i, 0, 2);
    }
    load_tile<1>(a + b * kPanelBlock, depth);
    load_tile<2>(quants, kTileRowBytes);
    zero_tile<0>();
    add_products_s8_u8<0, 1, 2>();
    store_tile<0>(sums[b % 2], kTileRowBytes);
  };
  const auto scale_of = [](const std::byte* tail, i64 g) {
    return load_f16(reinterpret_cast<const std::uint16_t*>(tail + g * 32));
  };
  const auto add_scaled = [&](i64 b, vf scale) __attribute__((always_inline)) {
    const vf begin = scale * splat(kSumBeginAsFloat);
    const auto* sum = reinterpret_cast<const float*>(sums[b % 2]);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vi biased = as_int(load(sum + m * kPanelColumns)) + begins[m * blocks + b];
      total[m] = fma(fma(as_float(biased), scale, -begin), splat(scales[m * blocks + b]), total[m]);
    }
  };
  const std::byte* tail = panel + smaller(kGroup, blocks) * kQuantBytes;
  products(panel, 0);
  // The sums of a block are added while the product of the next one is computed.
  for (i64 b = 1, g = 1; b < blocks; ++b, ++g) {
    const vf scale = scale_of(tail, g - 1);
    if (g == kGroup) {
      g = 0;
      panel += panel_bytes(PanelFormat::q8_0, kGroup * kPanelBlock);
      tail = panel + smaller(kGroup, blocks - b) * kQuantBytes;
    }
    products(panel + g * kQuantBytes, b);
    add_scaled(b - 1, scale);
  }
  add_scaled(blocks - 1, scale_of(tail, (blocks - 1) % kGroup));
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) store(out + m * kPanel, total[m]);
}

using TileOf = void (*)(const std::byte*, const QuantizedRows&, i64, i64, float*);
// By the number of rows, from kFewestRows: more than kFewRows rows in equal parts of at most kTileHeight.
constexpr int kFewestRows = (kFewRows + 1) / 2;
template <int... kMore>
constexpr std::array<TileOf, sizeof...(kMore)> tiles_by_rows(std::integer_sequence<int, kMore...>) {
  return {tile_of<kFewestRows + kMore>...};
}
constexpr auto kTilesOf = tiles_by_rows(std::make_integer_sequence<int, kTileHeight - kFewestRows + 1>());

void quantize(PanelFormat format, const float* from, i64 k0, i64 k1, i64 row, i64 depth, const QuantizedRows& to) {
  avx512vnni::kPanels.quantize(format, from, k0, k1, row, depth, to);
}

void tiles(PanelFormat format, const std::byte* panels, const QuantizedRows& quantized, i64 rows, i64 depth,
           i64 columns, i64 j0, i64 j1, const Epilogue& e) {
  if (format != PanelFormat::q8_0 || rows <= kFewRows || rows > kMostRows)
    return avx512vnni::kPanels.tiles(format, panels, quantized, rows, depth, columns, j0, j1, e);
  alignas(64) float totals[kTileHeight * kPanel];
  const i64 stride = panel_bytes(format, depth), parts = rows > kTileHeight ? 2 : 1;
  const TileConfigGuard guard;
  i64 configured = 0;
  for (i64 j = j0; j < j1; j += kPanel) {
    const int width = static_cast<int>(smaller(kPanel, columns - j));
    const std::byte* panel = panels + j / kPanelColumns * stride;
    for (i64 part = 0; part < parts; ++part) {
      const i64 row = rows * part / parts, n = rows * (part + 1) / parts - row;
      if (n != configured) configure(static_cast<int>(n));
      configured = n;
      const TileOf tile = kTilesOf[static_cast<std::size_t>(n - kFewestRows)];
      tile(panel, quantized, row, depth, totals);
      if (width > kPanelColumns) tile(panel + stride, quantized, row, depth, totals + kPanelColumns);
      finish(e, totals, row, static_cast<int>(n), j, width);
    }
  }
}

}  // namespace

extern const PanelTable kPanels;  // the tests' model of AMX is no target
const PanelTable kPanels = {kPanel, quantize, tiles};

}  // namespace graft::simd::GRAFT_ISA
