#include "session/run_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/test_errors.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::fixed;
using test::floats;
using test::GraphBuilder;
using test::tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<ir::Dim> kRows{fixed(2), fixed(3)};

// Product of two launches that are not fused: log(x), whose rows are summed, and a state that counts runs.
struct Net {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;

  explicit Net(const LoadOptions& options = {}) {
    const auto x = graph.input("x", DType::f32, kRows);
    const auto runs = graph.state("runs", DType::f32, Shape{1});
    const auto log = graph.node("aten.log.default", {{"self", Arg::of_value(x)}}, DType::f32, kRows);
    const auto sum = graph.node("aten.sum.dim_IntList",
                                {{"self", Arg::of_value(log)},
                                 {"dim", test::of_ints({1})},
                                 {"keepdim", test::of_int(0)},
                                 {"dtype", test::of_none()}},
                                DType::f32, {fixed(2)});
    const auto more = graph.node(
        "aten.add.Scalar", {{"self", Arg::of_value(runs)}, {"other", test::of_int(1)}, {"alpha", test::of_int(1)}},
        DType::f32, {fixed(1)});
    graph.output(sum);
    graph.mutate_state(0, more);
    program = graph.build(options);
  }
};

std::string error_of(Session& session, std::vector<float> x, Check check) {
  RunOptions options;
  options.check = check;
  const std::vector<Value> in{tensor(x, {2, 3})};
  try {
    session.run("forward", in, options);
  } catch (const ExecutionError& error) {
    return error.what();
  }
  return {};
}

TEST(RunObserver, NamesTheFirstLaunchThatMakesNanOrInfinity) {
  Net net;
  for (const int threads : {1, 2}) {
    SessionOptions options;
    options.threads = threads;
    Session session(net.program, options);
    const std::string nan = error_of(session, {1, 2, 3, 4, -5, 6}, Check::nan);
    EXPECT_THAT(nan, HasSubstr("n0"));  // the name of the first node
    EXPECT_THAT(nan, HasSubstr("element [1, 1] of output 0"));
    EXPECT_THAT(nan, HasSubstr("in -5 .. 6"));
    EXPECT_EQ(error_of(session, {1, 2, 3, 4, 0, 6}, Check::nan), "") << "log(0) is -inf";
    EXPECT_THAT(error_of(session, {1, 2, 3, 4, 0, 6}, Check::finite), HasSubstr("is -inf"));
    EXPECT_EQ(error_of(session, {1, 2, 3, 4, 5, 6}, Check::finite), "");
    // Two runs were stopped: their states are as before.
    EXPECT_THAT(floats(Value::of(session.states()[0].tensor)), ElementsAre(2));
    EXPECT_EQ(error_of(session, {1, 2, 3, 4, -5, 6}, Check::none), "");
  }
}

TEST(RunObserver, NanOfTheCallerIsNoFaultOfALaunch) {
  Net net;
  Session session(net.program);
  EXPECT_EQ(error_of(session, {1, NAN, 3, 4, 5, 6}, Check::finite), "");
}

TEST(RunObserver, SeesEveryLaunchInOrder) {
  Net net;
  Session session(net.program);
  std::vector<std::string> nodes;
  std::vector<float> sum;
  RunOptions options;
  options.observe = [&](const ObservedLaunch& launch) {
    nodes.emplace_back(launch.node);
    EXPECT_FALSE(launch.kernel.empty());
    if (launch.node == "n1") sum = floats(Value::of(launch.outputs[0]));
  };
  std::vector<float> x{1, 1, 1, 1, 1, std::exp(1.f)};
  const std::vector<Value> in{tensor(x, {2, 3})};
  const std::vector<Value> out = session.run("forward", in, options);
  EXPECT_EQ(nodes.size(), session.counters().kernels_launched);
  EXPECT_EQ(sum, floats(out[0]));
  EXPECT_THAT(sum, ElementsAre(0, testing::FloatNear(1, 1e-6f)));
}

// A product with its activation is one launch, under the product's name; its value is the activation's result. What a
// view shows of it comes with it.
TEST(RunObserver, ResultsBelongToTheNodesThatMadeThem) {
  GraphBuilder graph;
  const std::vector<ir::Dim> dims{fixed(2), fixed(3)};
  const auto x = graph.input("x", DType::f32, dims);
  const auto weight = graph.weight("weight", {1, 0, 0, 0, 1, 0, 0, 0, -1}, {3, 3});
  const auto runs = graph.state("runs", DType::f32, Shape{1});
  const auto product = graph.node(
      "aten.linear.default",
      {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(weight)}, {"bias", test::of_none()}}, DType::f32, dims);
  const auto relu = graph.node("aten.relu.default", {{"self", Arg::of_value(product)}}, DType::f32, dims);
  const auto turned = graph.node("aten.transpose.int",
                                 {{"self", Arg::of_value(relu)}, {"dim0", test::of_int(0)}, {"dim1", test::of_int(1)}},
                                 DType::f32, {fixed(3), fixed(2)});
  const auto more = graph.node("aten.add.Scalar",
                               {{"self", Arg::of_value(runs)}, {"other", test::of_int(1)}, {"alpha", test::of_int(1)}},
                               DType::f32, {fixed(1)});
  graph.output(graph.node("aten.cumsum.default",
                          {{"self", Arg::of_value(turned)}, {"dim", test::of_int(1)}, {"dtype", test::of_none()}},
                          DType::f32, {fixed(3), fixed(2)}));
  graph.mutate_state(0, more);
  Session session(graph.build());
  std::map<std::string, std::vector<float>> results;
  RunOptions options;
  options.observe = [&](const ObservedLaunch& launch) {
    for (const ObservedResult& result : launch.results) {
      EXPECT_EQ(result.index, 0u);
      EXPECT_TRUE(results.emplace(result.node, floats(Value::of(result.value))).second) << result.node;
    }
  };
  std::vector<float> values{1, -2, 3, -4, 5, -6};
  const std::vector<Value> in{tensor(values, {2, 3})};
  const std::vector<Value> out = session.run("forward", in, options);
  EXPECT_THAT(results["n1"], ElementsAre(1, 0, 0, 0, 5, 6));
  EXPECT_THAT(results["n2"], ElementsAre(1, 0, 0, 5, 0, 6));
  EXPECT_THAT(results["n4"], ElementsAre(1, 1, 0, 5, 0, 6));
  EXPECT_EQ(results["n4"], floats(out[0]));
  EXPECT_FALSE(results.contains("n0")) << "it is nowhere";
  EXPECT_THAT(results["n3"], ElementsAre(1));
}

TEST(RunObserver, WhatTheObserverThrowsEndsTheRun) {
  Net net;
  Session session(net.program);
  RunOptions options;
  options.observe = [](const ObservedLaunch&) { throw std::runtime_error("seen enough"); };
  std::vector<float> x{1, 1, 1, 1, 1, 1};
  const std::vector<Value> in{tensor(x, {2, 3})};
  test::expect_error<ExecutionError>([&] { session.run("forward", in, options); }, "seen enough");
  EXPECT_EQ(floats(session.run("forward", in)[0])[0], 0);
}

TEST(RunObserver, LaunchesOfGgmlAreRefused) {
  LoadOptions plain;
  plain.fast_kernels = false;
  Net net(plain);
  Session session(net.program);
  RunOptions options;
  options.check = Check::nan;
  std::vector<float> x{1, 1, 1, 1, 1, 1};
  const std::vector<Value> in{tensor(x, {2, 3})};
  test::expect_error<Unsupported>([&] { session.run("forward", in, options); }, "only launches of graft's own kernels");
}

}  // namespace
}  // namespace graft
