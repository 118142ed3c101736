#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/test_errors.h"
#include "load/test_graph.h"

// A call is resolved once, whichever way it comes in: its inputs are described once and padded at most once.
namespace graft {
namespace {

using ir::Arg;
using test::counting;
using test::dynamic;
using test::expect_error;
using test::fixed;
using test::floats;
using test::GraphBuilder;
using test::of_int;
using test::tensor;

GraphBuilder::Args sum_of(ir::ValueId a, ir::ValueId b) {
  return {{"self", Arg::of_value(a)}, {"other", Arg::of_value(b)}, {"alpha", of_int(1)}};
}

// exp(x + y + z), where z has one size only.
struct Net {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
  std::vector<float> x = counting(5), y = counting(5, 1), z = {-9.f}, result = std::vector<float>(5);
  std::vector<Value> inputs{tensor(x, {5}), tensor(y, {5}), tensor(z, {1})};

  Net() {
    const std::vector<ir::Dim> dims{dynamic(1, 64, "n")};
    const auto a = graph.input("x", DType::f32, dims), b = graph.input("y", DType::f32, dims),
               c = graph.input("z", DType::f32, {fixed(1)});
    const auto sum = graph.node("aten.add.Tensor", sum_of(a, b), DType::f32, dims);
    const auto all = graph.node("aten.add.Tensor", sum_of(sum, c), DType::f32, dims);
    graph.output(graph.node("aten.exp.default", {{"self", Arg::of_value(all)}}, DType::f32, dims));
    program = graph.build();
  }

  std::vector<float> run_into(Session& session) {
    std::vector<Value> outputs{tensor(result, {5})};
    session.run_into("forward", inputs, outputs);
    return result;
  }
  std::vector<float> run_placed(Session& session) {
    const std::vector<Value> outputs = session.run_into("forward", inputs, [&](std::span<Value> wanted) {
      ASSERT_EQ(wanted.size(), 1u);
      EXPECT_EQ(wanted[0].tensor.data, nullptr);
      EXPECT_EQ(wanted[0].tensor.shape, Shape({5}));
      wanted[0].tensor.data = result.data();
    });
    EXPECT_EQ(outputs.at(0).tensor.data, result.data());
    return result;
  }
};

SessionOptions padded_to(std::vector<std::int64_t> sizes) {
  SessionOptions options;
  options.buckets.push_back({"n", std::move(sizes), {}});
  return options;
}

TEST(PreparedCall, InputsAreDescribedOncePerCall) {
  Net net;
  Session session(net.program);
  auto described = [&, last = std::uint64_t{0}]() mutable {
    const std::uint64_t now = session.counters().inputs_described;
    return now - std::exchange(last, now);
  };
  const std::vector<float> expected = floats(session.run("forward", net.inputs)[0]);
  EXPECT_EQ(described(), 3u) << "run";
  EXPECT_EQ(net.run_into(session), expected);
  EXPECT_EQ(described(), 3u) << "run_into";
  EXPECT_EQ(net.run_placed(session), expected);
  EXPECT_EQ(described(), 3u) << "run_into with memory that is placed";
  session.output_values("forward", net.inputs);
  EXPECT_EQ(described(), 3u) << "output_values";
  session.plan("forward", net.inputs);
  EXPECT_EQ(described(), 3u) << "plan";
  session.submit("forward", net.inputs).get();
  EXPECT_EQ(described(), 3u) << "submit";
  EXPECT_EQ(session.counters().inputs_padded, 0u);
}

TEST(PreparedCall, InputsArePaddedOncePerCallAndDescribedOnce) {
  Net net;
  Session exact(net.program), session(net.program, padded_to({8, 16}));
  const std::vector<float> expected = floats(exact.run("forward", net.inputs)[0]);
  session.output_values("forward", net.inputs);
  session.plan("forward", net.inputs);
  EXPECT_EQ(session.counters().inputs_padded, 0u) << "data are not read";
  std::uint64_t padded = 0, described = session.counters().inputs_described;
  EXPECT_EQ(described, 6u);
  for (const auto& run :
       {std::function([&] { return floats(session.run("forward", net.inputs)[0]); }),
        std::function([&] { return net.run_into(session); }), std::function([&] { return net.run_placed(session); })}) {
    EXPECT_EQ(run(), expected);
    EXPECT_EQ(session.counters().inputs_padded, padded += 2) << "z has its one size";
    EXPECT_EQ(session.counters().inputs_described, described += 3);
  }
  EXPECT_EQ(session.counters().graphs_built, 1u);
}

TEST(PreparedCall, APlanIsThatOfThePaddedRun) {
  Net net;
  Session exact(net.program), session(net.program, padded_to({32}));
  std::vector<float> x = counting(32), y = counting(32);
  const std::vector<Value> inputs{tensor(x, {32}), tensor(y, {32}), tensor(net.z, {1})};
  const PlanInfo plan = session.plan("forward", net.inputs);
  EXPECT_EQ(plan.arena_bytes, exact.plan("forward", inputs).arena_bytes);
  const AlignedMemory memory(static_cast<std::size_t>(plan.arena_bytes));
  RunOptions run;
  run.arena = {memory.data(), memory.size()};
  EXPECT_EQ(floats(session.run("forward", net.inputs, run)[0]), floats(exact.run("forward", net.inputs)[0]));
}

TEST(PreparedCall, AFrozenInputMayBePadded) {
  Net net;
  Session exact(net.program), session(net.program, padded_to({8}));
  session.freeze_input("forward", 0);
  for (int round = 0; round < 3; ++round) {
    net.x[0] = static_cast<float>(round);
    const std::vector<Value> kept = session.run("forward", net.inputs);
    EXPECT_EQ(floats(kept[0]), floats(exact.run("forward", net.inputs)[0]));
  }
}

TEST(PreparedCall, WhatPlaceThrowsEndsTheCall) {
  Net net;
  Session session(net.program);
  const auto refuse = [](std::span<Value>) { throw std::runtime_error("no memory here"); };
  EXPECT_THROW(session.run_into("forward", net.inputs, refuse), std::runtime_error);
  EXPECT_EQ(session.counters().runs, 0u);
  EXPECT_EQ(net.run_placed(session), net.run_into(session));
}

TEST(PreparedCall, PlacedMemoryIsChecked) {
  Net net;
  Session session(net.program);
  expect_error<InvalidArgument>([&] { session.run_into("forward", net.inputs, [](std::span<Value>) {}); },
                                "output 0 of method 'forward' (f32[5]) has no memory: its pointer is null");
  const auto reshape = [&](std::span<Value> outputs) { outputs[0] = tensor(net.result, {1, 5}); };
  expect_error<InvalidArgument>([&] { session.run_into("forward", net.inputs, reshape); }, "got f32[1, 5]");
}

TEST(PreparedCall, TheSessionIsInUseWhileMemoryIsPlaced) {
  Net net;
  Session session(net.program);
  const auto enter = [&](std::span<Value>) { session.reset(); };
  EXPECT_THROW(session.run_into("forward", net.inputs, enter), Busy);
}

}  // namespace
}  // namespace graft
