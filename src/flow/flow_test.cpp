#include "graft/flow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "base/test_errors.h"
#include "exec/test_allocations.h"
#include "flow/test_flow.h"

namespace graft {
namespace {

using test::expect_error;
using test::give;
using test::mixed;
using test::MixProgram;
using test::Numbers;
using test::numbers;
using test::owned;
using test::SumProgram;
using ::testing::HasSubstr;

FlowStage stage_of(std::string name, std::vector<std::shared_ptr<Session>> sessions) {
  FlowStage stage;
  stage.name = std::move(name);
  stage.sessions = std::move(sessions);
  return stage;
}

FlowStage stage_of(std::string name, std::vector<FlowPort> inputs, std::vector<FlowPort> outputs,
                   std::function<void(FlowCall&)> function) {
  FlowStage stage;
  stage.name = std::move(name);
  stage.inputs = std::move(inputs);
  stage.outputs = std::move(outputs);
  stage.function = std::move(function);
  return stage;
}

// One function from "x" to "y".
FlowGraph one(std::function<void(FlowCall&)> function, int workers = 1) {
  FlowGraph graph;
  graph.inputs = {"x"};
  graph.stages = {stage_of("f", {{"x"}}, {{"y"}}, std::move(function))};
  graph.stages[0].workers = workers;
  graph.connections = {{"f.x", "x"}};
  graph.outputs = {"f.y"};
  return graph;
}

void pass_on(FlowCall& call) { call.set(0, call.input(0)); }

// Emits x[0] items: {x[0], i} for each i.
FlowStage counting_fan_out() {
  FlowStage stage = stage_of("split", {{"x"}}, {{"item"}}, [](FlowCall& call) {
    const std::int64_t count = numbers(call.input(0))[0];
    for (std::int64_t i = 0; i < count; ++i) {
      give(call, 0, {count, i});
      call.emit();
    }
  });
  stage.fan_out = true;
  return stage;
}

// A function that stops in its first call until it is released.
struct Gate {
  std::latch started{1}, release{1};
  std::atomic<bool> first{true};
  void pass() {
    if (!first.exchange(false)) return;
    started.count_down();
    release.wait();
  }
};

TEST(Flow, ConnectsMethodsByData) {
  const MixProgram mix;
  FlowGraph graph;
  graph.inputs = {"x", "z"};
  graph.stages = {stage_of("first", mix.sessions()), stage_of("second", mix.sessions())};
  graph.connections = {{"first.a", "x"}, {"first.b", "z"}, {"second.0", "first.0"}, {"second.b", "x"}};
  graph.outputs = {"second.0", "first.0", "z"};
  Flow flow(graph);
  std::vector<std::future<FlowOutputs>> runs;
  for (std::int64_t i = 0; i < 30; ++i) runs.push_back(flow.submit({owned({i, 2 * i}), owned({7, -i})}));
  for (std::int64_t i = 0; i < 30; ++i) {
    const FlowOutputs out = runs[static_cast<std::size_t>(i)].get();
    const Numbers first{mixed(i, 7), mixed(2 * i, -i)};
    EXPECT_EQ(numbers(out.at(1).at(0)), first);
    EXPECT_EQ(numbers(out.at(0).at(0)), (Numbers{mixed(first[0], i), mixed(first[1], 2 * i)}));
    EXPECT_EQ(numbers(out.at(2).at(0)), (Numbers{7, -i}));
  }
  const FlowCounters counts = flow.counters();
  EXPECT_EQ(counts.submitted, 30u);
  EXPECT_EQ(counts.finished, 30u);
  EXPECT_EQ(counts.failed, 0u);
  EXPECT_LE(counts.most_running, FlowOptions{}.runs);
  ASSERT_EQ(counts.stages.size(), 2u);
  EXPECT_EQ(counts.stages[1].name, "second");
  EXPECT_EQ(counts.stages[1].calls, 30u);
}

TEST(Flow, PassesMemoryOnAndUsesItAgain) {
  const MixProgram mix;
  std::vector<const void*> given, got;
  FlowGraph graph;
  graph.inputs = {"x"};
  graph.stages = {stage_of("make", {{"x"}}, {{"y"}},
                           [&](FlowCall& call) {
                             give(call, 0, numbers(call.input(0)));
                             call.make(0, DType::i64, {64});  // the last one counts
                             give(call, 0, numbers(call.input(0)));
                           }),
                  stage_of("mix", mix.sessions()),
                  stage_of("look", {{"y"}, {"mixed"}}, {{"y"}, {"mixed"}}, [&](FlowCall& call) {
                    for (std::size_t i : {0, 1}) {
                      got.push_back(call.input(i).tensor.data);
                      call.set(i, call.input(i));
                    }
                  })};
  graph.connections = {
      {"make.x", "x"}, {"mix.a", "make.y"}, {"mix.b", "make.y"}, {"look.y", "make.y"}, {"look.mixed", "mix.0"}};
  graph.outputs = {"make.y", "mix.0", "look.y", "look.mixed", "x"};
  FlowOptions options;
  options.runs = 1;  // so that how many buffers are in use does not depend on time
  Flow flow(graph, options);
  std::vector<Value> in{owned({5, 6})};
  for (int i = 0; i < 3; ++i) {
    const FlowOutputs out = flow.submit(in).get();
    EXPECT_EQ(out[0][0].tensor.data, out[2][0].tensor.data);
    EXPECT_EQ(out[1][0].tensor.data, out[3][0].tensor.data);
    EXPECT_EQ(out[4][0].tensor.data, in[0].tensor.data);
    EXPECT_EQ(got[got.size() - 2], out[0][0].tensor.data);
    EXPECT_EQ(got.back(), out[1][0].tensor.data);
    EXPECT_EQ(numbers(out[1][0]), (Numbers{20, 24}));
  }
  const std::uint64_t buffers = flow.counters().buffers;
  std::vector<std::future<FlowOutputs>> runs;
  got.reserve(1000);
  constexpr int kRuns = 100;
  if (test::kCountsAllocations) test::begin_counting_allocations();
  for (int i = 0; i < kRuns; ++i) flow.submit(in).get();
  if (test::kCountsAllocations) {
    // The future and the lists of results, and the list of results in Session::run_into; no tensor.
    EXPECT_LE(test::end_counting_allocations(), 14 * kRuns);
    EXPECT_LE(test::largest_allocation(), 2048u);
  }
  EXPECT_EQ(flow.counters().buffers, buffers);
  EXPECT_EQ(flow.counters().copies, 0u);
}

TEST(Flow, SeveralRunsUseAsManyBuffersAsAreInFlight) {
  const MixProgram mix;
  FlowGraph graph;
  graph.inputs = {"x"};
  graph.stages = {stage_of("a", mix.sessions(2)), stage_of("b", mix.sessions())};
  graph.connections = {{"a.a", "x"}, {"a.b", "x"}, {"b.a", "a.0"}, {"b.b", "x"}};
  graph.outputs = {"b.0", "a.0"};
  FlowOptions options;
  options.runs = 4;
  Flow flow(graph, options);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::future<FlowOutputs>> runs;
    for (std::int64_t i = 0; i < 4; ++i) runs.push_back(flow.submit({owned(Numbers(64, i))}));
    std::vector<FlowOutputs> outputs;  // all kept: the round needs one buffer of each output for each run
    for (auto& run : runs) outputs.push_back(run.get());
    for (std::int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(numbers(outputs[static_cast<std::size_t>(i)][0][0]), Numbers(64, mixed(mixed(i, i), i)));
    EXPECT_EQ(flow.counters().buffers, 8u);
  }
  EXPECT_EQ(flow.counters().buffer_bytes, 8 * 64 * sizeof(std::int64_t));
}

TEST(Flow, ValuesAreFreedOnceTheirLastReaderIsDone) {
  std::latch read(1), release(1);
  FlowGraph graph;
  graph.inputs = {"x"};
  graph.stages = {
      stage_of("first", {{"x"}}, {{"y"}}, [](FlowCall& call) { give(call, 0, {numbers(call.input(0))[0] + 1}); }),
      stage_of("second", {{"y"}}, {{"z"}},
               [&](FlowCall& call) {
                 read.wait();
                 give(call, 0, {numbers(call.input(0))[0] + 1});
               }),
      stage_of("third", {{"z"}}, {{"w"}}, [&](FlowCall& call) {
        release.wait();
        pass_on(call);
      })};
  graph.connections = {{"first.x", "x"}, {"second.y", "first.y"}, {"third.z", "second.z"}};
  graph.outputs = {"third.w"};
  Flow flow(graph);
  Value x = owned({5});
  const std::weak_ptr<void> input = x.owner;
  auto run = flow.submit({std::exchange(x, {})});
  const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!input.expired() && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  EXPECT_TRUE(input.expired());  // the run is in the second stage
  read.count_down();
  release.count_down();
  EXPECT_EQ(numbers(run.get()[0][0]), Numbers{7});
}

TEST(Flow, ItemsOfARunAreProcessedOnceEachAndGatheredInTheirOrder) {
  const MixProgram mix;
  FlowGraph graph;
  graph.inputs = {"x"};
  FlowStage gather = stage_of("gather", {{"items"}, {"x"}}, {{"all"}}, [](FlowCall& call) {
    Numbers all{numbers(call.input(1))[0]};
    for (const Value& item : call.items(0)) all.push_back(numbers(item)[1]);
    expect_error<InvalidArgument>([&] { call.input(0); }, "input 'items' is a list of items");
    give(call, 0, all);
  });
  gather.fan_in = true;
  FlowStage pair = stage_of("pair", {{"x"}}, {{"x2"}}, [](FlowCall& call) {
    const std::int64_t x = numbers(call.input(0))[0];
    std::this_thread::sleep_for(std::chrono::microseconds(50 * (x % 3)));
    give(call, 0, {x, x});
  });
  graph.stages = {counting_fan_out(), pair, stage_of("mix", mix.sessions(2)), gather};
  graph.connections = {{"split.x", "x"},     {"pair.x", "x"},           {"mix.a", "split.item"},
                       {"mix.b", "pair.x2"}, {"gather.items", "mix.0"}, {"gather.x", "x"}};
  graph.outputs = {"mix.0", "gather.all", "split.item"};
  FlowOptions options;
  options.items = 3;
  Flow flow(graph, options);
  EXPECT_TRUE(flow.is_list(0));
  EXPECT_FALSE(flow.is_list(1));
  std::vector<std::future<FlowOutputs>> runs;
  for (std::int64_t k = 0; k < 40; ++k) runs.push_back(flow.submit({owned({k % 11})}));
  for (std::int64_t k = 0; k < 40; ++k) {
    const std::int64_t count = k % 11;
    const FlowOutputs out = runs[static_cast<std::size_t>(k)].get();
    ASSERT_EQ(out[0].size(), static_cast<std::size_t>(count));
    Numbers all{count};
    for (std::int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(numbers(out[2][static_cast<std::size_t>(i)]), (Numbers{count, i}));
      EXPECT_EQ(numbers(out[0][static_cast<std::size_t>(i)]), (Numbers{mixed(count, count), mixed(i, count)}));
      all.push_back(mixed(i, count));
    }
    EXPECT_EQ(numbers(out[1][0]), all);
  }
}

TEST(Flow, AFanOutWaitsWhileItsItemsWait) {
  FlowGraph graph;
  graph.inputs = {"x"};
  std::atomic<std::int64_t> emitted = 0, seen = 0;
  FlowStage split = stage_of("split", {{"x"}}, {{"item"}}, [&](FlowCall& call) {
    for (std::int64_t i = 0; i < 50; ++i) {
      give(call, 0, {i});
      call.emit();
      ++emitted;
    }
  });
  split.fan_out = true;
  Gate gate;
  graph.stages = {split, stage_of("slow", {{"x"}}, {{"y"}}, [&](FlowCall& call) {
                    gate.pass();
                    ++seen;
                    pass_on(call);
                  })};
  graph.connections = {{"split.x", "x"}, {"slow.x", "split.item"}};
  graph.outputs = {"slow.y"};
  FlowOptions options;
  options.items = 4;
  Flow flow(graph, options);
  auto run = flow.submit({owned({0})});
  auto other = flow.submit({owned({0})});
  gate.started.wait();
  while (emitted < 5) std::this_thread::yield();  // one in the call that waits, four ready
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(emitted, 5);
  EXPECT_EQ(flow.counters().stages[1].waiting, 4u);
  gate.release.count_down();
  EXPECT_EQ(run.get()[0].size(), 50u);
  EXPECT_EQ(other.get()[0].size(), 50u);
  EXPECT_EQ(seen, 100);
  EXPECT_LE(flow.counters().stages[1].most_waiting, 4u);
}

TEST(Flow, CallersWaitWhileItIsFull) {
  Gate gate;
  FlowOptions options;
  options.runs = 2;
  Flow flow(one([&](FlowCall& call) {
              gate.pass();
              pass_on(call);
            }),
            options);
  std::vector<std::future<FlowOutputs>> runs;
  for (std::int64_t i : {0, 1}) runs.push_back(*flow.try_submit({owned({i})}));
  gate.started.wait();
  EXPECT_FALSE(flow.try_submit({owned({2})}).has_value());
  EXPECT_FALSE(flow.try_submit({owned({2})}, {}, std::chrono::milliseconds(5)).has_value());
  EXPECT_FALSE(flow.drain_for(std::chrono::milliseconds(5)));
  RunOptions late, cancelled;
  late.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
  expect_error<Cancelled>([&] { flow.submit({owned({2})}, late); }, "the deadline passed before the run began");
  CancelToken token;
  cancelled.cancel = &token;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    token.cancel();
  });
  expect_error<Cancelled>([&] { flow.submit({owned({2})}, cancelled); }, "the run was cancelled before the run began");
  canceller.join();
  std::atomic<bool> accepted = false;
  std::jthread caller([&] {
    runs.push_back(flow.submit({owned({2})}));
    accepted = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(accepted);
  gate.release.count_down();
  caller.join();
  EXPECT_TRUE(flow.drain_for(std::chrono::seconds(60)));
  for (std::int64_t i : {0, 1, 2}) EXPECT_EQ(numbers(runs[static_cast<std::size_t>(i)].get()[0][0]), Numbers{i});
  EXPECT_EQ(flow.counters().submitted, 3u);
  EXPECT_EQ(flow.counters().most_running, 2u);
}

TEST(Flow, AnErrorNamesTheStageAndTakesNoOtherRunWithIt) {
  const MixProgram mix;
  FlowGraph graph;
  graph.inputs = {"x"};
  struct Odd : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  graph.stages = {stage_of("check", {{"x"}}, {{"y"}},
                           [](FlowCall& call) {
                             const std::int64_t x = numbers(call.input(0))[0];
                             if (x == 1) throw Odd("it is one");
                             if (x == 2) throw NotFound("there is no two");
                             if (x == 3) throw 3;  // NOLINT
                             if (x == 4) return;
                             give(call, 0, x == 5 ? Numbers(65, 5) : Numbers{x});
                           }),
                  stage_of("mix", mix.sessions())};
  graph.connections = {{"check.x", "x"}, {"mix.a", "check.y"}, {"mix.b", "check.y"}};
  graph.outputs = {"mix.0"};
  Flow flow(graph);
  std::vector<std::future<FlowOutputs>> runs;
  for (std::int64_t i = 0; i < 8; ++i) runs.push_back(flow.submit({owned({i})}));
  flow.drain();
  for (const std::size_t i : {0, 6, 7})
    EXPECT_EQ(numbers(runs[i].get()[0][0]), Numbers{mixed(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i))});
  try {
    runs[1].get();
    ADD_FAILURE();
  } catch (const ExecutionError& error) {
    EXPECT_STREQ(error.what(), "stage 'check': it is one");
    EXPECT_THROW(std::rethrow_if_nested(error), Odd);
  }
  expect_error<NotFound>([&] { runs[2].get(); }, "stage 'check': there is no two");
  expect_error<ExecutionError>([&] { runs[3].get(); }, "stage 'check': ");
  expect_error<InvalidArgument>([&] { runs[4].get(); }, "stage 'check': output 'y' was not set");
  expect_error<InvalidArgument>([&] { runs[5].get(); }, "stage 'mix': ");
  EXPECT_EQ(flow.counters().failed, 5u);
  EXPECT_EQ(flow.counters().finished, 8u);
}

TEST(Flow, ARunEndsByItsDeadlineOrCancel) {
  Gate gate;
  std::atomic<int> calls = 0;
  FlowGraph graph = one([&](FlowCall& call) {
    ++calls;
    gate.pass();
    pass_on(call);
  });
  Flow flow(graph);
  auto blocked = flow.submit({owned({0})});
  gate.started.wait();
  CancelToken token, running;
  RunOptions late, cancelled;
  late.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
  cancelled.cancel = &token;
  auto first = flow.submit({owned({1})}, late);
  auto second = flow.submit({owned({2})}, cancelled);
  auto third = flow.submit({owned({3})});
  first.wait();
  token.cancel();
  second.wait();
  EXPECT_EQ(flow.counters().running, 2u);
  gate.release.count_down();
  // The thread sanitizer does not see the reference counts in libstdc++'s exceptions: after this, one thread owns them.
  flow.drain();
  expect_error<Cancelled>([&] { first.get(); }, "the deadline passed in stage 'f'");
  expect_error<Cancelled>([&] { second.get(); }, "the run was cancelled in stage 'f'");
  EXPECT_EQ(numbers(third.get()[0][0]), Numbers{3});
  EXPECT_EQ(numbers(blocked.get()[0][0]), Numbers{0});
  EXPECT_EQ(calls, 2);
}

TEST(Flow, AFunctionSeesThatItsRunWasStopped) {
  std::atomic<int> begun = 0;
  FlowGraph graph = one(
      [&](FlowCall& call) {
        ++begun;
        begun.notify_all();
        while (!call.stopped()) std::this_thread::yield();
      },
      2);
  Flow flow(graph);
  CancelToken token;
  RunOptions cancelled;
  cancelled.cancel = &token;
  auto first = flow.submit({owned({0})}, cancelled);
  begun.wait(0);
  // Again with more time until its function began, which a busy machine may delay.
  for (std::chrono::milliseconds time{5}; begun < 2; time *= 2) {
    RunOptions late;
    late.deadline = std::chrono::steady_clock::now() + time;
    auto second = flow.submit({owned({1})}, late);
    expect_error<Cancelled>([&] { second.get(); }, "the deadline passed");
  }
  token.cancel();
  flow.drain();
  expect_error<Cancelled>([&] { first.get(); }, "the run was cancelled");
}

TEST(Flow, AFanOutThatWasToldToStopHasNoResult) {
  FlowGraph graph;
  graph.inputs = {"x"};
  CancelToken token;
  FlowStage split = stage_of("split", {{"x"}}, {{"item"}}, [&](FlowCall& call) {
    token.cancel();
    EXPECT_TRUE(call.stopped());
    token.reset();  // whether or not the flow has seen it: the items are not all there
  });
  split.fan_out = true;
  graph.stages = {split};
  graph.connections = {{"split.x", "x"}};
  graph.outputs = {"split.item"};
  Flow flow(graph);
  RunOptions options;
  options.cancel = &token;
  for (int i = 0; i < 50; ++i) {
    auto run = flow.submit({owned({0})}, options);
    flow.drain();
    EXPECT_THROW(run.get(), Cancelled);
  }
}

TEST(Flow, AFanOutOfARunThatEndsEmitsNoMore) {
  FlowGraph graph;
  graph.inputs = {"x"};
  std::atomic<int> emitted = 0;
  FlowStage split = stage_of("split", {{"x"}}, {{"item"}}, [&](FlowCall& call) {
    for (;; ++emitted) {
      give(call, 0, {emitted});
      call.emit();
    }
  });
  split.fan_out = true;
  graph.stages = {split, stage_of("use", {{"x"}}, {{"y"}}, [](FlowCall& call) {
                    if (numbers(call.input(0))[0] == 30) throw ExecutionError("enough");
                    pass_on(call);
                  })};
  graph.connections = {{"split.x", "x"}, {"use.x", "split.item"}};
  graph.outputs = {"use.y"};
  Flow flow(graph);
  auto run = flow.submit({owned({0})});
  flow.drain();
  expect_error<ExecutionError>([&] { run.get(); }, "stage 'use': enough");
  // An endless fan-out that waits for room is ended by a cancel, too.
  CancelToken token;
  RunOptions options;
  options.cancel = &token;
  emitted = 31;
  run = flow.submit({owned({0})}, options);
  while (emitted < 100) std::this_thread::yield();
  token.cancel();
  flow.drain();
  expect_error<Cancelled>([&] { run.get(); }, "the run was cancelled");
}

TEST(Flow, AMethodWithStatesRunsInTheOrderOfSubmission) {
  const SumProgram sum;
  FlowGraph graph;
  graph.inputs = {"x"};
  FlowStage shuffle = stage_of("shuffle", {{"x"}}, {{"y"}}, [](FlowCall& call) {
    const std::int64_t x = numbers(call.input(0))[0];
    if (x % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (x == 17) throw ExecutionError("seventeen");
    pass_on(call);
  });
  shuffle.workers = 3;
  graph.stages = {shuffle, stage_of("sum", {std::make_shared<Session>(sum.program)})};
  graph.connections = {{"shuffle.x", "x"}, {"sum.x", "shuffle.y"}};
  graph.outputs = {"sum.0"};
  Flow flow(graph);
  std::vector<std::future<FlowOutputs>> runs;
  for (std::int64_t i = 0; i < 60; ++i) runs.push_back(flow.submit({owned({i})}));
  flow.drain();
  std::int64_t expected = 0;
  for (std::int64_t i = 0; i < 60; ++i) {
    auto& run = runs[static_cast<std::size_t>(i)];
    if (i == 17) {
      expect_error<ExecutionError>([&] { run.get(); }, "stage 'shuffle': seventeen");
      continue;
    }
    expected = mixed(expected, i);
    EXPECT_EQ(numbers(run.get()[0][0]), Numbers{expected});
  }
}

TEST(Flow, AMethodWithStatesGetsItemsInTheirOrder) {
  const SumProgram sum;
  FlowGraph graph;
  graph.inputs = {"x"};
  FlowStage shuffle = stage_of("shuffle", {{"x"}}, {{"y"}}, [](FlowCall& call) {
    const Numbers x = numbers(call.input(0));
    if (x[1] % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    give(call, 0, {x[0] + x[1]});
  });
  shuffle.workers = 3;
  graph.stages = {counting_fan_out(), shuffle, stage_of("sum", {std::make_shared<Session>(sum.program)})};
  graph.stages[0].workers = 2;
  graph.connections = {{"split.x", "x"}, {"shuffle.x", "split.item"}, {"sum.x", "shuffle.y"}};
  graph.outputs = {"sum.0"};
  FlowOptions options;
  options.items = 2;
  Flow flow(graph, options);
  std::vector<std::future<FlowOutputs>> runs;
  for (std::int64_t i = 0; i < 40; ++i) runs.push_back(flow.submit({owned({i % 7})}));
  std::int64_t expected = 0;
  for (std::int64_t i = 0; i < 40; ++i) {
    const FlowOutputs out = runs[static_cast<std::size_t>(i)].get();
    ASSERT_EQ(out[0].size(), static_cast<std::size_t>(i % 7));
    for (std::int64_t k = 0; k < i % 7; ++k) {
      expected = mixed(expected, i % 7 + k);
      EXPECT_EQ(numbers(out[0][static_cast<std::size_t>(k)]), Numbers{expected});
    }
  }
}

TEST(Flow, ShutdownAndDestructionFinishWhatWasAccepted) {
  const MixProgram mix;
  std::vector<std::future<FlowOutputs>> runs;
  for (int round = 0; round < 20; ++round) {
    FlowGraph graph;
    graph.inputs = {"x"};
    graph.stages = {counting_fan_out(), stage_of("mix", mix.sessions(2))};
    graph.connections = {{"split.x", "x"}, {"mix.a", "split.item"}, {"mix.b", "split.item"}};
    graph.outputs = {"mix.0"};
    FlowOptions options;
    options.runs = 6;
    Flow flow(graph, options);
    runs.clear();
    for (std::int64_t i = 0; i < 6; ++i) runs.push_back(flow.submit({owned({i})}));
    if (round % 2 == 0) continue;
    flow.shutdown();
    for (auto& run : runs) EXPECT_EQ(run.wait_for(std::chrono::seconds(0)), std::future_status::ready);
    expect_error<InvalidArgument>([&] { flow.submit({owned({1})}); }, "was shut down");
    flow.shutdown();
    flow.drain();
  }
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(runs[i].get()[0].size(), i);
}

TEST(Flow, ShutdownWakesThoseThatWaitForRoom) {
  Gate gate;
  FlowOptions options;
  options.runs = 1;
  Flow flow(one([&](FlowCall& call) {
              gate.pass();
              pass_on(call);
            }),
            options);
  auto accepted = flow.submit({owned({1})});
  gate.started.wait();
  std::jthread caller([&] { expect_error<InvalidArgument>([&] { flow.submit({owned({2})}); }, "was shut down"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::jthread closer([&] { flow.shutdown(); });
  caller.join();
  gate.release.count_down();
  closer.join();
  EXPECT_EQ(numbers(accepted.get()[0][0]), Numbers{1});
}

TEST(Flow, ItsOwnStagesMaySubmitWhereTheyNeedNotWait) {
  Flow* self = nullptr;
  std::future<FlowOutputs> inner;
  FlowOptions options;
  options.runs = 2;
  Flow flow(one([&](FlowCall& call) {
              if (numbers(call.input(0))[0] == 1) {
                inner = self->submit({owned({2})});
                expect_error<Busy>([&] { self->submit({owned({3})}); }, "would wait for itself");
                expect_error<InvalidArgument>([&] { self->drain(); }, "by its own stage");
                expect_error<InvalidArgument>([&] { self->shutdown(); }, "by its own stage");
              }
              pass_on(call);
            }),
            options);
  self = &flow;
  flow.submit({owned({1})}).get();
  EXPECT_EQ(numbers(inner.get()[0][0]), Numbers{2});
}

}  // namespace
}  // namespace graft
