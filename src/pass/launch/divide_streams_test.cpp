// Streams of a device: what the plan queues, without a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <random>

#include "load/test_random_net.h"
#include "lowering/lowering.h"
#include "pass/launch/passes.h"
#include "plan/arena_check.h"
#include "plan/make_plan.h"
#include "plan/test_races.h"

namespace graft {
namespace {

using namespace graft::test;
using Kind = QueueStep::Kind;

// Has all of ggml's ops.
struct AnyOps : DeviceOps {
  std::size_t count = kMaxStreams;
  bool supports(const Launch&) const override { return true; }
  bool host_supports(const Launch&) const override { return true; }
  std::int64_t alignment() const override { return 64; }
  std::size_t streams() const override { return count; }
};

// As for a device: packed weights are for the CPU alone.
std::shared_ptr<const Program> build(GraphBuilder& graph) {
  LoadOptions options;
  options.pack_weights = false;
  return graph.build(options);
}

Plan plan_of(const Program& program, std::size_t streams = kMaxStreams,
             const Shape& x = {BranchedNet::kRows, BranchedNet::kColumns}) {
  AnyOps device;
  device.count = streams;
  std::vector<InputDesc> inputs(1);
  inputs[0].desc = TensorDesc(DType::f32, x);
  PlanOptions options;
  options.device = &device;
  const auto graph = Internal::of(program).graph(0);
  return make_plan(*graph, graph->methods[0], inputs, options);
}

bool conflict(const Plan& plan, std::uint32_t a, std::uint32_t b) {
  return race(touched_by(plan, a, a + 1), touched_by(plan, b, b + 1));
}

using Set = std::bitset<512>;
constexpr std::size_t kUploads = 511;

// By launch of the stage: what has ended before it begins, by the queue alone. The last one: before what follows on
// stream 0.
std::vector<Set> ended_before(const Plan& plan, const Stage& stage) {
  std::vector<Set> out(plan.launches.size() + 1);
  std::vector<Set> streams(kMaxStreams), events(stage.events);
  streams[0].set(kUploads);
  for (const QueueStep& step : stage.queue) {
    Set& done = streams[step.stream];
    if (step.kind == Kind::record) events[step.index] = done;
    if (step.kind == Kind::wait) done |= events[step.index];
    if (step.kind != Kind::graph) continue;
    for (const std::uint32_t i : stage.graphs[step.index]) {
      out[i] = done;
      done.set(i);
    }
  }
  out.back() = streams[0];
  return out;
}

// Launches that may run at the same time share no byte that one of them writes, with the addresses of the plan; none
// begins before the uploads have ended, all end before downloads begin, and each runs once. Returns the number of pairs
// that may run at the same time.
std::size_t expect_no_races(const Plan& plan) {
  std::size_t pairs = 0;
  for (const Stage& stage : plan.stages) {
    if (stage.side != Side::device) continue;
    const std::vector<Set> before = ended_before(plan, stage);
    std::vector<std::uint32_t> launches;
    for (const auto& graph : stage.graphs) launches.insert(launches.end(), graph.begin(), graph.end());
    std::ranges::sort(launches);
    EXPECT_EQ(launches.size(), stage.end - stage.begin);
    for (std::uint32_t n = 0; n < launches.size(); ++n) EXPECT_EQ(launches[n], stage.begin + n);
    for (const std::uint32_t a : launches) {
      EXPECT_TRUE(before[a].test(kUploads)) << "launch " << a;
      EXPECT_TRUE(before.back().test(a)) << "launch " << a;
      for (const std::uint32_t b : launches) {
        if (b <= a || before[b].test(a)) continue;
        ++pairs;
        EXPECT_FALSE(conflict(plan, a, b)) << "launches " << a << " and " << b << " race";
      }
    }
  }
  std::vector<Lifetime> lifetimes;
  std::vector<std::int64_t> offsets;
  for (const Buffer& b : plan.buffers)
    if (b.memory == MemoryKind::arena && b.first_use >= 0) {
      lifetimes.push_back({b.bytes, b.first_use, b.last_use});
      offsets.push_back(b.offset);
    }
  EXPECT_EQ(find_overlap(lifetimes, offsets, 64).value_or(""), "");
  return pairs;
}

std::size_t events_of(const Plan& plan) {
  std::size_t events = 0;
  for (const Stage& stage : plan.stages) events += stage.events;
  return events;
}

TEST(DivideStreams, TowersAreTwoStreams) {
  BranchedNet net;
  net.graph.output(net.two("add", net.tower(net.x, 4), net.tower(net.x, 4)));
  const auto program = build(net.graph);
  const Plan plan = plan_of(*program);
  ASSERT_EQ(plan.sections.size(), 1u);
  const Stage& stage = plan.stages.at(0);
  ASSERT_EQ(stage.side, Side::device);
  // After the uploads one tower in each stream, then the sum.
  EXPECT_EQ(stage.queue, (std::vector<QueueStep>{{Kind::record, 0, 0},
                                                 {Kind::wait, 1, 0},
                                                 {Kind::graph, 1, 0},
                                                 {Kind::record, 1, 1},
                                                 {Kind::graph, 0, 1},
                                                 {Kind::wait, 0, 1},
                                                 {Kind::graph, 0, 2}}));
  EXPECT_EQ(stage.graphs.size(), 3u);
  EXPECT_EQ(stage.streams, 2u);
  EXPECT_EQ(stage.events, 2u);
  EXPECT_GT(expect_no_races(plan), 0u);
}

TEST(DivideStreams, WithoutEventsEachStageIsOneGraph) {
  BranchedNet net;
  net.graph.output(net.two("add", net.tower(net.x, 4), net.tower(net.x, 4)));
  const auto program = build(net.graph);
  const Plan plan = plan_of(*program, 1);
  EXPECT_TRUE(plan.sections.empty());
  EXPECT_EQ(plan.stages.at(0).queue, (std::vector<QueueStep>{{Kind::graph, 0, 0}}));
  EXPECT_EQ(expect_no_races(plan), 0u);
  EXPECT_EQ(events_of(plan), 0u);
}

TEST(DivideStreams, AChainIsOneGraph) {
  BranchedNet net;
  net.graph.output(net.one("tanh", net.tower(net.x, 6)));
  const Plan plan = plan_of(*build(net.graph));
  EXPECT_TRUE(plan.sections.empty());
  EXPECT_EQ(plan.stages.at(0).queue, (std::vector<QueueStep>{{Kind::graph, 0, 0}}));
}

// Two branches of a launch or two save less than the events cost.
TEST(DivideStreams, ShortBranchesAreNotWorthTheEvents) {
  for (const int layers : {0, 1}) {
    BranchedNet net;
    const ir::ValueId a = net.product(net.x), b = net.product(net.x);
    net.graph.output(net.two("add", net.tower(a, layers), net.tower(b, 0)));
    EXPECT_TRUE(plan_of(*build(net.graph)).sections.empty()) << layers;
  }
}

// Launches that fill the device gain nothing from running beside each other.
TEST(DivideStreams, LargeLaunchesRunAlone) {
  for (const std::int64_t size : {16, 1024}) {
    GraphBuilder graph;
    const std::vector<ir::Dim> dims{fixed(size), fixed(size)};
    const ir::ValueId x = graph.input("x", DType::f32, dims);
    const ir::ValueId w = graph.weight("w", DType::f32, {size, size});
    std::vector<ir::ValueId> ends;
    for (int tower = 0; tower < 2; ++tower) {
      ir::ValueId value = x;
      for (int i = 0; i < 6; ++i)
        value = graph.node("aten.linear.default",
                           {{"input", ir::Arg::of_value(value)}, {"weight", ir::Arg::of_value(w)}, {"bias", of_none()}},
                           DType::f32, dims);
      ends.push_back(value);
    }
    graph.output(
        graph.node("aten.add.Tensor",
                   {{"self", ir::Arg::of_value(ends[0])}, {"other", ir::Arg::of_value(ends[1])}, {"alpha", of_int(1)}},
                   DType::f32, dims));
    const auto program = build(graph);
    const Plan plan = plan_of(*program, kMaxStreams, {size, size});
    for (const Launch& launch : plan.launches) EXPECT_TRUE(launch.on_device);
    EXPECT_EQ(plan.sections.empty(), size == 1024) << size;
  }
}

// Backends fuse neighbours of a graph and do not write what is between them, unless it is marked.
TEST(DivideStreams, ResultsOfOneGraphThatAnotherReadsAreKept) {
  BranchedNet net;
  const ir::ValueId a = net.tower(net.x, 4), b = net.tower(net.x, 4);
  net.graph.output(net.two("add", a, b));
  const Plan plan = plan_of(*build(net.graph));
  ASSERT_EQ(plan.sections.size(), 1u);
  std::size_t kept = 0;
  for (const Launch& launch : plan.launches) kept += launch.leaves_graph;
  EXPECT_EQ(kept, 5u) << "the end of each tower, the product whose memory it takes over, and the sum";
  for (const std::vector<std::uint32_t>& graph : plan.stages.at(0).graphs)
    EXPECT_TRUE(plan.launches[graph.back()].leaves_graph);
}

TEST(DivideStreams, RandomGraphs) {
  std::mt19937 random(11);
  std::size_t sections = 0, pairs = 0, inside = 0, merged = 0;
  for (int round = 0; round < 1000; ++round) {
    BranchedNet net;
    net.add_random_nodes(random);
    const auto program = build(net.graph);
    for (const std::size_t streams : {2u, 4u}) {
      SCOPED_TRACE(testing::Message() << "graph " << round << ", " << streams << " streams");
      const Plan plan = plan_of(*program, streams);
      pairs += expect_no_races(plan);
      sections += plan.sections.size();
      for (const StreamSection& section : plan.sections)
        for (const StreamPlace& place : section.places) {
          EXPECT_LT(place.stream, streams);
          inside += place.waits.size();
        }
      for (const Launch& launch : plan.launches) merged += launch.outputs[0].buffer != launch.written;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(sections, 500u);
  EXPECT_GT(pairs, 50000u);
  EXPECT_GT(inside, 1000u) << "launches that wait for one in another stream of their section";
  EXPECT_GT(merged, 1000u) << "results that take over the memory of an input";
}

}  // namespace
}  // namespace graft
