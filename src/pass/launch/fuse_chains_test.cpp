#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graft/graft.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::fixed;
using test::GraphBuilder;
using test::tensor;

const std::vector<ir::Dim> kMatrix{fixed(40), fixed(50)};

struct Net {
  GraphBuilder graph;
  ir::ValueId x = graph.input("x", DType::f32, kMatrix);

  ir::ValueId one(const std::string& op, ir::ValueId self, const std::vector<ir::Dim>& dims = kMatrix) {
    return graph.node("aten." + op + ".default", {{"self", Arg::of_value(self)}}, DType::f32, dims);
  }
  ir::ValueId mul(ir::ValueId a, ir::ValueId b) {
    return graph.node("aten.mul.Tensor", {{"self", Arg::of_value(a)}, {"other", Arg::of_value(b)}}, DType::f32,
                      kMatrix);
  }

  // The launches of a run, after comparing its result with the plain lowering.
  std::uint64_t launches() {
    std::vector<float> values(2000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 500 - 2;
    values[3] = std::numeric_limits<float>::quiet_NaN();
    values[4] = std::numeric_limits<float>::infinity();
    const std::vector<Value> in{tensor(values, {40, 50})};
    Session session(graph.build());
    LoadOptions plain;
    plain.fast_kernels = false;
    Session apart(graph.build(plain));
    const std::vector<Value> out = session.run("forward", in), expected = apart.run("forward", in);
    EXPECT_GE(apart.counters().kernels_launched, session.counters().kernels_launched);
    for (std::size_t k = 0; k < out.size(); ++k) {
      const std::vector<float> got = test::floats(out[k]), wanted = test::floats(expected[k]);
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(wanted[i])) {
          EXPECT_TRUE(std::isnan(got[i])) << i;
        } else if (std::isinf(wanted[i])) {
          EXPECT_EQ(got[i], wanted[i]) << i;
        } else {
          EXPECT_NEAR(got[i], wanted[i], 1e-5f * (1 + std::fabs(wanted[i]))) << i;
        }
      }
    }
    return session.counters().kernels_launched;
  }
};

TEST(FuseChains, LaunchesOneAfterTheOtherBecomeOne) {
  Net net;
  net.graph.output(net.one("tanh", net.one("exp", net.one("neg", net.one("sigmoid", net.x)))));
  EXPECT_EQ(net.launches(), 1u);
}

TEST(FuseChains, AValueThatTheChainReadsTwiceStaysInside) {
  Net net;
  const auto sum = net.one("neg", net.x);
  net.graph.output(net.mul(net.mul(sum, net.one("sigmoid", sum)), net.x));
  EXPECT_EQ(net.launches(), 1u);
}

TEST(FuseChains, AValueThatSomethingElseReadsIsWritten) {
  Net net;
  const auto seen = net.one("sigmoid", net.x);
  net.graph.output(net.one("tanh", net.one("exp", seen)));
  net.graph.output(seen);
  EXPECT_EQ(net.launches(), 2u);
}

TEST(FuseChains, AValueOfTwoReadersIsWrittenForBoth) {
  Net net;
  const auto seen = net.one("exp", net.x);
  net.graph.output(net.one("tanh", seen));
  net.graph.output(net.one("neg", seen));
  EXPECT_EQ(net.launches(), 3u);
}

TEST(FuseChains, AValueThatIsRepeatedIsMadeOnce) {
  Net net;
  const auto row = net.graph.input("row", DType::f32, {fixed(50)});
  const auto made = net.one("sigmoid", row, {fixed(50)});
  net.graph.output(net.mul(net.x, made));
  Session session(net.graph.build());
  std::vector<float> ones(2000, 1), zeros(50, 0);
  session.run("forward", std::vector{tensor(ones, {40, 50}), tensor(zeros, {50})});
  EXPECT_EQ(session.counters().kernels_launched, 2u);
}

TEST(FuseChains, AChainHasTenStepsAtMost) {
  Net net;
  auto value = net.x;
  for (int i = 0; i < 21; ++i) value = net.one(i % 2 == 0 ? "sigmoid" : "neg", value);
  net.graph.output(value);
  EXPECT_EQ(net.launches(), 3u);
}

TEST(FuseChains, AStateIsReadBeforeItIsWritten) {
  Net net;
  const auto state = net.graph.state("s", DType::f32, Shape{40, 50});
  const auto doubled = net.one("neg", state);
  const auto next = net.mul(net.one("sigmoid", net.x), net.one("exp", doubled));
  net.graph.output(net.one("tanh", next));
  net.graph.mutate_state(0, next);
  Session session(net.graph.build());
  std::vector<float> x(2000, 0.5f);
  const std::vector<Value> in{tensor(x, {40, 50})};
  float state_now = 0;
  for (int run = 0; run < 3; ++run) {
    const std::vector<Value> out = session.run("forward", in);
    state_now = std::exp(-state_now) / (1 + std::exp(-0.5f));
    EXPECT_NEAR(test::floats(out[0])[7], std::tanh(state_now), 1e-5f);
  }
}

TEST(FuseChains, AChainIsNotMovedPastAWriteOfWhatItReads) {
  GraphBuilder graph;
  const std::vector<ir::Dim> rows{fixed(2), fixed(2)}, all{fixed(6), fixed(2)};
  const auto x = graph.input("x", DType::f32, rows);
  const auto at = graph.input("at", DType::i64, {fixed(2)});
  const auto state = graph.state("s", DType::f32, Shape{6, 2});
  const auto before = graph.node("aten.neg.default", {{"self", Arg::of_value(state)}}, DType::f32, all);
  const auto stored = graph.node("aten.index_put.default",
                                 {{"self", Arg::of_value(state)},
                                  {"indices", test::of_list({Arg::of_value(at)})},
                                  {"values", Arg::of_value(x)},
                                  {"accumulate", test::of_int(0)}},
                                 DType::f32, all);
  graph.output(graph.node("aten.exp.default", {{"self", Arg::of_value(before)}}, DType::f32, all));
  graph.mutate_state(0, stored);
  Session session(graph.build());
  std::vector<float> values{1, 2, 3, 4};
  std::vector<std::int64_t> rows_written{4, 1};
  const std::vector<Value> in{tensor(values, {2, 2}), test::tensor(rows_written, DType::i64, {2})};
  std::vector<float> held(12, 0);
  for (int run = 0; run < 2; ++run) {
    const std::vector<Value> out = session.run("forward", in);
    for (std::size_t i = 0; i < held.size(); ++i) EXPECT_NEAR(test::floats(out[0])[i], std::exp(-held[i]), 1e-5f) << i;
    for (std::size_t k = 0; k < 4; ++k) held[static_cast<std::size_t>(rows_written[k / 2]) * 2 + k % 2] = values[k];
  }
}

}  // namespace
}  // namespace graft
