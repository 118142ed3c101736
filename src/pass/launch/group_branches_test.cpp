#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "exec/executor.h"
#include "graft/graft.h"
#include "load/test_graph.h"
#include "lowering/dependencies.h"
#include "lowering/lowering.h"
#include "lowering/uses.h"
#include "plan/arena_check.h"
#include "plan/make_plan.h"
#include "plan/test_races.h"

namespace graft {
namespace {

using ir::Arg;
using test::fixed;
using test::GraphBuilder;
using test::tensor;

constexpr std::int64_t kRows = 24, kColumns = 32;
const std::vector<ir::Dim> kDims{fixed(kRows), fixed(kColumns)};

// Nets over one input [24, 32].
struct Net {
  GraphBuilder graph;
  ir::ValueId x = graph.input("x", DType::f32, kDims);
  int weights = 0;

  ir::ValueId one(const std::string& op, ir::ValueId self) {
    return graph.node("aten." + op + ".default", {{"self", Arg::of_value(self)}}, DType::f32, kDims);
  }
  ir::ValueId softmax(ir::ValueId self) {
    return graph.node("aten._softmax.default",
                      {{"self", Arg::of_value(self)},
                       {"dim", test::of_int(1)},
                       {"half_to_float", Arg{Arg::Kind::boolean, 0, 0, {}, {}}}},
                      DType::f32, kDims);
  }
  ir::ValueId add(ir::ValueId a, ir::ValueId b) {
    return graph.node("aten.add.Tensor",
                      {{"self", Arg::of_value(a)}, {"other", Arg::of_value(b)}, {"alpha", test::of_int(1)}}, DType::f32,
                      kDims);
  }
  // Times a weight of its own.
  ir::ValueId product(ir::ValueId self) {
    std::vector<float> values(kColumns * kColumns);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((i * 7919 + static_cast<std::size_t>(weights) * 31) % 64) / 256 - 0.125f;
    const ir::ValueId w = graph.weight("w" + std::to_string(weights++), values, {kColumns, kColumns});
    return graph.node("aten.mm.default", {{"self", Arg::of_value(self)}, {"mat2", Arg::of_value(w)}}, DType::f32,
                      kDims);
  }
  ir::ValueId tower(ir::ValueId value, int layers) {
    for (int i = 0; i < layers; ++i) value = softmax(product(value));
    return value;
  }
};

std::vector<float> input_values() {
  std::vector<float> values(kRows * kColumns);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 37) / 37 - 0.5f;
  return values;
}

Plan plan_of(const Program& program, int threads, const Shape& x = {kRows, kColumns}) {
  std::vector<InputDesc> inputs(1);
  inputs[0].desc = TensorDesc(DType::f32, x);
  PlanOptions options;
  options.max_threads = threads;
  const auto graph = Internal::of(program).graph(0);
  return make_plan(*graph, graph->methods[0], inputs, options);
}

// Branches of a group share no byte that one of them writes, with the addresses of the plan; branches cover the group,
// and memory of a group is not used again within it.
void expect_no_races(const Plan& plan) {
  const auto touched_by = [&](const Branch& branch) { return test::touched_by(plan, branch.begin, branch.end); };
  std::uint32_t last = 0;
  for (const LaunchGroup& group : plan.groups) {
    EXPECT_GE(group.branches.size(), 2u);
    EXPECT_LE(group.end(), plan.commit_begin);
    for (const Branch& branch : group.branches) {
      EXPECT_GE(branch.begin, last);
      EXPECT_LT(branch.begin, branch.end);
      last = branch.end;
      EXPECT_TRUE(branch.tasks == 1 || branch.end == branch.begin + 1);
    }
    for (std::size_t a = 0; a < group.branches.size(); ++a)
      for (std::size_t b = a + 1; b < group.branches.size(); ++b)
        ASSERT_FALSE(test::race(touched_by(group.branches[a]), touched_by(group.branches[b])))
            << "launches from " << group.branches[a].begin << " and from " << group.branches[b].begin << " race";
  }
  std::vector<Lifetime> lifetimes;
  std::vector<std::int64_t> offsets;
  for (const Buffer& b : plan.buffers)
    if (b.memory == MemoryKind::arena && b.first_use >= 0) {
      lifetimes.push_back({b.bytes, b.first_use, b.last_use});
      offsets.push_back(b.offset);
    }
  EXPECT_EQ(find_overlap(lifetimes, offsets, 64).value_or(""), "");
}

std::vector<std::vector<float>> results(const std::shared_ptr<const Program>& program, int threads) {
  SessionOptions options;
  options.threads = threads;
  Session session(program, options);
  std::vector<float> x = input_values();
  const std::vector<Value> in{tensor(x, {kRows, kColumns})};
  std::vector<std::vector<float>> out;
  for (int run = 0; run < 3; ++run)
    for (const Value& value : session.run("forward", in)) out.push_back(test::floats(value));
  return out;
}

std::size_t branches_of(const Plan& plan) {
  std::size_t branches = 0;
  for (const LaunchGroup& group : plan.groups) branches += group.branches.size();
  return branches;
}

TEST(GroupBranches, TowersRunSideBySide) {
  Net net;
  const ir::ValueId a = net.tower(net.x, 4), b = net.tower(net.x, 4);
  net.graph.output(net.one("tanh", net.add(a, b)));
  const auto program = net.graph.build();
  EXPECT_TRUE(plan_of(*program, 1).groups.empty());
  const Plan plan = plan_of(*program, 2);
  ASSERT_EQ(plan.groups.size(), 1u);
  ASSERT_EQ(plan.groups[0].branches.size(), 2u);
  for (const Branch& branch : plan.groups[0].branches)
    EXPECT_EQ(branch.end - branch.begin, 8u) << "a tower is one branch";
  expect_no_races(plan);
  EXPECT_EQ(results(program, 2), results(program, 1));
}

TEST(GroupBranches, AChainHasNothingBesideIt) {
  Net net;
  net.graph.output(net.one("tanh", net.tower(net.x, 6)));
  EXPECT_TRUE(plan_of(*net.graph.build(), 8).groups.empty());
}

// The launch that writes over its input in one launch after the other must not while its neighbours read that.
TEST(GroupBranches, WhatOthersReadIsNotOverwritten) {
  Net net;
  const ir::ValueId shared = net.product(net.x);
  std::vector<ir::ValueId> ends;
  for (int i = 0; i < 4; ++i) ends.push_back(net.product(net.softmax(shared)));
  ir::ValueId sum = net.softmax(shared);
  for (const ir::ValueId end : ends) sum = net.add(sum, end);
  net.graph.output(net.softmax(sum));
  const auto program = net.graph.build();
  for (const int threads : {2, 3, 8}) {
    const Plan plan = plan_of(*program, threads);
    EXPECT_GE(branches_of(plan), 4u);
    expect_no_races(plan);
    EXPECT_EQ(results(program, threads), results(program, 1));
  }
}

// Launches that write parts of one tensor run side by side; one that reads across them waits for both.
TEST(GroupBranches, WindowsOfOneBuffer) {
  LaunchSequence sequence;
  sequence.buffers.resize(3);
  const auto window = [](BufferId buffer, std::int64_t begin, std::int64_t floats) {
    return Tensor{buffer, begin * 4, TensorDesc(DType::f32, {floats}), {}};
  };
  const auto add = [&](const Tensor& in, const Tensor& out) {
    Launch& launch = sequence.launches.emplace_back();
    launch.inputs = {in};
    launch.outputs = {out};
  };
  add(window(0, 0, 8), window(1, 0, 8));
  add(window(0, 0, 8), window(1, 8, 8));
  add(window(1, 4, 8), window(2, 0, 8));   // reads from both
  add(window(0, 0, 4), window(1, 12, 4));  // overwrites after the second, not after the reader
  add(window(0, 0, 4), window(1, 4, 4));   // overwrites what the third reads
  const Dependencies dependencies(sequence, 5);
  EXPECT_EQ(dependencies.waits, (std::vector<std::uint32_t>{0, 0, 2, 1, 2}));
  EXPECT_EQ(dependencies.after[0], (std::vector<std::uint32_t>{2, 4}));
  EXPECT_EQ(dependencies.after[1], (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(dependencies.after[2], (std::vector<std::uint32_t>{4}));
}

// Columns of a matrix: windows with gaps that lie in each other.
TEST(GroupBranches, InterleavedWindows) {
  LaunchSequence sequence;
  sequence.buffers.resize(2);
  const auto columns = [](std::int64_t begin, std::int64_t count) {
    Tensor t{1, begin * 4, TensorDesc(DType::f32, {8, count}), {}};
    t.desc.strides[0] = 16;
    return t;
  };
  for (const Tensor& out : {columns(0, 6), columns(6, 10), columns(5, 2), columns(12, 6)}) {
    Launch& launch = sequence.launches.emplace_back();
    launch.inputs = {Tensor{0, 0, TensorDesc(DType::f32, {8}), {}}};
    launch.outputs = {out};
  }
  // The third touches columns of both before it. The fourth goes beyond the end of a row: it may touch all of them.
  EXPECT_EQ(Dependencies(sequence, 4).waits, (std::vector<std::uint32_t>{0, 0, 2, 3}));
}

TEST(GroupBranches, RandomGraphs) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::size_t groups = 0, branches = 0, long_branches = 0;
  for (int round = 0; round < 1000; ++round) {
    Net net;
    std::vector<ir::ValueId> values{net.x};
    const std::size_t nodes = 4 + below(40), reach = 2 + below(12);
    const auto pick = [&] { return values[values.size() - 1 - below(std::min(values.size(), reach))]; };
    for (std::size_t i = 0; i < nodes; ++i) {
      switch (below(5)) {
        case 0:
          values.push_back(net.one("tanh", pick()));
          break;
        case 1:
          values.push_back(net.add(pick(), pick()));
          break;
        case 2:
          values.push_back(net.softmax(pick()));
          break;
        default:
          values.push_back(net.product(pick()));
      }
    }
    for (int i = 0; i < 3; ++i) net.graph.output(net.softmax(pick()));
    const auto program = net.graph.build();
    const auto expected = results(program, 1);
    for (const int threads : {2, 3, 8}) {
      const Plan plan = plan_of(*program, threads);
      expect_no_races(plan);
      ASSERT_EQ(results(program, threads), expected) << "graph " << round << ", " << threads << " threads";
      groups += plan.groups.size();
      branches += branches_of(plan);
      for (const LaunchGroup& group : plan.groups)
        for (const Branch& branch : group.branches) long_branches += branch.end - branch.begin > 1;
    }
  }
  EXPECT_GT(groups, 1300u);
  EXPECT_GT(branches, 3000u);
  EXPECT_GT(long_branches, 500u);
}

// Products with work for several threads but too little for eight: each gets tasks of its own.
TEST(GroupBranches, ABranchMayHaveSeveralTasks) {
  GraphBuilder graph;
  const std::vector<ir::Dim> dims{fixed(64), fixed(64)};
  const ir::ValueId x = graph.input("x", DType::f32, dims);
  ir::ValueId sum = x;
  for (const char* name : {"a", "b", "c"}) {
    std::vector<float> values(64 * 64);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 61) / 61 - 0.5f;
    const ir::ValueId w = graph.weight(name, values, {64, 64});
    const ir::ValueId product =
        graph.node("aten.mm.default", {{"self", Arg::of_value(x)}, {"mat2", Arg::of_value(w)}}, DType::f32, dims);
    sum = graph.node("aten.maximum.default", {{"self", Arg::of_value(sum)}, {"other", Arg::of_value(product)}},
                     DType::f32, dims);
  }
  graph.output(sum);
  const auto program = graph.build();
  const Plan plan = plan_of(*program, 8, {64, 64});
  ASSERT_EQ(plan.groups.size(), 1u);
  ASSERT_EQ(plan.groups[0].branches.size(), 3u);
  for (const Branch& branch : plan.groups[0].branches) EXPECT_GT(branch.tasks, 1);
  expect_no_races(plan);
  std::vector<float> values(64 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 53) / 53 - 0.5f;
  const auto run = [&](int threads) {
    SessionOptions options;
    options.threads = threads;
    Session session(program, options);
    const std::vector<Value> in{tensor(values, {64, 64})};
    return test::floats(session.run("forward", in)[0]);
  };
  for (const int threads : {2, 4, 8}) EXPECT_EQ(run(threads), run(1)) << threads;
}

const Kernel* original = nullptr;
std::atomic<int> seen{0};
std::atomic<bool> cancelled{false};
const Kernel kCountThenCancel{.name = "count_then_cancel", .run = [](const KernelContext& ctx) {
                                original->run(ctx);
                                if (++seen == 3) cancelled = true;
                              }};

// Memory for all of a plan but the input.
struct Instance {
  explicit Instance(Plan plan, int threads, std::vector<float>& x) {
    executor = make_executor(std::make_shared<const Plan>(std::move(plan)), threads, control);
    std::vector<std::byte*> bases;
    for (const Allocation& a : executor->plan().allocations) {
      if (a.memory == MemoryKind::input) {
        bases.push_back(reinterpret_cast<std::byte*>(x.data()));
      } else {
        memory.emplace_back(static_cast<std::size_t>(a.bytes));
        bases.push_back(memory.back().data());
      }
    }
    executor->bind(bases);
  }
  RunControl control;
  std::unique_ptr<Executor> executor;
  std::vector<AlignedMemory> memory;
};

TEST(GroupBranches, ACancelEndsBranchesBetweenTheirLaunches) {
  Net net;
  const ir::ValueId a = net.tower(net.x, 8), b = net.tower(net.x, 8);
  net.graph.output(net.add(a, b));
  const auto program = net.graph.build();
  Plan plan = plan_of(*program, 2);
  ASSERT_EQ(plan.groups.size(), 1u);
  int wrapped = 0;
  for (Launch& launch : plan.launches)
    if (launch.kernel->name == "softmax") {
      original = launch.kernel;
      launch.kernel = &kCountThenCancel;
      ++wrapped;
    }
  ASSERT_EQ(wrapped, 16);
  std::vector<float> x = input_values();
  Instance instance(std::move(plan), 2, x);
  instance.control.cancel = &cancelled;
  seen = 0;
  cancelled = false;
  EXPECT_FALSE(instance.executor->run());
  EXPECT_LE(seen, 5) << "the launch that a branch is in ends, no more";
  EXPECT_EQ(instance.executor->launches_finished(), 0u);
  instance.control.cancel = nullptr;
  EXPECT_TRUE(instance.executor->run());
}

const Kernel kThrow{.name = "throw", .run = [](const KernelContext&) { throw std::runtime_error("out of luck"); }};

TEST(GroupBranches, AnErrorInABranchEndsTheRun) {
  Net net;
  net.graph.output(net.add(net.tower(net.x, 4), net.tower(net.x, 4)));
  const auto program = net.graph.build();
  Plan plan = plan_of(*program, 2);
  ASSERT_EQ(plan.groups.size(), 1u);
  Launch& launch = plan.launches[plan.groups[0].branches[1].begin + 2];
  launch.kernel = &kThrow;
  const std::string node = plan.node_names[launch.node];
  std::vector<float> x = input_values();
  Instance instance(std::move(plan), 2, x);
  EXPECT_FALSE(instance.executor->run());
  EXPECT_EQ(instance.control.error.message(), node + ": out of luck");
}

// Times and values of single launches: a launch after the other, in an order that respects what they wait for.
TEST(GroupBranches, AProfileSeesSingleLaunches) {
  Net net;
  net.graph.output(net.add(net.tower(net.x, 4), net.tower(net.x, 4)));
  const auto program = net.graph.build();
  std::vector<float> x = input_values();
  const std::size_t launches = plan_of(*program, 2).launches.size();
  Instance instance(plan_of(*program, 2), 2, x);
  std::vector<Clock::time_point> stamps{Clock::now()};
  ASSERT_TRUE(instance.executor->run(&stamps));
  EXPECT_EQ(stamps.size(), launches + 1);
  EXPECT_TRUE(std::ranges::is_sorted(stamps));
  const std::vector<std::byte> last(instance.memory.back().data(), instance.memory.back().data() + 64);
  ASSERT_TRUE(instance.executor->run());
  EXPECT_TRUE(std::ranges::equal(last, std::span(instance.memory.back().data(), 64)));
}

}  // namespace
}  // namespace graft
