#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned.h"
#include "exec/test_allocations.h"
#include "graft/error.h"
#include "graft/op.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::tensor;
using ::testing::HasSubstr;

constexpr std::int64_t kWidth = 64;
const std::vector<ir::Dim> kDims{dynamic(1, 4096, "n"), fixed(kWidth)};

std::vector<float> values_of(std::int64_t rows) {
  std::vector<float> values(static_cast<std::size_t>(rows * kWidth));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 71) / 71 - 0.5f;
  return values;
}

// tanh(x W) W, with intermediate tensors; then `op` on it where there is one.
struct Layer {
  explicit Layer(const std::string& op = {}) {
    std::vector<float> weight(kWidth * kWidth);
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i % 13) / 64 - 0.1f;
    const auto x = graph.input("x", DType::f32, kDims);
    const auto w = graph.weight("w", weight, {kWidth, kWidth});
    const auto product = [&](ir::ValueId left) {
      return graph.node("aten.mm.default", {{"self", Arg::of_value(left)}, {"mat2", Arg::of_value(w)}}, DType::f32,
                        kDims);
    };
    const auto tanh = graph.node("aten.tanh.default", {{"self", Arg::of_value(product(x))}}, DType::f32, kDims);
    auto last = product(tanh);
    if (!op.empty()) last = graph.node(op, {{"x", Arg::of_value(last)}}, DType::f32, kDims);
    graph.output(last);
    program = graph.build();
  }
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
};

// exp(op(sigmoid(x))) + x, and the number of rows as a reader of sizes.
struct Outer {
  explicit Outer(const std::string& op) {
    const auto x = graph.input("x", DType::f32, kDims);
    const auto sigmoid = graph.node("aten.sigmoid.default", {{"self", Arg::of_value(x)}}, DType::f32, kDims);
    const auto inner = graph.node(op, {{"x", Arg::of_value(sigmoid)}}, DType::f32, kDims);
    const auto exp = graph.node("aten.exp.default", {{"self", Arg::of_value(inner)}}, DType::f32, kDims);
    graph.output(graph.node("aten.add.Tensor",
                            {{"self", Arg::of_value(exp)}, {"other", Arg::of_value(x)}, {"alpha", test::of_int(1)}},
                            DType::f32, kDims));
    graph.output(sigmoid);
    graph.output(inner);
    program = graph.build();
  }
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
};

Session session_of(const std::shared_ptr<const Program>& program, int threads) {
  SessionOptions options;
  options.threads = threads;
  return Session(program, options);
}

std::vector<Value> run(Session& session, std::vector<float>& x) {
  const std::vector<Value> in{tensor(x, {static_cast<std::int64_t>(x.size()) / kWidth, kWidth})};
  return session.run("forward", in);
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// Programs outlive the operators that they are.
template <typename T, typename... Args>
T& forever(Args&&... args) {
  static auto& kept = *new std::vector<std::unique_ptr<T>>();  // never destroyed, and found by the leak checker
  return *kept.emplace_back(std::make_unique<T>(std::forward<Args>(args)...));
}

TEST(ProgramOp, ComputesWhatItsMethodDoes) {
  const Layer& layer = forever<Layer>();
  register_op("programop.layer.default", layer.program);
  const Outer outer("programop.layer.default");
  for (const int threads : {1, 2, 3}) {
    Session by_hand = session_of(layer.program, threads), session = session_of(outer.program, threads);
    for (const std::int64_t rows : {1, 7, 300, 7}) {
      std::vector<float> x = values_of(rows);
      const std::vector<Value> out = run(session, x);
      std::vector<float> sigmoid = test::floats(out[1]);
      EXPECT_EQ(test::floats(out[2]), test::floats(run(by_hand, sigmoid)[0])) << rows << " rows";
      const std::vector<float> sum = test::floats(out[0]), inner = test::floats(out[2]);
      for (std::size_t i = 0; i < sum.size(); i += 11) EXPECT_NEAR(sum[i], std::exp(inner[i]) + x[i], 1e-5f);
    }
  }
}

TEST(ProgramOp, ItsArenaIsPartOfTheOuterOne) {
  const Layer& layer = forever<Layer>();
  register_op("programop.arena.default", layer.program);
  const Outer outer("programop.arena.default");
  Session by_hand = session_of(layer.program, 2), session = session_of(outer.program, 2);
  std::vector<float> x = values_of(300);
  const std::vector<Value> in{tensor(x, {300, kWidth})};
  const std::int64_t inner = by_hand.plan("forward", in).arena_bytes;
  EXPECT_GE(inner, static_cast<std::int64_t>(x.size() * sizeof(float)));
  EXPECT_GE(session.plan("forward", in).arena_bytes, inner);
  std::vector<Value> out = session.run("forward", in);
  const std::uint64_t arenas = session.counters().arena_allocations;
  test::begin_counting_allocations();
  for (int i = 0; i < 5; ++i) session.run_into("forward", in, out);
  const long allocations = test::end_counting_allocations();
  EXPECT_EQ(allocations, 0) << "a run of known sizes allocates nothing";
  EXPECT_EQ(session.counters().arena_allocations, arenas);

  // With memory of the caller for the outer arena no run allocates one, the first neither.
  std::vector<float> more = values_of(3000);
  const std::vector<Value> large{tensor(more, {3000, kWidth})};
  const auto needed = static_cast<std::size_t>(session.plan("forward", large).arena_bytes);
  const AlignedMemory arena(needed);
  std::vector<Value> results = session.run("forward", large);
  Session another = session_of(outer.program, 3);  // whose runs take a session of the operator that has not run yet
  another.plan("forward", large);
  RunOptions options;
  options.arena = {arena.data(), needed};
  test::begin_counting_allocations();
  another.run_into("forward", large, results, options);
  test::end_counting_allocations();
  if (test::kCountsAllocations) {
    EXPECT_LT(test::largest_allocation(), static_cast<std::size_t>(by_hand.plan("forward", large).arena_bytes));
  }
}

TEST(ProgramOp, OneWithinAnother) {
  const Layer& innermost = forever<Layer>();
  register_op("programop.innermost.default", innermost.program);
  const Layer& middle = forever<Layer>("programop.innermost.default");
  register_op("programop.middle.default", middle.program);
  const Outer outer("programop.middle.default");
  for (const int threads : {1, 2, 4}) {
    Session first = session_of(innermost.program, 1), session = session_of(outer.program, threads);
    std::vector<float> x = values_of(130);
    const std::vector<Value> out = run(session, x);
    std::vector<float> value = test::floats(out[1]);
    for (int i = 0; i < 2; ++i) value = test::floats(run(first, value)[0]);
    EXPECT_EQ(test::floats(out[2]), value) << threads;
  }
}

TEST(ProgramOp, ManyAtOnce) {
  const Layer& layer = forever<Layer>();
  register_op("programop.many.default", layer.program);
  const Outer outer("programop.many.default");
  Session one = session_of(outer.program, 1);
  std::vector<float> x = values_of(90);
  const std::vector<float> expected = test::floats(run(one, x)[0]);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 6; ++t)
    callers.emplace_back([&, t] {
      Session session = session_of(outer.program, 1 + t % 3);
      std::vector<float> mine = values_of(90);
      for (int i = 0; i < 30; ++i) wrong += test::floats(run(session, mine)[0]) != expected;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// A parallel operator inside: it has a task for each thread of the outer run, though its program is run by a launch of
// one thread.
TEST(ProgramOp, RunsOnTheThreadsOfTheRunAround) {
  static std::atomic<int> tasks{0};
  OpDefinition op;
  op.target = "programop.tasks.default";
  op.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("x")}; };
  op.parallel = true;
  op.run = [](const OpRun& run) {
    tasks = run.tasks;
    const auto* x = static_cast<const float*>(run.inputs[0].data);
    const std::int64_t n = run.inputs[0].shape.numel();
    for (std::int64_t i = n * run.task / run.tasks; i < n * (run.task + 1) / run.tasks; ++i)
      static_cast<float*>(run.outputs[0].data)[i] = x[i] + 1;
  };
  register_op(op);
  const Layer& layer = forever<Layer>("programop.tasks.default");
  register_op("programop.around.default", layer.program);
  const Outer outer("programop.around.default");
  for (const int threads : {1, 2, 3}) {
    Session session = session_of(outer.program, threads);
    std::vector<float> x = values_of(2000);
    for (int i = 0; i < 20; ++i) run(session, x);
    if (threads == 1) {
      EXPECT_EQ(tasks, 1);
    } else {
      EXPECT_EQ(tasks % threads, 0) << tasks;
    }
  }
}

TEST(ProgramOp, AnErrorNamesBothNodes) {
  OpDefinition op;
  op.target = "programop.fails.default";
  op.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("x")}; };
  op.run = [](const OpRun&) { throw std::runtime_error("no luck"); };
  register_op(op);
  const Layer& layer = forever<Layer>("programop.fails.default");
  register_op("programop.failing.default", layer.program);
  const Outer outer("programop.failing.default");
  Session session = session_of(outer.program, 2);
  std::vector<float> x = values_of(3);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(message([&] { run(session, x); }), "n1: n3: no luck");  // the outer node, the inner one
}

TEST(ProgramOp, WhatCannotBeAnOperator) {
  const Layer& layer = forever<Layer>();
  EXPECT_THROW(register_op("programop.x.default", layer.program, "backward"), NotFound);
  EXPECT_THROW(register_op("programop.x.default", nullptr), InvalidArgument);
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(4)});
  const auto state = graph.state("total", DType::f32, {4});
  const auto sum = graph.node("aten.add.Tensor",
                              {{"self", Arg::of_value(state)}, {"other", Arg::of_value(x)}, {"alpha", test::of_int(1)}},
                              DType::f32, {fixed(4)});
  graph.mutate_state(0, sum);
  graph.output(sum);
  EXPECT_THAT(message([&] { register_op("programop.x.default", graph.build()); }), HasSubstr("mutable buffers"));
  // Nodes that are not like the method.
  register_op("programop.strict.default", layer.program);
  const auto load = [](DType dtype, const std::vector<ir::Dim>& dims, bool twice) {
    GraphBuilder g;
    const auto in = g.input("x", dtype, dims);
    GraphBuilder::Args args{{"x", Arg::of_value(in)}};
    if (twice) args.emplace_back("y", Arg::of_value(in));
    g.output(g.node("programop.strict.default", args, dtype, dims));
    g.build();
  };
  EXPECT_THAT(message([&] { load(DType::i64, kDims, false); }), HasSubstr("expected f32 of rank 2, found i64"));
  EXPECT_THAT(message([&] { load(DType::f32, {fixed(4)}, false); }), HasSubstr("found f32 of rank 1"));
  EXPECT_THAT(message([&] { load(DType::f32, kDims, true); }), HasSubstr("takes 1 tensors, not 2"));
  load(DType::f32, kDims, false);
  // Sizes that the method does not take.
  GraphBuilder wide;
  const std::vector<ir::Dim> other{fixed(2), fixed(kWidth + 1)};
  const auto in = wide.input("x", DType::f32, other);
  wide.output(wide.node("programop.strict.default", {{"x", Arg::of_value(in)}}, DType::f32, other));
  const auto program = wide.build();
  Session session(program);
  std::vector<float> values(2 * (kWidth + 1));
  const std::vector<Value> inputs{tensor(values, {2, kWidth + 1})};
  EXPECT_THAT(message([&] { session.run("forward", inputs); }), HasSubstr("65"));
}

TEST(ProgramOp, ACancelOrADeadlineAroundEndsTheRunInside) {
  static CancelToken* token = nullptr;
  static bool waits = false;
  static std::atomic<int> after{0};
  const auto op = [](const std::string& target, std::function<void()> act) {
    OpDefinition definition;
    definition.target = target;
    definition.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("x")}; };
    definition.run = [act](const OpRun&) { act(); };
    register_op(definition);
  };
  op("programop.stops.default", [] {
    if (token != nullptr) token->cancel();
    if (waits) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  });
  op("programop.later.default", [] { ++after; });
  GraphBuilder& graph = forever<GraphBuilder>();
  const auto x = graph.input("x", DType::f32, kDims);
  const auto stops = graph.node("programop.stops.default", {{"x", Arg::of_value(x)}}, DType::f32, kDims);
  graph.output(graph.node("programop.later.default", {{"x", Arg::of_value(stops)}}, DType::f32, kDims));
  register_op("programop.stopped.default", graph.build());
  const Outer outer("programop.stopped.default");
  for (const int threads : {1, 2}) {
    Session session = session_of(outer.program, threads);
    std::vector<float> x_values = values_of(3);
    const std::vector<Value> in{tensor(x_values, {3, kWidth})};
    CancelToken cancel;
    token = &cancel;
    RunOptions options;
    options.cancel = &cancel;
    EXPECT_THROW(session.run("forward", in, options), Cancelled);
    token = nullptr;
    waits = true;
    options.cancel = nullptr;
    options.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(15);
    EXPECT_THROW(session.run("forward", in, options), Cancelled);
    waits = false;
    EXPECT_EQ(after, 0) << "nothing inside runs after the cancel";
    session.run("forward", in);
    EXPECT_EQ(after.exchange(0), 1);
  }
}

TEST(ProgramOp, EndlessRecursionIsAnError) {
  static std::shared_ptr<const Program>* again = nullptr;
  OpDefinition op;
  op.target = "programop.endless.default";
  op.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("x")}; };
  op.run = [](const OpRun& call) {
    Session session = session_of(*again, 2);
    std::vector<float> x = values_of(1);
    run(session, x);
    static_cast<float*>(call.outputs[0].data)[0] = 0;
  };
  register_op(op);
  Layer layer("programop.endless.default");
  again = &layer.program;
  for (const int threads : {1, 2}) {
    Session session = session_of(layer.program, threads);
    std::vector<float> x = values_of(1);
    EXPECT_THAT(message([&] { run(session, x); }), HasSubstr("at most 32 levels"));
  }
}

}  // namespace
}  // namespace graft
