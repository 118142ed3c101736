#include "kernel/random/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernel/kernel_test_util.h"

namespace graft {
namespace {

template <typename T>
std::vector<T> drawn(DType dtype, std::int64_t count, const RandomAttrs& attrs, RandomKey key, int threads = 1,
                     std::string_view node = "node") {
  std::vector<T> out(static_cast<std::size_t>(count));
  const TensorDesc desc(dtype, Shape{count});
  void* data = out.data();
  KernelContext ctx;
  ctx.tasks = threads;
  ctx.output_descs = {&desc, 1};
  ctx.outputs = &data;
  ctx.attr_bytes = reinterpret_cast<const std::byte*>(&attrs);
  ctx.random = key;
  ctx.node = node;
  run_phases(1, ctx, kRandom.run);
  return out;
}

TEST(Random, ThreadsDoNotMatter) {
  for (const Draw draw : {Draw::uniform, Draw::normal}) {
    RandomAttrs attrs;
    attrs.draw = draw;
    for (const std::int64_t count : {1, 7, 257}) {
      const auto one = drawn<float>(DType::f32, count, attrs, {5, 2});
      for (const int threads : {2, 3, 8}) EXPECT_EQ(drawn<float>(DType::f32, count, attrs, {5, 2}, threads), one);
      const auto wide = drawn<double>(DType::f64, count, attrs, {5, 2});
      for (const int threads : {2, 3, 8}) EXPECT_EQ(drawn<double>(DType::f64, count, attrs, {5, 2}, threads), wide);
    }
  }
}

TEST(Random, SeedRunAndNodeMatter) {
  const RandomAttrs attrs;
  const auto first = drawn<double>(DType::f64, 9, attrs, {1, 0});
  EXPECT_EQ(drawn<double>(DType::f64, 9, attrs, {1, 0}), first);
  for (const RandomKey key : {RandomKey{2, 0}, RandomKey{1, 1}, RandomKey{1ull << 32 | 1, 0}, RandomKey{1, 1ull << 32}})
    EXPECT_NE(drawn<double>(DType::f64, 9, attrs, key), first);
  EXPECT_NE(drawn<double>(DType::f64, 9, attrs, {1, 0}, 1, "other"), first);
}

TEST(Random, TheWholeRangeOfIntegers) {
  RandomAttrs attrs;
  attrs.draw = Draw::integers;
  attrs.low = -3;
  attrs.range = 5;
  const auto few = drawn<std::int64_t>(DType::i64, 1000, attrs, {});
  EXPECT_EQ(*std::min_element(few.begin(), few.end()), -3);
  EXPECT_EQ(*std::max_element(few.begin(), few.end()), 1);
  attrs.range = 0;
  const auto all = drawn<std::int64_t>(DType::i64, 1000, attrs, {});
  EXPECT_LT(*std::min_element(all.begin(), all.end()), std::int64_t{-1} << 62);
  EXPECT_GT(*std::max_element(all.begin(), all.end()), std::int64_t{1} << 62);
}

// The known answer of the authors' library for Philox 4x32-10 with counter and key 0.
TEST(Random, KnownAnswer) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

}  // namespace
}  // namespace graft
