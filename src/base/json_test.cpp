#include "base/json.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "exec/test_allocations.h"

namespace graft {
namespace {

template <typename Value>
class JsonTest : public ::testing::Test {};
using Types = ::testing::Types<Json, OrderedJson>;
TYPED_TEST_SUITE(JsonTest, Types);

constexpr const char* kDocument =
    R"({"numbers": [1, 2.5, -3], "nested": [[], {}, [[{"a": {"b": [null, true]}}], "text that is longer than sixteen"]],
        "last": {"x": {"y": {"z": []}}, "w": "v"}})";

TYPED_TEST(JsonTest, PrintsWhatItRead) {
  const auto value = TypeParam::parse(kDocument);
  EXPECT_EQ(TypeParam::parse(value.dump()), value);
  EXPECT_EQ(value.at("numbers").size(), 3u);
  EXPECT_EQ(value.begin().key(), (std::is_same_v<TypeParam, Json>) ? "last" : "numbers");
}

TYPED_TEST(JsonTest, IsFreedWithoutAllocations) {
  auto value = std::make_unique<TypeParam>(TypeParam::parse(kDocument));
  test::begin_counting_allocations();
  value.reset();
  EXPECT_EQ(test::end_counting_allocations(), 0);
}

TYPED_TEST(JsonTest, AnyDepthIsFreed) {
  constexpr int kDepth = 200'000;  // recursion would need more than a stack has
  TypeParam arrays, objects;
  for (int i = 0; i < kDepth; ++i) {
    TypeParam outer = TypeParam::array();
    outer.push_back(i);
    outer.push_back(std::move(arrays));
    outer.push_back("last");
    arrays = std::move(outer);
    TypeParam object = TypeParam::object();
    object["b"] = i;
    object["a"] = std::move(objects);  // the last: an ordered object copies its members when it grows
    objects = std::move(object);
  }
  EXPECT_EQ(arrays.at(0), kDepth - 1);
  EXPECT_EQ(objects.at("b"), kDepth - 1);
}

}  // namespace
}  // namespace graft
