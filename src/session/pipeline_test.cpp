#include "graft/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "base/test_errors.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::expect_error;
using test::fixed;
using test::GraphBuilder;
using test::of_int;

// s = 3 s + x, and returns s: the result of a run depends on all runs before it and on their order.
struct Net {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;

  Net() {
    const auto x = graph.input("x", DType::i64, {fixed(1)});
    const auto s = graph.state("s", DType::i64, {1});
    const auto scaled =
        graph.node("aten.mul.Scalar", {{"self", Arg::of_value(s)}, {"other", of_int(3)}}, DType::i64, {fixed(1)});
    const auto next = graph.node("aten.add.Tensor",
                                 {{"self", Arg::of_value(scaled)}, {"other", Arg::of_value(x)}, {"alpha", of_int(1)}},
                                 DType::i64, {fixed(1)});
    graph.output(next);
    graph.mutate_state(0, next);
    program = graph.build();
  }

  std::vector<std::shared_ptr<Session>> sessions(std::size_t count) const {
    SessionOptions options;
    options.threads = 1;
    std::vector<std::shared_ptr<Session>> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(std::make_shared<Session>(program, options));
    return out;
  }
};

std::int64_t number(const std::vector<Value>& outputs) {
  return *static_cast<const std::int64_t*>(outputs.at(0).tensor.data);
}

Value input(std::int64_t& x) { return Value::of(TensorView{&x, DType::i64, Shape{1}}); }

// Keeps the worker of session 0 busy until it is released.
struct Blocker {
  std::latch started{1}, release{1};
  std::future<void> done;

  explicit Blocker(Pipeline& pipeline) {
    done = pipeline.submit(0, [this](Session&) {
      started.count_down();
      release.wait();
    });
    started.wait();
  }
};

std::uint64_t after(std::uint64_t s, std::int64_t x) { return 3 * s + static_cast<std::uint64_t>(x); }

TEST(Pipeline, KeepsTheOrderOfEachSessionAndLosesNothing) {
  constexpr std::size_t kSessions = 3;
  constexpr std::int64_t kRuns = 200;
  const Net net;
  PipelineOptions options;
  options.workers = 2;
  options.capacity = 8;
  Pipeline pipeline(net.sessions(kSessions), options);
  std::vector<std::int64_t> inputs(kRuns);
  for (std::int64_t i = 0; i < kRuns; ++i) inputs[static_cast<std::size_t>(i)] = i * i - 7;
  // A thread for each session: the order within a session is that of its submissions.
  std::vector<std::vector<std::future<std::vector<Value>>>> results(kSessions);
  {
    std::vector<std::jthread> callers;
    for (std::size_t s = 0; s < kSessions; ++s)
      callers.emplace_back([&, s] {
        for (std::int64_t& x : inputs) results[s].push_back(pipeline.submit(s, "forward", {input(x)}));
      });
  }
  pipeline.drain();
  const PipelineCounters counts = pipeline.counters();
  EXPECT_EQ(counts.submitted, kSessions * kRuns);
  EXPECT_EQ(counts.finished, kSessions * kRuns);
  EXPECT_EQ(counts.failed, 0u);
  EXPECT_EQ(counts.waiting + counts.running, 0u);
  EXPECT_LE(counts.most_waiting, 8u);
  for (auto& session : results) {
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < session.size(); ++i) {
      expected = after(expected, inputs[i]);
      ASSERT_EQ(session[i].wait_for(std::chrono::seconds(0)), std::future_status::ready);
      ASSERT_EQ(static_cast<std::uint64_t>(number(session[i].get())), expected) << "run " << i;
    }
  }
}

TEST(Pipeline, CallersWaitWhileItIsFull) {
  const Net net;
  PipelineOptions options;
  options.capacity = 2;
  Pipeline pipeline(net.sessions(2), options);
  std::int64_t x = 1;
  Blocker blocker(pipeline);
  std::vector<std::future<std::vector<Value>>> runs;
  for (std::size_t s : {0, 1}) runs.push_back(*pipeline.try_submit(s, "forward", {input(x)}));
  EXPECT_FALSE(pipeline.try_submit(1, "forward", {input(x)}).has_value());
  EXPECT_EQ(pipeline.counters().waiting, 2u);
  std::atomic<bool> accepted = false;
  std::jthread caller([&] {
    runs.push_back(pipeline.submit(1, "forward", {input(x)}));
    accepted = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(accepted);  // the worker is stopped: the queue stays full
  blocker.release.count_down();
  caller.join();
  pipeline.drain();
  EXPECT_TRUE(accepted);
  blocker.done.get();
  EXPECT_EQ(number(runs[0].get()), 1);
  EXPECT_EQ(number(runs[1].get()), 1);
  EXPECT_EQ(number(runs[2].get()), 4);
  EXPECT_EQ(pipeline.counters().most_waiting, 2u);
}

TEST(Pipeline, ARunThatFailsTakesNothingElseWithIt) {
  const Net net;
  Pipeline pipeline(net.sessions(1));
  std::int64_t x = 5;
  auto first = pipeline.submit(0, "forward", {input(x)});
  auto wrong = pipeline.submit(0, "backward", {input(x)});
  auto thrown = pipeline.submit(0, [](Session&) { throw std::runtime_error("of the work"); });
  auto last = pipeline.submit(0, "forward", {input(x)});
  // The thread sanitizer does not see the reference counts in libstdc++'s exceptions: after this, one thread owns them.
  pipeline.drain();
  EXPECT_EQ(number(first.get()), 5);
  expect_error<NotFound>([&] { wrong.get(); }, "no method 'backward'");
  EXPECT_THROW(thrown.get(), std::runtime_error);
  EXPECT_EQ(number(last.get()), 20);
  EXPECT_EQ(pipeline.counters().failed, 2u);
  EXPECT_EQ(pipeline.counters().finished, 4u);
}

TEST(Pipeline, ShutdownFinishesWhatWasAccepted) {
  const Net net;
  PipelineOptions options;
  options.workers = 2;
  options.capacity = 64;
  std::vector<std::future<std::vector<Value>>> runs;
  std::int64_t x = 1;
  {
    Pipeline pipeline(net.sessions(2), options);
    for (std::size_t i = 0; i < 60; ++i) runs.push_back(pipeline.submit(i % 2, "forward", {input(x)}));
    pipeline.shutdown();
    EXPECT_EQ(pipeline.counters().finished, 60u);
    expect_error<InvalidArgument>([&] { pipeline.submit(0, "forward", {input(x)}); }, "was shut down");
    pipeline.shutdown();  // once more changes nothing
    pipeline.drain();
  }
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < runs.size(); i += 2) {
    expected = after(expected, 1);
    EXPECT_EQ(static_cast<std::uint64_t>(number(runs[i].get())), expected);
    EXPECT_EQ(static_cast<std::uint64_t>(number(runs[i + 1].get())), expected);
  }
}

TEST(Pipeline, ShutdownWakesThoseThatWaitForRoom) {
  const Net net;
  PipelineOptions options;
  options.capacity = 1;
  Pipeline pipeline(net.sessions(1), options);
  std::int64_t x = 1;
  Blocker blocker(pipeline);
  auto accepted = pipeline.submit(0, "forward", {input(x)});
  std::jthread caller(
      [&] { expect_error<InvalidArgument>([&] { pipeline.submit(0, "forward", {input(x)}); }, "was shut down"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::jthread closer([&] { pipeline.shutdown(); });
  caller.join();
  blocker.release.count_down();
  closer.join();
  blocker.done.get();
  EXPECT_EQ(number(accepted.get()), 1);
}

TEST(Pipeline, WrongUseIsATypedError) {
  const Net net;
  expect_error<InvalidArgument>([] { Pipeline none(std::vector<std::shared_ptr<Session>>{}); }, "at least one session");
  expect_error<InvalidArgument>([] { Pipeline none(std::vector<std::shared_ptr<Session>>{nullptr}); },
                                "session 0 of the pipeline is null");
  const auto one = net.sessions(1)[0];
  expect_error<InvalidArgument>([&] { Pipeline twice({one, one}); }, "session 1 of the pipeline is there twice");
  PipelineOptions none;
  none.workers = 0;
  expect_error<InvalidArgument>([&] { Pipeline({one}, none); }, "at least one worker");
  none.workers = 1;
  none.capacity = 0;
  expect_error<InvalidArgument>([&] { Pipeline({one}, none); }, "room for at least one run");
  PipelineOptions small;
  small.capacity = 1;
  Pipeline pipeline({one}, small);
  std::int64_t x = 1;
  expect_error<InvalidArgument>([&] { pipeline.submit(1, "forward", {input(x)}); }, "has 1 sessions, got index 1");
  // Its own work may submit while the queue has capacity, and gets an error when it is full.
  std::future<std::vector<Value>> inner;
  auto work = pipeline.submit(0, [&](Session&) {
    inner = pipeline.submit(0, "forward", {input(x)});
    pipeline.submit(0, "forward", {input(x)});
  });
  pipeline.drain();
  expect_error<Busy>([&] { work.get(); }, "would wait for itself");
  EXPECT_EQ(number(inner.get()), 1);
}

TEST(Pipeline, ARunThatWaitsMeetsItsDeadlineOrIsCancelled) {
  Net net;
  Pipeline pipeline(net.sessions(1), {});
  Blocker blocker(pipeline);
  std::int64_t x = 1;
  CancelToken token;
  RunOptions late, cancelled;
  late.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
  cancelled.cancel = &token;
  auto first = pipeline.submit(0, "forward", {input(x)}, late);
  auto second = pipeline.submit(0, "forward", {input(x)}, cancelled);
  auto third = pipeline.submit(0, "forward", {input(x)});
  // The session is busy until the blocker is released: only the queue can end these.
  EXPECT_THROW(first.get(), Cancelled);
  token.cancel();
  EXPECT_THROW(second.get(), Cancelled);
  EXPECT_EQ(pipeline.counters().waiting, 1u);
  EXPECT_EQ(pipeline.counters().failed, 2u);
  blocker.release.count_down();
  EXPECT_EQ(number(third.get()), 1);
  pipeline.drain();
  EXPECT_EQ(pipeline.counters().finished, 4u);
}

TEST(Pipeline, DrainedWhenTheLastRunIsCancelledWhileItWaits) {
  Net net;
  Pipeline pipeline(net.sessions(1), {});
  std::int64_t x = 1;
  for (int i = 0; i < 50; ++i) {
    CancelToken token;
    std::vector<std::future<std::vector<Value>>> runs;
    RunOptions options;
    options.cancel = &token;
    for (int k = 0; k < 3; ++k) runs.push_back(pipeline.submit(0, "forward", {input(x)}, options));
    token.cancel();
    pipeline.drain();
    for (auto& run : runs) {
      EXPECT_EQ(run.wait_for(std::chrono::seconds(0)), std::future_status::ready);
      try {
        run.get();
      } catch (const Cancelled&) {
      }
    }
  }
}

TEST(RunQueue, ARunThatWaitsMeetsItsDeadlineOrIsCancelled) {
  Net net;
  std::latch started(1), release(1);
  Session session(net.program);
  // The first run stays in its callback, on this session.
  std::int64_t x = 1;
  std::thread holder([&] {
    const std::vector<Value> in{input(x)};
    std::int64_t out = 0;
    session.run_into("forward", in,
                     [&](std::span<Value> outputs) {
                       outputs[0].tensor.data = &out;
                       started.count_down();
                       release.wait();
                     },
                     {});
  });
  started.wait();
  CancelToken token;
  RunOptions late, cancelled;
  late.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
  cancelled.cancel = &token;
  auto begun = session.submit("forward", {input(x)});  // waits for the session, on the queue's thread
  auto first = session.submit("forward", {input(x)}, late);
  auto second = session.submit("forward", {input(x)}, cancelled);
  EXPECT_THROW(first.get(), Cancelled);
  token.cancel();
  EXPECT_THROW(second.get(), Cancelled);
  release.count_down();
  holder.join();
  EXPECT_EQ(number(begun.get()), 4);
}

}  // namespace
}  // namespace graft
