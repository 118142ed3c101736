#include "base/json.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "base/test_errors.h"
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

TEST(JsonRulesTest, AreCheckedWhileADocumentIsRead) {
  JsonRules rules;
  rules.max_depth = 3;
  rules.unique_depth = 2;
  rules.max_members = 2;
  rules.refuse = [](const std::string& message) { throw std::length_error(message); };
  EXPECT_EQ(read_json<Json>(R"({"a": [{"b": 1, "b": 2}, 3], "c": {"a": null}})", rules),
            Json::parse(R"({"a": [{"b": 2}, 3], "c": {"a": null}})"));
  EXPECT_EQ(read_json<OrderedJson>("[[[]], {}]", rules).dump(), "[[[]],{}]");
  const auto refused = [&](const char* text, const char* message) {
    test::expect_error<std::length_error>([&] { read_json<Json>(text, rules); }, message);
  };
  refused(R"({"a": {"b": 1, "b": 2}})", "has the key 'b' twice in one object");
  refused(R"({"a": {"b": 1}, "a": 2})", "has the key 'a' twice in one object");
  refused("[[[{}]]]", "is nested deeper than 3 levels");
  refused("[[[[]]]]", "is nested deeper than 3 levels");
  refused(R"([[{"a": 1, "b": 2, "c": 3}]])", "has an object of more than 2 members");
  EXPECT_THROW(read_json<Json>("[1, 2", rules), Json::parse_error);
  EXPECT_THROW(read_json<Json>("[1, 2] 3", rules), Json::parse_error);
  EXPECT_THROW(read_json<Json>("", rules), Json::parse_error);
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
