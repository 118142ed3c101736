#include "exec/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace graft {
namespace {

void lend_and_run(int threads, PoolWork& work) {
  RunControl control;
  ThreadLease lease(threads, control);
  ASSERT_TRUE(lease);
  lease.run(work);
}

// Counts every task, and finds tasks that ran outside their step. Steps alternate between one task per thread and the
// most.
struct CountedSteps final : PoolWork {
  CountedSteps(int count, int thread_count) : steps(count), threads(thread_count) {
    runs.reset(new std::atomic<int>[static_cast<std::size_t>(count * most())] {});
  }

  int most() const { return threads * kMaxTasksPerThread; }
  int each() const { return current % 2 == 0 ? 1 : kMaxTasksPerThread; }
  std::atomic<int>& count_of(int task) { return runs[static_cast<std::size_t>(current * most() + task)]; }

  int next() noexcept override {
    for (int i = 0; current >= 0 && i < most(); ++i)
      if (count_of(i).load() != (i < threads * each() ? 1 : 0)) ++wrong;
    ++current;
    plain += current;  // not atomic: a data race here is a bug of the pool
    return current < steps ? each() : 0;
  }
  void task(int task, int tasks) noexcept override {
    if (tasks != threads * each()) ++wrong;
    const int before = plain;
    ++count_of(task);
    if (slow_task == task) std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (plain != before) ++wrong;
  }

  int steps;
  int threads;
  int current = -1;
  int plain = 0;
  int slow_task = -1;
  std::atomic<int> wrong{0};
  std::unique_ptr<std::atomic<int>[]> runs;
};

TEST(ThreadPool, EveryTaskOnceAndStepsInOrder) {
  for (int threads : {1, 2, 3, 8}) {  // includes more than most test machines have cores
    for (int run = 0; run < 200; ++run) {
      CountedSteps work(run % 7 * 10, threads);
      lend_and_run(threads, work);
      ASSERT_EQ(work.wrong, 0) << threads << " threads, run " << run;
      ASSERT_EQ(work.current, work.steps);
    }
  }
}

// Workers woken on the caller's CPU made runs take as long as with one thread.
TEST(ThreadPool, WorkersAreKeptOffTheCallersCpu) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  if (CPU_COUNT(&before) < 2 || usable_cpus() < 2) GTEST_SKIP() << "needs two CPUs";
  struct WhereTasks final : PoolWork {
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> workers_cpu{-1};
    bool begun = false;
    int next() noexcept override { return std::exchange(begun, true) ? 0 : 1; }
    void task(int, int) noexcept override {
      if (std::this_thread::get_id() != caller) {
        workers_cpu = sched_getcpu();
        return;
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (workers_cpu < 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    }
  };
  for (int round = 0; round < 20; ++round) {
    for (int cpu = 0, bound = 0; cpu < CPU_SETSIZE && bound < 2; ++cpu) {
      if (!CPU_ISSET(static_cast<std::size_t>(cpu), &before)) continue;
      ++bound;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(static_cast<std::size_t>(cpu), &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      RunControl control;
      ThreadLease lease(2, control);
      WhereTasks work;
      lease.run(work);
      EXPECT_GE(work.workers_cpu, 0) << "no worker took part";
      EXPECT_NE(work.workers_cpu, cpu);
      ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
    }
  }
}

// Nobody waits for a delayed thread: the other one does all remaining tasks, in every step.
TEST(ThreadPool, TasksNobodyHasBegunAreStolen) {
  struct HeldUp final : PoolWork {
    int steps = 0;
    std::atomic<int> done{0};
    std::atomic<bool> gave_up{false};
    int next() noexcept override {
      done = 0;
      return steps++ < 20 ? kMaxTasksPerThread : 0;
    }
    void task(int task, int tasks) noexcept override {
      if (task == 0) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        while (done < tasks - 1 && !gave_up)
          if (std::chrono::steady_clock::now() > end) gave_up = true;
      } else {
        ++done;
      }
    }
  } work;
  lend_and_run(2, work);
  EXPECT_FALSE(work.gave_up);
  EXPECT_EQ(work.steps, 21);
}

// One task takes longer than the others spin, so that they sleep and must be woken for the next step.
TEST(ThreadPool, SleepingWorkersAreWokenWithinARun) {
  for (int slow : {0, 1, kMaxTasksPerThread}) {
    CountedSteps work(50, 2);
    work.slow_task = slow;
    lend_and_run(2, work);
    EXPECT_EQ(work.wrong, 0);
    EXPECT_EQ(work.current, work.steps);
  }
}

TEST(ThreadPool, LeasesOfSeveralThreads) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&wrong, c] {
      for (int run = 0; run < 200; ++run) {
        CountedSteps work(5, 1 + c);
        lend_and_run(1 + c, work);
        wrong += work.wrong + (work.current != work.steps);
      }
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

// Two runs of several threads each get their part of the CPUs, and all of them when the other has ended.
TEST(ThreadPool, ARunGivesThreadsBackToAnotherAndTakesThemAgain) {
  const int cpus = usable_cpus();
  if (cpus < 2) GTEST_SKIP() << "needs two CPUs";
  struct Steps final : PoolWork {
    const ThreadLease* lease = nullptr;
    std::atomic<int> granted{0};
    std::atomic<bool> ended{false};
    int next() noexcept override {
      granted = lease->granted();
      return ended ? 0 : 1;
    }
    void task(int, int) noexcept override { std::this_thread::yield(); }
  };
  RunControl control;
  Steps first, second;
  const auto begin = [&](Steps& steps) {
    ThreadLease lease(cpus, control);
    steps.lease = &lease;
    lease.run(steps);
  };
  const auto granted = [](const Steps& steps, auto enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!enough(steps.granted.load()))
      if (std::chrono::steady_clock::now() > end) return false;
    return true;
  };
  std::thread one([&] { begin(first); });
  EXPECT_TRUE(granted(first, [&](int now) { return now == cpus; })) << first.granted;
  std::thread two([&] { begin(second); });
  EXPECT_TRUE(granted(second, [](int now) { return now >= 1; }));
  EXPECT_TRUE(granted(first, [&](int now) { return now <= cpus / 2 + 1 && now + second.granted <= cpus; }));
  second.ended = true;
  two.join();
  EXPECT_TRUE(granted(first, [&](int now) { return now == cpus; })) << first.granted;
  // A run of one thread counts as well.
  {
    ThreadLease single(1, control);
    EXPECT_TRUE(granted(first, [&](int now) { return now == cpus - 1; })) << first.granted;
  }
  EXPECT_TRUE(granted(first, [&](int now) { return now == cpus; })) << first.granted;
  first.ended = true;
  one.join();
}

TEST(ThreadPool, RunsOfAnyNumberOfThreadsAtOnce) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 8; ++c)
    callers.emplace_back([&wrong, c] {
      for (int run = 0; run < 100; ++run) {
        const int threads = 1 + (c * 7 + run) % 5;
        CountedSteps work(run % 9, threads);
        lend_and_run(threads, work);
        wrong += work.wrong + (work.current != work.steps);
      }
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace graft
