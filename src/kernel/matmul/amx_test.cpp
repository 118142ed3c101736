// A model of AMX's tiles: that it does what the instructions do, and that the AMX kernels compute on it what others do.
#define GRAFT_ISA amx_test
#define GRAFT_AMX_MODEL
#include "kernel/simd/amx_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

#include "kernel/matmul/blocks_vec.h"

namespace graft::simd {

#ifdef GRAFT_HAVE_AMX_MODEL
namespace amxmodel {
extern const PanelTable kPanels;
}
#endif

namespace {

using amx_test::amx_model::Fault;
using amx_test::amx_model::Tiles;
using i64 = std::int64_t;

struct alignas(64) Config {
  std::uint8_t bytes[64] = {1};

  Config& tile(int t, int rows, int row_bytes) {
    bytes[48 + t] = static_cast<std::uint8_t>(rows);
    bytes[16 + 2 * t] = static_cast<std::uint8_t>(row_bytes);
    return *this;
  }
};

TEST(AmxModel, ConfigurationsThatTheCpuRefuses) {
  Tiles tiles;
  EXPECT_NO_THROW(tiles.load_config(Config().tile(0, 16, 64).tile(7, 1, 4).bytes));
  EXPECT_TRUE(tiles.configured());
  EXPECT_THROW(tiles.load_config(Config().tile(0, 17, 64).bytes), Fault);
  EXPECT_THROW(tiles.load_config(Config().tile(0, 16, 68).bytes), Fault);
  EXPECT_THROW(tiles.load_config(Config().tile(0, 0, 64).bytes), Fault);
  EXPECT_THROW(tiles.load_config(Config().tile(0, 4, 0).bytes), Fault);
  EXPECT_THROW(tiles.load_config(Config().tile(8, 1, 4).bytes), Fault);
  Config reserved;
  reserved.bytes[2] = 1;
  EXPECT_THROW(tiles.load_config(reserved.bytes), Fault);
  Config palette;
  palette.bytes[0] = 2;
  EXPECT_THROW(tiles.load_config(palette.bytes), Fault);
  palette.bytes[0] = 0;  // as TILERELEASE
  EXPECT_NO_THROW(tiles.load_config(palette.bytes));
  EXPECT_THROW(tiles.zero(0), Fault);
}

TEST(AmxModel, ConfigurationsAreStoredAsTheyWereLoaded) {
  Tiles tiles;
  Config config, stored;
  tiles.store_config(stored.bytes);
  EXPECT_EQ(std::ranges::count(stored.bytes, 0), 64);
  config.tile(0, 16, 64).tile(7, 1, 4);
  tiles.load_config(config.bytes);
  tiles.store_config(stored.bytes);
  EXPECT_TRUE(std::ranges::equal(stored.bytes, config.bytes));
}

TEST(AmxModel, ShapesThatDoNotFitAProduct) {
  Tiles tiles;
  tiles.load_config(Config().tile(0, 3, 20).tile(1, 3, 8).tile(2, 2, 20).tile(3, 3, 20).tile(4, 4, 20).bytes);
  EXPECT_NO_THROW(tiles.dpbssd(0, 1, 2));
  EXPECT_THROW(tiles.dpbssd(0, 1, 3), Fault);  // depths
  EXPECT_THROW(tiles.dpbssd(4, 1, 2), Fault);  // rows
  EXPECT_THROW(tiles.dpbssd(0, 1, 1), Fault);  // one tile twice
  EXPECT_THROW(tiles.dpbssd(0, 1, 5), Fault);  // not configured
  tiles.release();
  EXPECT_THROW(tiles.dpbssd(0, 1, 2), Fault);
}

TEST(AmxModel, LoadsAndStoresOfRowsThatLieApart) {
  Tiles tiles;
  tiles.load_config(Config().tile(0, 2, 8).bytes);
  std::uint8_t from[64], to[64] = {};
  for (int i = 0; i < 64; ++i) from[i] = static_cast<std::uint8_t>(i);
  tiles.load(0, from, 32);
  tiles.store(0, to, 16);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(to[i], i < 8 ? i : i >= 16 && i < 24 ? i + 16 : 0) << i;
  tiles.zero(0);
  tiles.store(0, to, 16);
  for (const std::uint8_t byte : to) EXPECT_EQ(byte, 0);
}

TEST(AmxModel, ProductsOfBytesOfEverySign) {
  Tiles tiles;
  tiles.load_config(Config().tile(0, 1, 8).tile(1, 1, 4).tile(2, 1, 8).bytes);
  const std::uint8_t a[4] = {255, 1, 128, 2}, b[8] = {255, 200, 3, 4, 1, 1, 1, 1};
  const auto products = [&](void (Tiles::*product)(int, int, int)) {
    std::int32_t sums[2] = {1000, -1};
    tiles.load(0, sums, 8);
    tiles.load(1, a, 4);
    tiles.load(2, b, 8);
    (tiles.*product)(0, 1, 2);
    tiles.store(0, sums, 8);
    return std::pair(sums[0], sums[1]);
  };
  EXPECT_EQ(products(&Tiles::dpbuud), std::pair(1000 + 255 * 255 + 200 + 128 * 3 + 8, -1 + 386));
  EXPECT_EQ(products(&Tiles::dpbssd), std::pair(1000 + 1 - 56 - 128 * 3 + 8, -1 - 1 + 1 - 128 + 2));
  EXPECT_EQ(products(&Tiles::dpbusd), std::pair(1000 - 255 - 56 + 128 * 3 + 8, -1 + 386));
  EXPECT_EQ(products(&Tiles::dpbsud), std::pair(1000 - 255 + 200 - 128 * 3 + 8, -1 - 1 + 1 - 128 + 2));
  const std::int32_t most = 0x7fffffff;  // a sum wraps
  std::int32_t sum[2] = {most, 0};
  tiles.load(0, sum, 8);
  tiles.dpbuud(0, 1, 2);
  tiles.store(0, sum, 8);
  EXPECT_LT(sum[0], 0);
}

TEST(AmxModel, ProductsOfBf16SumEvenAndOddPairsAndFlushSubnormals) {
  Tiles tiles;
  tiles.load_config(Config().tile(0, 1, 4).tile(1, 1, 8).tile(2, 2, 4).bytes);
  const auto bf16 = [](float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); };
  const auto product = [&](float begin, std::vector<float> x, std::vector<float> y) {
    std::uint16_t a[4], b[4];
    for (std::size_t i = 0; i < 4; ++i) a[i] = bf16(x[i]), b[i] = bf16(y[i]);
    tiles.load(0, &begin, 4);
    tiles.load(1, a, 8);
    tiles.load(2, b, 4);
    tiles.dpbf16ps(0, 1, 2);
    tiles.store(0, &begin, 4);
    return begin;
  };
  EXPECT_EQ(product(0.5f, {1, 2, 3, 4}, {5, 6, 7, 8}), 0.5f + 70);
  // Even: 2^24 + 1 rounds to 2^24; odd: 1 - 2^24. In the order of the pairs it would be 1 + 1 - ... = 2 or 0.
  EXPECT_EQ(product(0, {0x1p24f, 1, 1, -0x1p24f}, {1, 1, 1, 1}), 0x1p24f + (1 - 0x1p24f));
  EXPECT_EQ(product(0, {0x1p-130f, 0, 0, 0}, {0x1p60f, 0, 0, 0}), 0);  // a subnormal operand
  EXPECT_EQ(product(0, {0x1p-70f, 0, 0, 0}, {0x1p-60f, 0, 0, 0}), 0);  // a subnormal result
  EXPECT_EQ(product(0x1p-130f, {0, 0, 0, 0}, {0, 0, 0, 0}), 0);        // and a subnormal sum
  EXPECT_EQ(std::bit_cast<std::uint32_t>(product(-0x1p-130f, {-1, -1, -1, -1}, {0, 0, 0, 0})), 0u);
}

#ifdef GRAFT_HAVE_AMX_MODEL

// ggml configures the tiles of a thread once and never again.
TEST(Amx, KernelsLeaveTheConfigurationOfTheirCaller) {
  const auto isas = available_isas();
  if (std::ranges::find(isas, Isa::amxint8) == isas.end()) GTEST_SKIP() << "this CPU has no AMX for bytes";
  const PanelTable& table = *find_table<PanelTable>(Isa::amxint8);
  const i64 depth = 256, rows = 20, columns = 40;
  const std::vector<std::byte> panels(static_cast<std::size_t>(panels_bytes(PanelFormat::q8_0, columns, depth)));
  std::vector<std::int8_t> q(rows * depth);
  std::vector<float> scale(q.size() / kPanelBlock), out(rows * columns);
  std::vector<std::int32_t> sum(2 * scale.size());
  const QuantizedRows quantized = {q.data(), scale.data(), sum.data(), reinterpret_cast<float*>(sum.data())};
  Epilogue e;
  e.out = out.data();
  e.out_r = columns;
  e.out_j = 1;
  const Config none{{0}}, own = Config().tile(2, 3, 20);
  for (const Config& before : {none, own}) {
    asm volatile("ldtilecfg %0" ::"m"(before));
    table.tiles(PanelFormat::q8_0, panels.data(), quantized, rows, depth, columns, 0, columns, e);
    Config after;
    asm volatile("sttilecfg %0" : "=m"(after));
    EXPECT_TRUE(std::ranges::equal(after.bytes, before.bytes));
  }
  asm volatile("ldtilecfg %0" ::"m"(none));
}

// Random panels whose scales are finite numbers when read as f16.
std::vector<std::byte> random_panels(PanelFormat format, i64 columns, i64 depth, std::mt19937& rng) {
  std::vector<std::byte> out(static_cast<std::size_t>(panels_bytes(format, columns, depth)));
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng() & 0xbb);
  return out;
}

TEST(AmxModel, ProductsOfPanelsAreThoseOfVnniBitForBit) {
  const PanelTable* vnni = find_table<PanelTable>(Isa::avx512vnni);
  if (vnni != &avx512vnni::kPanels) GTEST_SKIP() << "this CPU has no AVX-512 VNNI";
  const PanelTable& amx = amxmodel::kPanels;
  ASSERT_EQ(amx.tile_columns, vnni->tile_columns);
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> values(-2, 2);
  for (const PanelLayout& layout : kPanelLayouts)
    for (const i64 depth : {256, 768})
      for (const i64 rows : {1, 8, 9, 15, 16, 17, 31, 32, 33, 40, 70})
        for (const i64 columns : {1, 16, 17, 32, 33, 80}) {
          // A row of formats with paired blocks may end with a single block.
          const i64 k = depth - (layout.elements == kPanelBlock ? kPanelBlock : 0);
          const PanelFormat format = layout.format;
          const std::vector<std::byte> panels = random_panels(format, columns, k, rng);
          std::vector<float> x(static_cast<std::size_t>(rows * k)), bias(static_cast<std::size_t>(columns));
          for (float& v : x) v = values(rng);
          for (float& v : bias) v = values(rng);
          const auto product = [&](const PanelTable& table) {
            std::vector<std::int8_t> q(x.size());
            std::vector<float> scale(x.size() / kPanelBlock), out(static_cast<std::size_t>(rows * columns));
            std::vector<std::int32_t> sum(2 * scale.size());
            const QuantizedRows quantized = {q.data(), scale.data(), sum.data(), reinterpret_cast<float*>(sum.data())};
            for (i64 r = 0; r < rows; ++r) table.quantize(format, x.data() + r * k, 0, k, r, k, quantized);
            Epilogue e;
            e.out = out.data();
            e.out_r = columns;
            e.out_j = 1;
            e.bias = bias.data();
            e.bias_j = 1;
            e.activation = Activation::silu;
            table.tiles(format, panels.data(), quantized, rows, k, columns, 0, columns, e);
            return out;
          };
          const std::vector<float> wanted = product(*vnni), got = product(amx);
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(wanted[i]))
                << "format " << static_cast<int>(format) << ", " << rows << " x " << k << " x " << columns << " at "
                << i << ": " << got[i] << ", " << wanted[i];
        }
}

#endif

}  // namespace
}  // namespace graft::simd
