// The golden package (test/golden/make_golden.py) through the C++ library.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "cli/npz.h"
#include "graft/graft.h"

namespace graft::cli {
namespace {

using Arrays = std::map<std::string, Array>;  // "<method>.<call>.in.<i>"

Arrays stored() {
  Arrays arrays;
  for (NamedArray& named : read_npz(GRAFT_SOURCE_DIR "/test/golden/golden.npz"))
    arrays.emplace(std::move(named.name), std::move(named.array));
  return arrays;
}

template <typename T>
void expect_equal(const TensorView& found, const TensorView& expected, const std::string& what) {
  const auto* a = static_cast<const T*>(found.data);
  const auto* b = static_cast<const T*>(expected.data);
  for (std::int64_t i = 0; i < expected.shape.numel(); ++i) ASSERT_EQ(a[i], b[i]) << what << " at " << i;
}

void expect_near(const TensorView& found, const TensorView& expected, const std::string& what) {
  const auto* a = static_cast<const float*>(found.data);
  const auto* b = static_cast<const float*>(expected.data);
  for (std::int64_t i = 0; i < expected.shape.numel(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    ASSERT_LE(std::fabs(a[i] - b[i]), 2e-6f + 1e-5f * std::fabs(b[i])) << what << " at " << i << ": " << a[i];
  }
}

void compare(const Value& found, const Array& expected, const std::string& what) {
  if (found.kind == Value::Kind::integer) {
    EXPECT_EQ(found.i, *static_cast<const std::int64_t*>(expected.tensor.data)) << what;
    return;
  }
  if (found.kind == Value::Kind::real) {
    EXPECT_EQ(found.f, *static_cast<const double*>(expected.tensor.data)) << what;
    return;
  }
  ASSERT_EQ(found.kind, Value::Kind::tensor) << what;
  ASSERT_EQ(found.tensor.dtype, expected.tensor.dtype) << what;
  ASSERT_EQ(found.tensor.shape, expected.tensor.shape) << what;
  switch (expected.tensor.dtype) {
    case DType::f32:
      return expect_near(found.tensor, expected.tensor, what);
    case DType::f16:  // f16 rounded to integers: bit for bit
      return expect_equal<std::uint16_t>(found.tensor, expected.tensor, what);
    case DType::i32:
      return expect_equal<std::int32_t>(found.tensor, expected.tensor, what);
    case DType::i64:
      return expect_equal<std::int64_t>(found.tensor, expected.tensor, what);
    case DType::b8:
      return expect_equal<std::uint8_t>(found.tensor, expected.tensor, what);
    default:
      FAIL() << what << " has an unexpected dtype";
  }
}

TEST(Golden, GivesTheStoredNumbers) {
  const Arrays arrays = stored();
  LoadOptions options;
  options.verify_hashes = true;
  const auto program = Program::load(GRAFT_SOURCE_DIR "/test/golden/golden.pte", options);
  Session session(program);
  std::set<std::string> calls;
  for (const auto& [name, array] : arrays) calls.insert(name.substr(0, name.find('.', name.find('.') + 1)));
  ASSERT_EQ(calls.size(), 10u);
  for (const std::string& call : calls) {
    const std::string method = call.substr(0, call.find('.'));
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < program->method(method).inputs.size(); ++i)
      inputs.push_back(Value::of(arrays.at(call + ".in." + std::to_string(i)).tensor));
    const std::vector<Value> outputs = session.run(method, inputs);
    std::size_t compared = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::string name = call + ".out." + std::to_string(i);
      const auto expected = arrays.find(name);
      if (expected == arrays.end()) {
        EXPECT_EQ(outputs[i].kind, Value::Kind::none) << name;
        continue;
      }
      compare(outputs[i], expected->second, name);
      ++compared;
    }
    EXPECT_GE(compared, 3u) << call;
  }
}

}  // namespace
}  // namespace graft::cli
