#include "run/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace graft {
namespace {

// Counts every share, and finds a share that ran outside its step.
struct CountedSteps final : TeamWork {
  explicit CountedSteps(int count, int shares_per_step) : steps(count), expected(shares_per_step) {
    runs.reset(new std::atomic<int>[static_cast<std::size_t>(count * shares_per_step)] {});
  }

  bool next() noexcept override {
    for (int i = 0; current >= 0 && i < expected; ++i)
      if (runs[static_cast<std::size_t>(current * expected + i)].load() != 1) ++wrong;
    ++current;
    plain += current;  // not atomic: a data race here is a bug of the team's
    return current < steps;
  }
  void share(int share, int shares) noexcept override {
    if (shares != expected) ++wrong;
    const int before = plain;
    ++runs[static_cast<std::size_t>(current * expected + share)];
    if (slow_share == share) std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (plain != before) ++wrong;
  }

  int steps;
  int expected;
  int current = -1;
  int plain = 0;
  int slow_share = -1;
  std::atomic<int> wrong{0};
  std::unique_ptr<std::atomic<int>[]> runs;
};

TEST(ThreadTeam, EveryShareOnceAndStepsInOrder) {
  for (int threads : {1, 2, 3, 8}) {  // more than the cores of most test machines among them
    for (int run = 0; run < 200; ++run) {
      CountedSteps work(run % 7 * 10, threads);
      ThreadTeam(threads).run(work);
      ASSERT_EQ(work.wrong, 0) << threads << " threads, run " << run;
      ASSERT_EQ(work.current, work.steps);
    }
  }
}

// One share takes longer than the others spin, so that they sleep and must be woken for the next step.
TEST(ThreadTeam, SleepersAreWokenWithinARun) {
  for (int slow : {0, 1}) {
    CountedSteps work(50, 2);
    work.slow_share = slow;
    ThreadTeam(2).run(work);
    EXPECT_EQ(work.wrong, 0);
    EXPECT_EQ(work.current, work.steps);
  }
}

TEST(ThreadTeam, LeasesOfSeveralThreadsTakeTurns) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&wrong, c] {
      for (int run = 0; run < 200; ++run) {
        CountedSteps work(5, 1 + c);
        ThreadTeam(1 + c).run(work);
        wrong += work.wrong + (work.current != work.steps);
      }
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadTeam, Alone) {
  CountedSteps work(20, 3);
  run_alone(work, 3);
  EXPECT_EQ(work.wrong, 0);
  EXPECT_EQ(work.current, work.steps);
}

}  // namespace
}  // namespace graft
