#include "kernel/matmul/packed_pairs_vec.h"

#include "kernel/conv/channel_epilogue.h"
#include "kernel/simd/vec_amx.h"

// A panel's rows of 32 pairs are two B tiles side by side; the rounded rows of x are A tiles in place.
namespace graft::simd::GRAFT_ISA {
namespace {

typedef std::uint32_t Pair;  // two numbers in bf16, the first in the low half

constexpr i64 kColumns = 32, kStep = kTileRowBytes / sizeof(Pair);  // pairs of a tile's row
constexpr int kRows = 2 * kTileHeight;

// n numbers `step` apart, rounded to bf16.
void round_numbers(const MatrixView& m, i64 index, i64 step, i64 n, std::uint16_t* to) {
  for (i64 i = 0; i < n; ++i) {
    if (m.dtype == DType::f32) {
      to[i] = float_to_bf16(static_cast<const float*>(m.data)[index + i * step]);
    } else {
      to[i] = static_cast<const std::uint16_t*>(m.data)[index + i * step];
    }
  }
}

void pack_panel(const MatrixView& v, i64 depth, i64 columns, i64 panel, i64 k0, i64 k1, Pair* packed) {
  constexpr i64 kAtOnce = 128;
  Pair* to = packed + panel * kColumns * ((depth + 1) / 2);
  const i64 j0 = panel * kColumns, width = smaller(kColumns, columns - j0);
  alignas(64) Pair pairs[kColumns][kAtOnce / 2];
  for (i64 k = k0; k < k1; k += kAtOnce) {
    const i64 n = smaller(kAtOnce, k1 - k);
    __builtin_memset(pairs, 0, sizeof(pairs));
    for (i64 j = 0; j < width; ++j)
      round_numbers(v, k * v.row + (j0 + j) * v.col, v.row, n, reinterpret_cast<std::uint16_t*>(pairs[j]));
    for (i64 i = 0; i < (n + 1) / 2; ++i)
      for (i64 j = 0; j < kColumns; ++j) to[(k / 2 + i) * kColumns + j] = pairs[j][i];
  }
}

void round(const float* from, i64 n, std::uint16_t* to) {
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(to + i, load(from + i));
  for (; i < n; ++i) to[i] = float_to_bf16(from[i]);
}

// Tiles 0 to 3 are sums, [upper and lower rows][left and right columns]; 4 and 5 are A, 6 and 7 are B.
void configure(i64 rows) {
  const int upper = static_cast<int>(smaller(rows, kTileHeight)), lower = static_cast<int>(rows) - upper;
  TileConfig config;
  for (const int t : {0, 1, 4}) TileConfig::shape(config, t, upper, kTileRowBytes);
  for (const int t : {2, 3, 5}) TileConfig::shape(config, t, lower, kTileRowBytes);
  for (const int t : {6, 7}) TileConfig::shape(config, t, kTileHeight, kTileRowBytes);
  configure_tiles(config);
}

template <bool kTall, bool kWide>
void multiply(const char* a, i64 a_row, i64 steps, const Pair* b) {
  constexpr i64 kPanelRow = kColumns * sizeof(Pair);
  for (i64 s = 0; s < steps; ++s, a += kTileRowBytes, b += kStep * kColumns) {
    load_tile<4>(a, a_row);
    load_tile<6>(b, kPanelRow);
    add_products_bf16<0, 4, 6>();
    if constexpr (kWide) {
      load_tile<7>(b + kStep, kPanelRow);
      add_products_bf16<1, 4, 7>();
    }
    if constexpr (kTall) {
      load_tile<5>(a + kTileHeight * a_row, a_row);
      add_products_bf16<2, 5, 6>();
      if constexpr (kWide) add_products_bf16<3, 5, 7>();
    }
  }
}

// The sums of `rows` rows in `sums`, rows kColumns apart. `last_a` and `last_b`: the remainder after whole steps,
// padded with zeros; null where there is none.
template <bool kTall, bool kWide>
void sum_tiles(const char* a, i64 a_row, i64 steps, const Pair* b, const Pair* last_a, const Pair* last_b,
               float* sums) {
  zero_tile<0>();
  if constexpr (kWide) zero_tile<1>();
  if constexpr (kTall) zero_tile<2>();
  if constexpr (kTall && kWide) zero_tile<3>();
  multiply<kTall, kWide>(a, a_row, steps, b);
  if (last_a != nullptr) multiply<kTall, kWide>(reinterpret_cast<const char*>(last_a), kTileRowBytes, 1, last_b);
  constexpr i64 kRow = kColumns * sizeof(float);
  store_tile<0>(sums, kRow);
  if constexpr (kWide) store_tile<1>(sums + kStep, kRow);
  if constexpr (kTall) store_tile<2>(sums + kTileHeight * kColumns, kRow);
  if constexpr (kTall && kWide) store_tile<3>(sums + kTileHeight * kColumns + kStep, kRow);
}

void tiles(const std::uint16_t* x, i64 row, i64 rows, i64 tiles, i64 from, i64 to, i64 depth, const Pair* panel,
           i64 first_channel, int width, const ChannelEpilogue& epilogue) {
  const Epilogue e = in_registers(epilogue);
  alignas(64) float sums[kRows * kColumns];
  vf bias[kColumns / kLanes] = {};
  for (int j = 0; j < width; j += kLanes) bias[j / kLanes] = bias_of(e, first_channel + j, width - j);
  const i64 pairs = (depth + 1) / 2, steps = pairs / kStep, rest = pairs - steps * kStep;
  alignas(64) Pair last_a[kRows][kStep] = {}, last_b[kStep][kColumns] = {};
  if (rest != 0)
    __builtin_memcpy(last_b, panel + steps * kStep * kColumns, static_cast<std::size_t>(rest) * sizeof(last_b[0]));
  const TileConfigGuard guard;
  i64 configured = 0;
  for (i64 t = from; t < to; ++t) {
    const i64 first = rows * t / tiles, n = rows * (t + 1) / tiles - first;
    if (n != configured) configure(n);
    configured = n;
    const std::uint16_t* a = x + first * row;
    for (i64 r = 0; rest != 0 && r < n; ++r)
      __builtin_memcpy(last_a[r], a + r * row + steps * kStep * 2, static_cast<std::size_t>(rest) * sizeof(Pair));
    const auto run = n > kTileHeight ? (width > kStep ? sum_tiles<true, true> : sum_tiles<true, false>)
                                     : (width > kStep ? sum_tiles<false, true> : sum_tiles<false, false>);
    run(reinterpret_cast<const char*>(a), row * 2, steps, panel, rest != 0 ? last_a[0] : nullptr, last_b[0], sums);
    for (i64 r = 0; r < n; ++r)
      for (int j = 0; j < width; j += kLanes)
        put(e, load(sums + r * kColumns + j), bias[j / kLanes], first + r, first_channel + j, width - j);
  }
}

}  // namespace

extern const PackedPairTable kPackedPairs;  // the tests' model of AMX is no target
const PackedPairTable kPackedPairs = {static_cast<int>(kColumns), kRows, pack_panel, round, tiles};

}  // namespace graft::simd::GRAFT_ISA
