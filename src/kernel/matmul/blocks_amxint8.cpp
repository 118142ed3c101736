#include <array>
#include <utility>

#include "kernel/matmul/blocks_vec.h"
#include "kernel/matmul/tile.h"
#include "kernel/simd/vec_amx.h"

// Products of more than kFewRows rows with panels of q8_0 by AMX tiles, bit for bit those of AVX-512 VNNI, which
// computes all others. A panel's block of 32 elements is a B tile of 8 rows of 16 columns with four elements each; the
// quantized rows are A tiles in place.
//
// Every block has scales of its own, so each of its sums is stored, scaled and added by vector instructions, which take
// twice as long as the product and do not overlap with it. What is left is 1.5 times as fast as VNNI, if the rows' tile
// stays in the first-level cache while the panels stream by. Where quants are unpacked first (q4_0, q4_k) VNNI is
// faster.
namespace graft::simd::GRAFT_ISA {
namespace {

constexpr i64 kFewRows = 8;                  // up to this many rows VNNI reads a panel once
constexpr int kBlockRows = kPanelBlock / 4;  // rows of a B tile
constexpr int kQuantBytes = 512;             // of a block in a panel
constexpr i64 kGroup = 2;                    // blocks that have their scales behind them
constexpr i64 kCachedPanels = 512 << 10;     // bytes
constexpr i64 kAhead = 8192;  // prefetch distance in bytes, of the rows that are the first to read a panel
static_assert(kLanes == kPanelColumns && kPanel == 2 * kPanelColumns);

// Tiles 0 to 3 hold sums, 4 and 5 rows, 6 and 7 a panel's block.
void configure(int rows) {
  TileConfig config;
  for (int t = 0; t < 4; ++t) TileConfig::shape(config, t, rows, kTileRowBytes);
  for (int t = 4; t < 6; ++t) TileConfig::shape(config, t, rows, kPanelBlock);
  for (int t = 6; t < 8; ++t) TileConfig::shape(config, t, kBlockRows, kTileRowBytes);
  configure_tiles(config);
}

// Products of M quantized rows with one panel. Their scaled sums stay in registers: loading and storing them for each
// block takes longer than the product.
template <int M>
class PanelProduct {
 public:
  PanelProduct(const std::byte* panel, const QuantizedRows& rows, i64 row, i64 depth)
      : panel_(panel),
        rows_(rows.q + row * depth),
        scales_(rows.scale + row * (depth / kPanelBlock)),
        begins_(rows.sum + row * (depth / kPanelBlock)),
        depth_(depth),
        blocks_(depth / kPanelBlock),
        first_(row == 0) {}

  __attribute__((always_inline)) void store_to(float* out) const {
    vf total[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) total[m] = zero();
    multiply<0>(0);
    for (i64 b = 0; b < blocks_; b += 4) {
      step<0>(b, total);
      step<1>(b + 1, total);
      step<2>(b + 2, total);
      step<3>(b + 3, total);
    }
    add_scaled(blocks_ - 1, total);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) store(out + m * kPanel, total[m]);
  }

 private:
  // A product takes long until its sums can be stored, and those until they can be loaded: while block b is stored, the
  // one behind it is multiplied and the one before it scaled.
  template <int t>
  __attribute__((always_inline)) void step(i64 b, vf (&total)[M]) const {
    if (b >= blocks_) return;
    if (b + 1 < blocks_) multiply<(t + 1) % 4>(b + 1);
    store_tile<t>(sums_[t], kTileRowBytes);
    if (b > 0) add_scaled(b - 1, total);
  }

  template <int t>
  __attribute__((always_inline)) void multiply(i64 b) const {
    const std::byte* quants = group_of(b) + b % kGroup * kQuantBytes;
    if (first_) {
      for (int i = 0; i < kQuantBytes; i += 64) __builtin_prefetch(quants + kAhead + i, 0, 2);
    }
    load_tile<4 + t % 2>(rows_ + b * kPanelBlock, depth_);
    load_tile<6 + t % 2>(quants, kTileRowBytes);
    zero_tile<t>();
    add_products_s8_u8<t, 4 + t % 2, 6 + t % 2>();
  }

  __attribute__((always_inline)) void add_scaled(i64 b, vf (&total)[M]) const {
    const i64 group = b / kGroup * kGroup;
    const std::byte* scales = group_of(b) + smaller(kGroup, blocks_ - group) * kQuantBytes + (b - group) * 32;
    const vf scale = load_f16(reinterpret_cast<const std::uint16_t*>(scales)), begin = scale * splat(kSumBeginAsFloat);
    const auto* sum = reinterpret_cast<const float*>(sums_[b % 4]);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vi biased = as_int(load(sum + m * kPanelColumns)) + begins_[m * blocks_ + b];
      total[m] = fma(fma(as_float(biased), scale, -begin), splat(scales_[m * blocks_ + b]), total[m]);
    }
  }

  __attribute__((always_inline)) const std::byte* group_of(i64 b) const {
    return panel_ + b / kGroup * panel_bytes(PanelFormat::q8_0, kGroup * kPanelBlock);
  }

  alignas(64) mutable std::int32_t sums_[4][kTileHeight * kPanelColumns];
  const std::byte* panel_;
  const std::int8_t* rows_;
  const float* scales_;
  const std::int32_t* begins_;
  i64 depth_, blocks_;
  bool first_;  // of the rows that read the panel
};

template <int M>
void tile_of(const std::byte* panel, const QuantizedRows& rows, i64 row, i64 depth, float* out) {
  PanelProduct<M>(panel, rows, row, depth).store_to(out);
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
  if (format != PanelFormat::q8_0 || rows <= kFewRows)
    return avx512vnni::kPanels.tiles(format, panels, quantized, rows, depth, columns, j0, j1, e);
  alignas(64) float totals[kTileHeight * kPanel];
  const i64 stride = panel_bytes(format, depth), parts = (rows + kTileHeight - 1) / kTileHeight;
  const TileConfigGuard guard;
  i64 configured = 0;
  const auto multiply = [&](i64 part, i64 j) {
    const int width = static_cast<int>(smaller(kPanel, columns - j));
    const std::byte* panel = panels + j / kPanelColumns * stride;
    const i64 row = rows * part / parts, n = rows * (part + 1) / parts - row;
    if (n != configured) configure(static_cast<int>(n));
    configured = n;
    const TileOf tile = kTilesOf[static_cast<std::size_t>(n - kFewestRows)];
    tile(panel, quantized, row, depth, totals);
    if (width > kPanelColumns) tile(panel + stride, quantized, row, depth, totals + kPanelColumns);
    finish(e, totals, row, static_cast<int>(n), j, width);
  };
  // Panels that fit the second-level cache are read again for each tile of rows; few rows read each panel just once.
  const i64 fitting = smaller(j1 - j0, parts <= 2 ? kPanel : kCachedPanels / (2 * stride) * kPanel);
  const i64 stripe = fitting < kPanel ? kPanel : fitting;
  for (i64 j = j0; j < j1; j += stripe) {
    const i64 end = smaller(j + stripe, j1);
    for (i64 part = 0; part < parts; ++part) {
      for (i64 k = j; k < end; k += kPanel) multiply(part, k);
    }
  }
}

}  // namespace

extern const PanelTable kPanels;  // the tests' model of AMX is no target
const PanelTable kPanels = {kPanel, quantize, tiles};

}  // namespace graft::simd::GRAFT_ISA
