#include "kernel/matmul/blocks_vec.h"

#include "kernel/matmul/tile.h"
#include "kernel/simd/vec_amx.h"

// Products with many rows by AMX tiles, bit for bit those of AVX-512 VNNI, which computes products with up to kFewRows
// rows and the formats that have no function here. A panel's block of 32 elements is a B tile of 8 rows of 16 columns
// with four elements each; the quantized rows are A tiles in place.
namespace graft::simd::GRAFT_ISA {
namespace {

constexpr i64 kFewRows = 8;  // up to this many rows VNNI reads a panel once
constexpr int kRows = 2 * kTileHeight;
constexpr int kBlockRows = kPanelBlock / 4;  // rows of a B tile
static_assert(kLanes == kPanelColumns && kPanel == 2 * kPanelColumns);

GRAFT_VEC vf load_bytes(const std::byte* p) {
  typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(__builtin_convertvector(bytes, vi), vf);
}
GRAFT_VEC vf load_halves(const std::byte* p) { return load_f16(reinterpret_cast<const std::uint16_t*>(p)); }

// A format: quants() returns the quants as bytes of block g of the group at `at`, unpacked into `bytes` where they are
// not stored so; scale() the scale of each column, and a minimum where there is one. `tail` is where the group's scales
// begin.
struct Q8_0 {
  static constexpr PanelFormat kFormat = PanelFormat::q8_0;
  static constexpr int kGroup = 2, kQuantBytes = 512;
  static constexpr bool kMinimums = false;
  GRAFT_VEC const std::byte* quants(const std::byte* at, std::uint8_t*) { return at; }
  GRAFT_VEC vf scale(const std::byte* tail, i64 g) { return load_halves(tail + g * 32); }
};
struct Q4_0 : Q8_0 {
  static constexpr PanelFormat kFormat = PanelFormat::q4_0;
  static constexpr int kQuantBytes = 256;
  GRAFT_VEC const std::byte* quants(const std::byte* at, std::uint8_t* bytes) {
    const auto* pairs = reinterpret_cast<const std::uint8_t*>(at);
    for (int i = 0; i < kQuantBytes; ++i) {
      bytes[i] = pairs[i] & 15;
      bytes[kQuantBytes + i] = static_cast<std::uint8_t>(pairs[i] >> 4);
    }
    return reinterpret_cast<const std::byte*>(bytes);
  }
};
struct Q4_K : Q4_0 {
  static constexpr PanelFormat kFormat = PanelFormat::q4_k;
  static constexpr int kGroup = 8;
  static constexpr bool kMinimums = true;
  GRAFT_VEC vf scale(const std::byte* tail, i64 g) { return load_bytes(tail + g * 16) * load_halves(tail + 256); }
  GRAFT_VEC vf minimum(const std::byte* tail, i64 g) {
    return load_bytes(tail + 128 + g * 16) * load_halves(tail + 288);
  }
};

// Tiles 0 to 3 are sums, [upper and lower rows][first and second panel]; 4 and 5 are A, 6 is B.
void configure(i64 rows) {
  const int upper = static_cast<int>(smaller(rows, kTileHeight)), lower = static_cast<int>(rows) - upper;
  TileConfig config;
  for (const int t : {0, 1}) TileConfig::shape(config, t, upper, kTileRowBytes);
  for (const int t : {2, 3}) TileConfig::shape(config, t, lower, kTileRowBytes);
  TileConfig::shape(config, 4, upper, kPanelBlock);
  TileConfig::shape(config, 5, lower, kPanelBlock);
  TileConfig::shape(config, 6, kBlockRows, kTileRowBytes);
  configure_tiles(config);
}

// Sums of a block for the rows of tile 4 and, when used, tile 5, with one panel's B tile.
template <int kPanelIndex>
GRAFT_VEC void block_sums(const std::byte* quants, bool tall, std::int32_t* sums) {
  load_tile<6>(quants, kTileRowBytes);
  zero_tile<kPanelIndex>();
  add_products_s8_u8<kPanelIndex, 4, 6>();
  store_tile<kPanelIndex>(sums, kTileRowBytes);
  if (!tall) return;
  zero_tile<2 + kPanelIndex>();
  add_products_s8_u8<2 + kPanelIndex, 5, 6>();
  store_tile<2 + kPanelIndex>(sums + kTileHeight * kPanelColumns, kTileRowBytes);
}

// Adds a block's sums of `rows` rows and a panel's 16 columns to `totals`, whose rows are kPanel apart.
template <typename F>
GRAFT_VEC void add_scaled(const std::int32_t* sums, const QuantizedRows& rows, i64 row, i64 count, i64 blocks, i64 b,
                          const std::byte* tail, i64 g, float* totals) {
  const vf scale = F::scale(tail, g), begin = scale * splat(kSumBeginAsFloat);
  vf minimum{};
  if constexpr (F::kMinimums) minimum = F::minimum(tail, g);
  for (i64 m = 0; m < count; ++m) {
    const i64 at = (row + m) * blocks + b;
    vf total = load(totals + m * kPanel);
    if constexpr (F::kMinimums) total = fma(-minimum, splat(rows.scaled_sum[at]), total);
    const vi sum = as_int(load(reinterpret_cast<const float*>(sums + m * kPanelColumns))) +
                   (F::kMinimums ? kSumBegin : rows.sum[at]);
    total = fma(fma(as_float(sum), scale, -begin), splat(rows.scale[at]), total);
    store(totals + m * kPanel, total);
  }
}

template <typename F>
void tiles_of(const std::byte* panels, const QuantizedRows& rows, i64 row_count, i64 depth, i64 columns, i64 j0, i64 j1,
              const Epilogue& e) {
  alignas(64) float totals[kRows * kPanel];
  alignas(64) std::int32_t sums[kRows * kPanelColumns];
  alignas(64) std::uint8_t bytes[kBlockRows * kTileRowBytes];
  const i64 panel_stride = panel_bytes(F::kFormat, depth), blocks = depth / kPanelBlock,
            groups_of_rows = (row_count + kRows - 1) / kRows;
  const TileConfigGuard guard;
  i64 configured = 0;
  for (i64 j = j0; j < j1; j += kPanel) {
    const int width = static_cast<int>(smaller(kPanel, columns - j)), panel_count = width > kPanelColumns ? 2 : 1;
    for (i64 part = 0; part < groups_of_rows; ++part) {
      const i64 row = row_count * part / groups_of_rows, n = row_count * (part + 1) / groups_of_rows - row;
      if (n != configured) configure(n);
      configured = n;
      __builtin_memset(totals, 0, sizeof(totals));
      const std::byte* group = panels + j / kPanelColumns * panel_stride;
      for (i64 first = 0; first < blocks; first += F::kGroup) {
        const i64 count = smaller(F::kGroup, blocks - first);
        const i64 tail = count * F::kQuantBytes;
        for (i64 g = 0; g < count; ++g) {
          const i64 b = first + g;
          const std::int8_t* a = rows.q + row * depth + b * kPanelBlock;
          load_tile<4>(a, depth);
          if (n > kTileHeight) load_tile<5>(a + kTileHeight * depth, depth);
          block_sums<0>(F::quants(group + g * F::kQuantBytes, bytes), n > kTileHeight, sums);
          add_scaled<F>(sums, rows, row, n, blocks, b, group + tail, g, totals);
          if (panel_count == 1) continue;
          const std::byte* second = group + panel_stride;
          block_sums<1>(F::quants(second + g * F::kQuantBytes, bytes), n > kTileHeight, sums);
          add_scaled<F>(sums, rows, row, n, blocks, b, second + tail, g, totals + kPanelColumns);
        }
        group += panel_bytes(F::kFormat, count * kPanelBlock);
      }
      finish(e, totals, row, static_cast<int>(n), j, width);
    }
  }
}

void quantize(PanelFormat format, const float* from, i64 k0, i64 k1, i64 row, i64 depth, const QuantizedRows& to) {
  avx512vnni::kPanels.quantize(format, from, k0, k1, row, depth, to);
}

void tiles(PanelFormat format, const std::byte* panels, const QuantizedRows& quantized, i64 rows, i64 depth,
           i64 columns, i64 j0, i64 j1, const Epilogue& e) {
  if (rows > kFewRows && format == PanelFormat::q8_0)
    return tiles_of<Q8_0>(panels, quantized, rows, depth, columns, j0, j1, e);
  if (rows > kFewRows && format == PanelFormat::q4_0)
    return tiles_of<Q4_0>(panels, quantized, rows, depth, columns, j0, j1, e);
  if (rows > kFewRows && format == PanelFormat::q4_k)
    return tiles_of<Q4_K>(panels, quantized, rows, depth, columns, j0, j1, e);
  avx512vnni::kPanels.tiles(format, panels, quantized, rows, depth, columns, j0, j1, e);
}

}  // namespace

extern const PanelTable kPanels;  // the tests' model of AMX is no target
const PanelTable kPanels = {kPanel, quantize, tiles};

}  // namespace graft::simd::GRAFT_ISA
