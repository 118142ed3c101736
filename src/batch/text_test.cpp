// What is written of tensors and of progress.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/test_errors.h"
#include "batch/progress.h"
#include "batch/row.h"
#include "batch/tensor_text.h"

namespace graft::batch {
namespace {

using test::expect_error;

template <typename T>
std::string text_of(std::vector<T> values, DType dtype, const Shape& shape, int from = 0, std::int64_t place = 0) {
  return tensor_text({values.data(), dtype, shape}, from, place, "y");
}

TEST(TensorText, NestedAsTheSizesSay) {
  EXPECT_EQ(text_of<std::int64_t>({1, -2, 3, 4, 5, 6}, DType::i64, Shape{3, 2}), "[[1,-2],[3,4],[5,6]]");
  EXPECT_EQ(text_of<std::int64_t>({1, -2, 3, 4, 5, 6}, DType::i64, Shape{3, 2}, 1, 2), "[5,6]");
  EXPECT_EQ(text_of<std::int32_t>({7}, DType::i32, Shape{}), "7");
  EXPECT_EQ(text_of<std::int32_t>({7, 8}, DType::i32, Shape{2}, 1, 1), "8");
  EXPECT_EQ(text_of<std::int8_t>({}, DType::i8, Shape{2, 0}), "[[],[]]");
  EXPECT_EQ(text_of<std::uint8_t>({0, 255}, DType::u8, Shape{2}), "[0,255]");
  EXPECT_EQ(text_of<std::uint8_t>({0, 1}, DType::b8, Shape{2}), "[false,true]");
}

TEST(TensorText, NumbersReadAsTheSameValue) {
  const std::vector<float> floats = {0.1f, -0.0f, 1e-45f, 3.4028235e38f, 16777216.0f, 1.0f / 3};
  const auto read = read_json<Json>(text_of(floats, DType::f32, Shape{6})).get<std::vector<double>>();
  for (std::size_t i = 0; i < floats.size(); ++i) {
    EXPECT_EQ(static_cast<float>(read[i]), floats[i]);
    EXPECT_EQ(std::signbit(read[i]), std::signbit(floats[i]));
  }
  EXPECT_EQ(text_of<float>({0.1f, 2, -0.0f}, DType::f32, Shape{3}), "[0.1,2.0,-0.0]");
  EXPECT_EQ(text_of<double>({0.1, 1e300}, DType::f64, Shape{2}), "[0.1,1e+300]");
}

TEST(TensorText, WhatJsonCannotCarry) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::nanf("")})
    expect_error<BadRow>([&] { text_of<float>({1, value}, DType::f32, Shape{2}); }, "'y' holds NaN or infinity");
  expect_error<BadRow>([&] { text_of<std::uint16_t>({1}, DType::bf16, Shape{1}); }, "'y' is BF16");
  EXPECT_TRUE(has_text(DType::f32) && has_text(DType::b8) && !has_text(DType::f16) && !has_text(DType::bf16));
}

TEST(Progress, Lines) {
  EXPECT_EQ(Progress::line(1000, 0, 420, 2, 24, false), " 42% 420/1000 rows, 17.5 rows/s, 0:33 left, 2 errors");
  EXPECT_EQ(Progress::line(1000, 400, 420, 0, 10, false), " 42% 420/1000 rows, 2.00 rows/s, 4:50 left");
  EXPECT_EQ(Progress::line(4, 0, 2, 0, 7200, true),
            " 50% [############            ] 2/4 rows, 0.00 rows/s, 2:00:00 left");
  EXPECT_EQ(Progress::line(10, 0, 0, 0, 0, false), "  0% 0/10 rows, 0.00 rows/s, ? left");
  EXPECT_EQ(Progress::line(0, 0, 0, 1, 1, false), "100% 0/0 rows, 0.00 rows/s, ? left, 1 error");
  EXPECT_EQ(Progress::line(100000, 0, 100000, 0, 10, false), "100% 100000/100000 rows, 10000 rows/s, 0:00 left");
}

}  // namespace
}  // namespace graft::batch
