#include "kernel/index/index.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernel/kernel_test_util.h"

namespace graft {
namespace {

// Rows of a [rows, width] table whose elements all differ, so that a wrong read shows.
struct Table {
  std::int64_t rows = 5, width = 3;
  std::vector<float> data;
  Table() : data(static_cast<std::size_t>(rows * width)) { std::iota(data.begin(), data.end(), 0.f); }

  TensorDesc window(std::int64_t count) const {
    TensorDesc desc(DType::f32, Shape{count, width});
    desc.strides = {0, 1};
    return desc;
  }
  TensorDesc index(std::int64_t count, DType dtype) const {
    TensorDesc desc(dtype, Shape{count, width});
    desc.strides = {1, 0};
    return desc;
  }
  IndexAttrs attrs(bool wrap = false) const {
    IndexAttrs a;
    a.count = 1;
    a.wrap = wrap;
    a.size[0] = rows;
    a.stride[0] = width * static_cast<std::int64_t>(sizeof(float));
    return a;
  }
};

TEST(Gather, RowsByIndex) {
  const Table table;
  for (int threads : {1, 2}) {
    std::vector<std::int64_t> index(3000);
    for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int64_t>(i * 7 % 10) - 5;
    const auto count = static_cast<std::int64_t>(index.size());
    std::vector<float> out(index.size() * 3, -1);
    const std::string error =
        run_kernel(kGather, {{table.window(count), table.data.data()}, {table.index(count, DType::i64), index.data()}},
                   {TensorDesc(DType::f32, Shape{count, 3}), out.data()}, threads, table.attrs(true));
    EXPECT_EQ(error, "");
    for (std::size_t i = 0; i < index.size(); ++i) {
      const std::int64_t row = index[i] < 0 ? index[i] + 5 : index[i];
      for (std::size_t c = 0; c < 3; ++c)
        ASSERT_EQ(out[i * 3 + c], static_cast<float>(row * 3) + static_cast<float>(c));
    }
  }
}

template <typename T, typename Index>
void check_elements(DType dtype, DType index_dtype) {
  // out[r, j] = table[r, index[j]], as x[:, index] gives; the table is transposed.
  constexpr std::int64_t kRows = 3, kSize = 70, kCount = 50;
  std::vector<T> table(kRows * kSize), out(kRows * kCount);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<T>(i);
  std::vector<Index> index(kCount);
  for (std::int64_t j = 0; j < kCount; ++j) index[static_cast<std::size_t>(j)] = static_cast<Index>(j * 13 % 140 - 70);
  IndexAttrs attrs;
  attrs.count = 1;
  attrs.wrap = true;
  attrs.size[0] = kSize;
  attrs.stride[0] = kRows * static_cast<std::int64_t>(sizeof(T));
  TensorDesc window(dtype, Shape{kRows, kCount}), places(index_dtype, Shape{kRows, kCount});
  window.strides = {1, 0};
  places.strides = {0, 1};
  const auto run = [&](int threads) {
    return run_kernel(kGather, {{window, table.data()}, {places, index.data()}},
                      {TensorDesc(dtype, Shape{kRows, kCount}), out.data()}, threads, attrs);
  };
  for (const int threads : {1, 2}) {
    ASSERT_EQ(run(threads), "");
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t j = 0; j < kCount; ++j)
        ASSERT_EQ(out[static_cast<std::size_t>(r * kCount + j)], static_cast<T>((j * 13 % 140 + 70) % 70 * kRows + r));
  }
  index[30] = 70;
  EXPECT_NE(run(1).find("index 70 is out of range for dimension 0 of size 70"), std::string::npos);
}

TEST(Gather, ElementsByOneIndex) {
  check_elements<std::uint8_t, std::int64_t>(DType::u8, DType::i64);
  check_elements<std::int16_t, std::int32_t>(DType::i16, DType::i32);
  check_elements<float, std::int64_t>(DType::f32, DType::i64);
  check_elements<float, std::int32_t>(DType::f32, DType::i32);
  check_elements<double, std::int32_t>(DType::f64, DType::i32);
}

TEST(Gather, AnIndexOutOfRangeFailsAndIsNeverRead) {
  const Table table;
  struct Case {
    std::int32_t index;
    bool wrap;
  };
  for (const Case c : {Case{5, false}, Case{-1, false}, Case{-6, true}, Case{1 << 30, true}}) {
    const std::int32_t index[] = {1, c.index};
    std::vector<float> out(6);
    const std::string error =
        run_kernel(kGather, {{table.window(2), table.data.data()}, {table.index(2, DType::i32), index}},
                   {TensorDesc(DType::f32, Shape{2, 3}), out.data()}, 1, table.attrs(c.wrap));
    EXPECT_NE(error.find("index " + std::to_string(c.index) + " is out of range for dimension 0 of size 5"),
              std::string::npos)
        << error;
  }
}

TEST(Scatter, TheLastOfEqualPlacesStaysAtAnyThreadCount) {
  for (const std::int64_t width : {std::int64_t{1}, std::int64_t{3}, std::int64_t{1000}}) {
    const std::int64_t rows = 5, count = 4000;
    std::vector<std::int64_t> index(static_cast<std::size_t>(count));
    std::vector<double> values(static_cast<std::size_t>(count * width));
    std::vector<double> expected(static_cast<std::size_t>(rows * width), -1), sums(expected);
    for (std::int64_t i = 0; i < count; ++i) {
      index[static_cast<std::size_t>(i)] = i * i % rows;
      for (std::int64_t c = 0; c < width; ++c) {
        const auto to = static_cast<std::size_t>(i * i % rows * width + c);
        values[static_cast<std::size_t>(i * width + c)] = static_cast<double>(i + c);
        expected[to] = static_cast<double>(i + c);
        sums[to] += static_cast<double>(i + c);
      }
    }
    TensorDesc window(DType::f64, Shape{count, width}), indices(DType::i64, Shape{count, width});
    window.strides = {0, 1};
    indices.strides = {1, 0};
    ScatterAttrs attrs;
    attrs.index.count = 1;
    attrs.index.size[0] = rows;
    attrs.index.stride[0] = width * static_cast<std::int64_t>(sizeof(double));
    for (int threads : {1, 2, 3}) {
      for (const ScatterMode mode : {ScatterMode::assign, ScatterMode::add}) {
        attrs.mode = mode;
        std::vector<double> out(expected.size(), -1);
        const std::string error = run_kernel(
            kScatter, {{TensorDesc(DType::f64, Shape{count, width}), values.data()}, {indices, index.data()}},
            {window, out.data()}, threads, attrs);
        EXPECT_EQ(error, "");
        EXPECT_EQ(out, mode == ScatterMode::assign ? expected : sums) << "width " << width << ", threads " << threads;
      }
    }
  }
}

TEST(Scatter, AnIndexOutOfRangeFailsAndIsNeverWritten) {
  const Table table;
  std::vector<float> out(15, 1), values(6, 2);
  const std::int64_t index[] = {5, -1};
  ScatterAttrs attrs;
  attrs.index = table.attrs();
  for (int threads : {1, 2}) {
    const std::string error = run_kernel(
        kScatter, {{TensorDesc(DType::f32, Shape{2, 3}), values.data()}, {table.index(2, DType::i64), index}},
        {table.window(2), out.data()}, threads, attrs);
    EXPECT_NE(error.find("index 5 is out of range for dimension 0 of size 5"), std::string::npos) << error;
    EXPECT_EQ(out, std::vector<float>(15, 1));
  }
}

}  // namespace
}  // namespace graft
