#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "load/test_graph.h"
#include "plan/make_plan.h"

namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::tensor;

// activation(x W) with x [n, 2], W = 1: [2, 3]; `seen`: the product is an output as well.
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

// clamp(conv(x) + short) with x [1, 16, 5, 5] and a pointwise convolution of identity: `twice` reads the sum again.
struct Residual {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
  explicit Residual(bool twice) {
    const std::vector<ir::Dim> dims{fixed(1), fixed(16), fixed(5), fixed(5)};
    std::vector<float> identity(16 * 16);
    for (std::size_t i = 0; i < 16; ++i) identity[i * 17] = 1;
    const auto x = graph.input("x", DType::f32, dims);
    const auto w = graph.weight("w", identity, {16, 16, 1, 1});
    const auto conv = [&](ir::ValueId of) {
      return graph.node("aten.convolution.default",
                        {{"input", Arg::of_value(of)},
                         {"weight", Arg::of_value(w)},
                         {"bias", test::of_none()},
                         {"stride", test::of_ints({1, 1})},
                         {"padding", test::of_ints({0, 0})},
                         {"dilation", test::of_ints({1, 1})},
                         {"transposed", {Arg::Kind::boolean, 0, 0, {}, {}}},
                         {"output_padding", test::of_ints({0, 0})},
                         {"groups", test::of_int(1)}},
                        DType::f32, dims);
    };
    const auto first = conv(x);
    const auto second = conv(first);
    const auto sum =
        graph.node("aten.add.Tensor",
                   {{"self", Arg::of_value(second)}, {"other", Arg::of_value(first)}, {"alpha", test::of_int(1)}},
                   DType::f32, dims);
    const auto bounded =
        graph.node("aten.hardtanh.default",
                   {{"self", Arg::of_value(sum)}, {"min_val", test::of_real(-1)}, {"max_val", test::of_real(6)}},
                   DType::f32, dims);
    graph.output(conv(bounded));
    if (twice) graph.output(sum);
    program = graph.build();
  }
};

TEST(Fuse, SumsAndClampsBecomePartOfTheConvolutionThatTheyAloneRead) {
  std::vector<float> x(16 * 25);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 50.f - 3;
  x[7] = std::numeric_limits<float>::quiet_NaN();
  // Three convolutions and copies of the results in channels-last order.
  for (const auto& [twice, launches] : {std::pair{false, 4u}, std::pair{true, 6u}}) {
    const Residual net(twice);
    Session session(net.program);
    const std::vector<Value> out = session.run("forward", std::vector{tensor(x, {1, 16, 5, 5})});
    EXPECT_EQ(session.counters().kernels_launched, launches);
    const std::vector<float> y = test::floats(out[0]);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // A NaN in one channel reaches all channels of its position: 0 x NaN.
      if (i % 25 == 7) {
        EXPECT_TRUE(std::isnan(y[i]));
      } else {
        EXPECT_EQ(y[i], std::min(std::max(2 * x[i], -1.f), 6.f)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace graft
