#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plan/make_plan.h"
#include "run/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::tensor;

// activation(x W) with x [n, 2], W = 1: [2, 3]; `seen`: the product is an output too.
struct Net {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
  Net(const std::string& activation, bool seen) {
    const std::vector<ir::Dim> dims{dynamic(1, 64, "n"), fixed(3)};
    const auto x = graph.input("x", DType::f32, {dynamic(1, 64, "n"), fixed(2)});
    const auto w = graph.weight("w", {1, 1, 1, 1, 1, 1}, {3, 2});
    const auto sum = graph.node("aten.linear.default",
                                {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(w)}, {"bias", test::of_none()}},
                                DType::f32, dims);
    const auto y = graph.node(activation, {{"self", Arg::of_value(sum)}}, DType::f32, dims);
    graph.output(y);
    if (seen) graph.output(sum);
    program = graph.build();
  }
};

TEST(Fuse, AnActivationBecomesPartOfTheProductThatItAloneReads) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x{1, 2, -1, -2, 0, nan, infinity, 0, -30, -20, 0, -0.f};
  const std::vector<Value> in{tensor(x, {6, 2})};
  const auto silu = [](float v) { return v / (1 + std::exp(-v)); };
  const auto relu = [](float v) { return std::isnan(v) ? v : std::max(v, 0.f); };
  for (const std::string name : {"aten.relu.default", "aten.silu.default"}) {
    const Net alone(name, false);
    Session fused(alone.program);
    const Value out = fused.run("forward", in)[0];
    EXPECT_EQ(fused.counters().kernels_launched, 1u);
    const Net seen(name, true);
    Session apart(seen.program);
    const Value reference = apart.run("forward", in)[0];
    EXPECT_EQ(apart.counters().kernels_launched, 2u) << "the sum is asked for, so it must be there";
    for (std::size_t i = 0; i < 18; ++i) {
      const float got = static_cast<const float*>(out.tensor.data)[i];
      const float other = static_cast<const float*>(reference.tensor.data)[i];
      const float sum = x[i / 3 * 2] + x[i / 3 * 2 + 1];
      const float expected = name == "aten.relu.default" ? relu(sum) : silu(sum);
      const auto same = [](float a, float b) {
        return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= 1e-6f * (1 + std::fabs(b));
      };
      EXPECT_TRUE(same(got, expected)) << name << " of " << sum << " is " << got << ", expected " << expected;
      EXPECT_TRUE(same(got, other)) << name << " of " << sum;
    }
  }
}

}  // namespace
}  // namespace graft
