#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kernel/elementwise/elementwise.h"
#include "kernel/kernel_test_util.h"

namespace graft {
namespace {

template <typename T>
std::vector<T> iota(std::int64_t n) {
  std::vector<T> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<T>(i);
  return v;
}

TensorDesc strided(DType dtype, const Shape& shape, std::initializer_list<std::int64_t> strides) {
  TensorDesc desc(dtype, shape);
  std::copy(strides.begin(), strides.end(), desc.strides.begin());
  return desc;
}

// Reads element `index` (row-major over the shape) of a strided tensor.
template <typename T>
T at(const std::vector<T>& data, const TensorDesc& desc, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = desc.rank() - 1; d >= 0; --d) {
    offset += index % desc.shape[d] * desc.strides[static_cast<std::size_t>(d)];
    index /= desc.shape[d];
  }
  return data[static_cast<std::size_t>(offset)];
}

template <typename T>
void expect_copies(const TensorDesc& from, const TensorDesc& to, std::int64_t extent) {
  for (const int threads : {1, 2, 3}) {
    const std::vector<T> source = iota<T>(extent);
    std::vector<T> target(static_cast<std::size_t>(extent), T(-1));
    ASSERT_EQ(run_kernel(kCopy, {{from, source.data()}}, {to, target.data()}, threads), "");
    for (std::int64_t i = 0; i < to.numel(); ++i)
      ASSERT_EQ(at(target, to, i), at(source, from, i)) << from.str() << " element " << i << ", threads " << threads;
  }
}

TEST(Copy, ContiguousOfEverySize) {
  for (const std::int64_t n : {0, 1, 31, 32, 33, 257, 100000}) {
    expect_copies<std::int32_t>({DType::i32, {n}}, {DType::i32, {n}}, n);
    expect_copies<std::int16_t>({DType::i16, {n}}, {DType::i16, {n}}, n);
    expect_copies<double>({DType::f64, {n}}, {DType::f64, {n}}, n);
  }
}

TEST(Copy, HeadsTransposed) {  // [B, T, H, D] read as [B, H, T, D]
  expect_copies<float>(strided(DType::f32, {2, 6, 37, 64}, {37 * 6 * 64, 64, 6 * 64, 1}), {DType::f32, {2, 6, 37, 64}},
                       2 * 6 * 37 * 64);
}

TEST(Copy, MatrixTransposedInTiles) {
  for (const std::int64_t rows : {1, 4, 33, 130})
    for (const std::int64_t columns : {1, 5, 64, 129})
      expect_copies<float>(strided(DType::f32, {3, rows, columns}, {rows * columns, 1, rows}),
                           {DType::f32, {3, rows, columns}}, 3 * rows * columns);
}

TEST(Copy, ThreeCycleBothWays) {  // NCHW to NHWC, where gather and scatter orders differ
  expect_copies<std::int16_t>(strided(DType::i16, {2, 9, 10, 5}, {5 * 90, 10, 1, 90}), {DType::i16, {2, 9, 10, 5}},
                              900);
  expect_copies<std::int16_t>({DType::i16, {2, 9, 10, 5}}, strided(DType::i16, {2, 9, 10, 5}, {5 * 90, 10, 1, 90}),
                              900);
}

TEST(Copy, RankEightReversed) {
  expect_copies<std::int32_t>(strided(DType::i32, {2, 3, 2, 3, 2, 2, 3, 2}, {1, 2, 6, 12, 36, 72, 144, 432}),
                              {DType::i32, {2, 3, 2, 3, 2, 2, 3, 2}}, 864);
}

TEST(Copy, BroadcastAndNegativeStep) {
  expect_copies<float>(strided(DType::f32, {40, 300}, {0, 1}), {DType::f32, {40, 300}}, 40 * 300);
  expect_copies<float>(strided(DType::f32, {300, 40}, {1, 0}), {DType::f32, {300, 40}}, 40 * 300);
  const std::vector<float> source = {0, 1, 2, 3, 4};
  std::vector<float> target(5);
  ASSERT_EQ(
      run_kernel(kCopy, {{strided(DType::f32, {5}, {-1}), source.data() + 4}}, {{DType::f32, {5}}, target.data()}), "");
  EXPECT_EQ(target, (std::vector<float>{4, 3, 2, 1, 0}));
}

TEST(Copy, ZeroDimensional) { expect_copies<std::int64_t>({DType::i64, {}}, {DType::i64, {}}, 1); }

TEST(Cast, IntegersWrap) {
  const std::vector<std::int64_t> source = {-1, 300, 0x1'0000'0005, std::numeric_limits<std::int64_t>::min()};
  std::vector<std::uint8_t> bytes(4);
  std::vector<std::int32_t> words(4);
  ASSERT_EQ(run_kernel(kCopy, {{{DType::i64, {4}}, source.data()}}, {{DType::u8, {4}}, bytes.data()}), "");
  ASSERT_EQ(run_kernel(kCopy, {{{DType::i64, {4}}, source.data()}}, {{DType::i32, {4}}, words.data()}), "");
  EXPECT_EQ(bytes, (std::vector<std::uint8_t>{255, 44, 5, 0}));
  EXPECT_EQ(words, (std::vector<std::int32_t>{-1, 300, 5, 0}));
}

TEST(Cast, ToBoolIsNotZero) {
  const std::vector<float> source = {0.f, -0.f, 1e-30f, std::nanf(""), -2.f};
  std::vector<std::uint8_t> target(5, 7);
  ASSERT_EQ(run_kernel(kCopy, {{{DType::f32, {5}}, source.data()}}, {{DType::b8, {5}}, target.data()}), "");
  EXPECT_EQ(target, (std::vector<std::uint8_t>{0, 0, 1, 1, 1}));
}

TEST(Cast, HalvesRoundTripAllBitPatterns) {
  for (const DType half : {DType::f16, DType::bf16}) {
    const std::vector<std::uint16_t> source = iota<std::uint16_t>(65536);
    std::vector<float> wide(65536);
    std::vector<std::uint16_t> back(65536);
    ASSERT_EQ(run_kernel(kCopy, {{{half, {65536}}, source.data()}}, {{DType::f32, {65536}}, wide.data()}, 2), "");
    ASSERT_EQ(run_kernel(kCopy, {{{DType::f32, {65536}}, wide.data()}}, {{half, {65536}}, back.data()}, 2), "");
    for (std::size_t i = 0; i < 65536; ++i)
      ASSERT_TRUE(std::isnan(wide[i]) || back[i] == source[i]) << name(half) << " " << i;
  }
}

TEST(Cast, HalvesRoundToNearestEven) {
  const std::vector<float> source = {1.f + 0x1p-11f, 1.f + 3 * 0x1p-11f, 65520.f, 65519.f, 0x1p-25f, 0x1.8p-25f};
  std::vector<std::uint16_t> half(6);
  ASSERT_EQ(run_kernel(kCopy, {{{DType::f32, {6}}, source.data()}}, {{DType::f16, {6}}, half.data()}), "");
  EXPECT_EQ(half, (std::vector<std::uint16_t>{0x3c00, 0x3c02, 0x7c00, 0x7bff, 0, 1}));
  const std::vector<float> wide = {1.f + 0x1p-8f, 1.f + 3 * 0x1p-8f, std::numeric_limits<float>::max()};
  std::vector<std::uint16_t> brain(3);
  ASSERT_EQ(run_kernel(kCopy, {{{DType::f32, {3}}, wide.data()}}, {{DType::bf16, {3}}, brain.data()}), "");
  EXPECT_EQ(brain, (std::vector<std::uint16_t>{0x3f80, 0x3f82, 0x7f80}));
}

TEST(Cast, ShortAndStridedRows) {
  const std::vector<std::int32_t> source = iota<std::int32_t>(3 * 5000);
  std::vector<float> target(3 * 5000);
  for (const int threads : {1, 2}) {
    ASSERT_EQ(run_kernel(kCopy, {{strided(DType::i32, {5000, 3}, {1, 5000}), source.data()}},
                         {{DType::f32, {5000, 3}}, target.data()}, threads),
              "");
    for (std::size_t i = 0; i < target.size(); ++i)
      ASSERT_EQ(target[i], static_cast<float>(i % 3 * 5000 + i / 3)) << "threads " << threads;
  }
}

TEST(Fill, EveryDType) {
  std::vector<std::uint16_t> half(700);
  ASSERT_EQ(run_kernel(kFill, {}, {{DType::f16, {700}}, half.data()}, 1, FillAttrs{0, 1.5}), "");
  EXPECT_EQ(half, std::vector<std::uint16_t>(700, 0x3e00));
  std::vector<std::int64_t> big(9000);
  ASSERT_EQ(run_kernel(kFill, {}, {{DType::i64, {9000}}, big.data()}, 2, FillAttrs{(1LL << 53) + 1, 0}), "");
  EXPECT_EQ(big, std::vector<std::int64_t>(9000, (1LL << 53) + 1));
  std::vector<std::uint8_t> flags(33);
  ASSERT_EQ(run_kernel(kFill, {}, {{DType::b8, {33}}, flags.data()}, 1, FillAttrs{1, 0}), "");
  EXPECT_EQ(flags, std::vector<std::uint8_t>(33, 1));
}

TEST(Fill, StridedLeavesTheRestAlone) {
  std::vector<float> data(20, 0.f);
  ASSERT_EQ(run_kernel(kFill, {}, {strided(DType::f32, {10}, {2}), data.data()}, 1, FillAttrs{0, 3}), "");
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(data[i], i % 2 == 0 ? 3.f : 0.f);
}

TEST(Arange, IntegersAreExactAndFloatsComputedInDouble) {
  std::vector<std::int64_t> integers(9000);
  const std::int64_t start = (1LL << 53) + 1;
  ASSERT_EQ(run_kernel(kArange, {}, {{DType::i64, {9000}}, integers.data()}, 2, ArangeAttrs{{0, start}, {0, -3}}), "");
  for (std::size_t i = 0; i < integers.size(); ++i) ASSERT_EQ(integers[i], start - 3 * static_cast<std::int64_t>(i));
  std::vector<float> reals(700);
  ASSERT_EQ(run_kernel(kArange, {}, {{DType::f32, {700}}, reals.data()}, 1, ArangeAttrs{{0.1, 0}, {0.7, 0}}), "");
  for (std::size_t i = 0; i < reals.size(); ++i)
    ASSERT_EQ(reals[i], static_cast<float>(0.1 + static_cast<double>(i) * 0.7));
}

}  // namespace
}  // namespace graft
