#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>

#include "exec/cpus.h"
#include "exec/thread_pool.h"
#include "graft/op.h"
#include "graft/pipeline.h"
#include "load/test_graph.h"

// Sessions that run at the same time, wait for CPUs, or run inside one another. Kernels that wait for each other stand
// for long ones: no test depends on a duration, but for a minute after which it fails.
namespace graft {
namespace {

using ir::Arg;
using std::chrono::steady_clock;
using test::fixed;
using test::GraphBuilder;
using test::tensor;
using ::testing::HasSubstr;

bool wait_until(const std::function<bool()>& done) {
  const auto end = steady_clock::now() + std::chrono::minutes(1);
  while (!done()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// y = x, by an operator that calls `run` once. Registered once: an operator cannot be registered again.
struct Hook {
  std::function<void()> run;
  std::shared_ptr<const Program> program;

  explicit Hook(const std::string& name) {
    OpDefinition op;
    op.target = "overlap." + name + ".default";
    op.refuse = [](const OpNode&) { return ""; };
    op.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("x")}; };
    op.run = [this](const OpRun& run_of) {
      *static_cast<float*>(run_of.outputs[0].data) = *static_cast<const float*>(run_of.inputs[0].data);
      run();
    };
    register_op(op);
    const auto x = graph.input("x", DType::f32, {fixed(1)});
    graph.output(graph.node(op.target, {{"x", Arg::of_value(x)}}, DType::f32, {fixed(1)}));
    program = graph.build();
  }

  Session session(int threads) const {
    SessionOptions options;
    options.threads = threads;
    return Session(program, options);
  }

 private:
  GraphBuilder graph;
};

float run(Session& session, const RunOptions& options = {}) {
  std::vector<float> x{7};
  const std::vector<Value> in{tensor(x, {1})};
  return test::floats(session.run("forward", in, options)[0])[0];
}

// Takes all turns: as many runs of two threads as there are CPUs, until release().
class Occupied {
 public:
  explicit Occupied(const std::string& name) : hook_(name) {
    hook_.run = [this] {
      const int turn = inside_++;
      EXPECT_TRUE(wait_until([&] { return turn < released_; }));
    };
    for (int i = 0; i < usable_cpus(); ++i)
      runs_.push_back(std::async(std::launch::async, [this] {
        Session session = hook_.session(2);
        run(session);
      }));
    EXPECT_TRUE(wait_until([this] { return inside_ == usable_cpus(); }));
  }
  ~Occupied() { release(); }
  void release_one() { ++released_; }
  void release() {
    released_ = usable_cpus();
    for (std::future<void>& one : runs_)
      if (one.valid()) one.get();
  }

 private:
  Hook hook_;
  std::atomic<int> inside_{0};
  std::atomic<int> released_{0};
  std::vector<std::future<void>> runs_;
};

TEST(Overlap, RunsOfOneThreadMeet) {
  std::atomic<int> inside{0};
  Hook hook("meet");
  hook.run = [&] {
    ++inside;
    EXPECT_TRUE(wait_until([&] { return inside >= 4; })) << "the runs do not overlap";
  };
  std::vector<std::future<void>> runs;
  for (int i = 0; i < 4; ++i)
    runs.push_back(std::async(std::launch::async, [&] {
      Session session = hook.session(1);
      run(session);
    }));
  for (std::future<void>& one : runs) one.get();
}

TEST(Overlap, RunsOfSeveralThreadsMeetOnEnoughCpus) {
  if (usable_cpus() < 2) GTEST_SKIP() << "needs two CPUs";
  std::atomic<int> inside{0};
  Hook hook("meet_wide");
  hook.run = [&] {
    ++inside;
    EXPECT_TRUE(wait_until([&] { return inside >= 2; })) << "the runs do not overlap";
  };
  const auto one = [&] {
    Session session = hook.session(usable_cpus());
    run(session);
  };
  auto other = std::async(std::launch::async, one);
  one();
  other.get();
}

TEST(Overlap, WorkersOfAPipelineMeet) {
  std::atomic<int> inside{0};
  Hook hook("meet_pipeline");
  hook.run = [&] {
    ++inside;
    EXPECT_TRUE(wait_until([&] { return inside >= 2; })) << "the runs do not overlap";
  };
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < 2; ++i) sessions.push_back(std::make_shared<Session>(hook.session(1)));
  PipelineOptions options;
  options.workers = 2;
  Pipeline pipeline(sessions, options);
  std::vector<float> x{7};
  std::vector<std::future<std::vector<Value>>> results;
  for (std::size_t i = 0; i < 2; ++i) results.push_back(pipeline.submit(i, "forward", {tensor(x, {1})}));
  for (auto& result : results) EXPECT_EQ(test::floats(result.get()[0])[0], 7);
}

TEST(Overlap, ADeadlineHoldsWhileARunWaits) {
  Hook hook("deadline");
  hook.run = [] { FAIL() << "the run began"; };
  Session session = hook.session(2);
  Occupied occupied("deadline_occupied");
  RunOptions options;
  options.deadline = steady_clock::now() + std::chrono::milliseconds(50);
  EXPECT_THROW(run(session, options), Cancelled);
  occupied.release();
  hook.run = [] {};
  EXPECT_EQ(run(session), 7) << "the session is usable";
}

TEST(Overlap, AWaitingRunIsCancelled) {
  Hook hook("cancel");
  hook.run = [] { FAIL() << "the run began"; };
  Occupied occupied("cancel_occupied");
  CancelToken token;
  auto waiting = std::async(std::launch::async, [&] {
    Session session = hook.session(2);
    RunOptions options;
    options.cancel = &token;
    EXPECT_THROW(run(session, options), Cancelled);
  });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  token.cancel();
  EXPECT_EQ(waiting.wait_for(std::chrono::minutes(1)), std::future_status::ready);
}

TEST(Overlap, ARunOfOneThreadWaitsForNobody) {
  Hook hook("single");
  hook.run = [] {};
  Occupied occupied("single_occupied");
  Session session = hook.session(1);
  EXPECT_EQ(run(session), 7);
}

TEST(Overlap, TheHighestPriorityIsNextThenTheLongestWaiting) {
  std::mutex mutex;
  std::string order;
  Hook hook("priority");
  thread_local char name = 0;
  hook.run = [&] {
    const std::lock_guard lock(mutex);
    order += name;
  };
  Occupied occupied("priority_occupied");
  std::vector<std::future<void>> runs;
  for (const auto& [letter, priority] : {std::pair{'a', 0}, {'b', 0}, {'c', 5}, {'d', 5}, {'e', -1}}) {
    runs.push_back(std::async(std::launch::async, [&, letter = letter, priority = priority] {
      name = letter;
      Session session = hook.session(2);
      RunOptions options;
      options.priority = priority;
      run(session, options);
    }));
    ASSERT_TRUE(wait_until([&] { return ThreadLease::waiting() == static_cast<int>(runs.size()); }));
  }
  occupied.release_one();  // one turn for all, so that they run one after the other
  for (std::future<void>& one : runs) one.get();
  EXPECT_EQ(order, "cdabe");
}

TEST(Overlap, AnOperatorRunsAnotherSession) {
  Hook outer("outer"), inner("inner");
  inner.run = [] {};
  for (const int threads : {1, 2, 4}) {
    Session inside = inner.session(threads), outside = outer.session(threads);
    float result = 0;
    outer.run = [&] { result = run(inside); };
    EXPECT_EQ(run(outside), 7);
    EXPECT_EQ(result, 7);
  }
}

TEST(Overlap, AnOperatorOfEveryRunRunsAnotherSessionWhileOthersWait) {
  Hook outer("outer_many"), inner("inner_many");
  inner.run = [] {};
  outer.run = [&] {
    Session inside = inner.session(2);
    EXPECT_EQ(run(inside), 7);
  };
  std::vector<std::future<void>> runs;
  for (int i = 0; i < 3 * usable_cpus(); ++i)
    runs.push_back(std::async(std::launch::async, [&] {
      Session outside = outer.session(2);
      for (int k = 0; k < 20; ++k) EXPECT_EQ(run(outside), 7);
    }));
  for (std::future<void>& one : runs) one.get();
}

TEST(Overlap, AnOperatorThatRunsItsOwnSessionFails) {
  Hook hook("itself");
  Session session = hook.session(2);
  hook.run = [&] { run(session); };
  try {
    run(session);
    FAIL() << "the session ran in itself";
  } catch (const ExecutionError& error) {
    EXPECT_THAT(error.what(), HasSubstr("in use"));
  }
}

}  // namespace
}  // namespace graft
