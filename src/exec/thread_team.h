#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "exec/cpus.h"
#include "lowering/tasks.h"

namespace graft {

class ThreadTeam;

// Work in steps of tasks: a step begins when all tasks of the previous one are done.
class PoolWork {
 public:
  // Prepares the next step and returns its tasks per planned thread, at most kMaxTasksPerThread; 0 after the last step.
  // Called by one thread at a time, after all earlier work is done.
  virtual int next() noexcept = 0;
  // Runs one of the tasks 0 .. tasks - 1 of the step; they run in any order, on any threads.
  virtual void task(int task, int tasks) noexcept = 0;

 protected:
  ~PoolWork() = default;
};

// How many threads compute in this process, read by teams without a lock and written by the pool under its lock.
struct alignas(64) PoolLoad {
  const int cpus = usable_cpus();
  std::atomic<int> single{0};   // runs of one thread
  std::atomic<int> runs{0};     // other runs
  std::atomic<int> threads{0};  // of the other runs

  // Whether there is one run and it has several threads.
  bool alone() const {
    return runs.load(std::memory_order_relaxed) == 1 && single.load(std::memory_order_relaxed) == 0;
  }
  bool crowded() const {
    return threads.load(std::memory_order_relaxed) + single.load(std::memory_order_relaxed) > cpus;
  }
  // The most threads that a run which has `now` and asks for `wanted` should have: all when it is alone, else its part
  // of the CPUs, and of those left over as far as they are free.
  int fair(int now, int wanted) const { return alone() ? wanted : fair_part(now, wanted); }

 private:
  int fair_part(int now, int wanted) const;
};

// A worker thread. It sleeps without a team.
struct alignas(64) Worker {
  std::atomic<ThreadTeam*> team{nullptr};
  std::atomic<int> index{0};  // in the team, from 1
  std::atomic<std::uint32_t> wakes{0};
  std::atomic<bool> asleep{false};
  int kept_off = -1;  // the CPU that its affinity leaves out
  std::thread thread;

  [[noreturn]] void loop();
  // Moves it to a team, or to none.
  void join(ThreadTeam* to, int as);
  // Wakes it if it sleeps.
  void wake();
};

// The threads of one run: the caller, which is thread 0, and workers. A step has as many tasks as planned for
// `planned` threads, whatever number works on them: results do not depend on who is free.
//
// Work stealing: thread t begins with tasks t * n .. t * n + n - 1, then takes any task of the step that no thread has
// begun. So the others wait for a worker whose core is busy only if it was preempted in the middle of a task. The
// thread that finishes the last task of a step begins the next step, and may let workers go or take more of them
// (Owner::adapt). Workers spin for some 50 microseconds after a task, and for some 500 after a run, then sleep; while
// more threads compute than there are CPUs they never spin.
//
// A team is never freed, since a late worker may still look at it.
class ThreadTeam {
 public:
  class Owner {
   public:
    // Called before a step for which the team should have another number of threads, by the thread that begins it.
    virtual void adapt(ThreadTeam& team) noexcept = 0;

   protected:
    ~Owner() = default;
  };

  ThreadTeam(PoolLoad& load, Owner& owner) : load_(load), owner_(owner) {}

  // Runs all steps; the caller takes part. Allocates nothing.
  void run(PoolWork& work);
  // Runs all steps of a run that begins within PoolWork::next() of another run of the team, on this thread: until it
  // ends, that run has no step for the other threads. `threads`: that the tasks are made for.
  void run_within(PoolWork& work, int threads);
  // The team that this thread may call run_within() of; null within a task, and on threads outside of runs.
  static ThreadTeam* between_steps();

  // Changed by the owner only, under its lock: between runs, or in adapt().
  int planned = 1;              // threads that the tasks are made for
  int attached = 0;             // workers of the team
  std::atomic<int> granted{1};  // threads that take part, the caller's included
  int spare_steps = 0;          // steps in a row in which more threads could have been had
  int caller_cpu = -1;          // where the caller was when the run began

  void attach(Worker& worker);  // as the last
  Worker& detach();             // the last; it still has this team
  template <typename Visit>
  void for_each_worker(Visit visit) {
    for (int i = 0; i < attached; ++i) visit(*workers_[static_cast<std::size_t>(i)].load(std::memory_order_relaxed));
  }

 private:
  friend struct Worker;

  // A step whose tasks threads may take: its number, which only grows, the tasks per planned thread, and the planned
  // threads. No tasks: no run is active.
  struct OpenStep {
    static constexpr int kThreadBits = 10;
    static constexpr int kTaskBits = 3;
    static_assert(kMaxThreads < 1 << kThreadBits && kMaxTasksPerThread < 1 << kTaskBits);
    std::uint64_t epoch;
    int tasks_per_thread;
    int threads;

    static OpenStep of(std::uint64_t word);
    std::uint64_t word() const;
  };
  // For task i of each planned thread: the last step in which it was taken. A thread takes it by storing the step's
  // number. A step is done only when all its tasks were taken, so a late thread finds none.
  struct alignas(64) Tasks {
    std::atomic<std::uint64_t> taken[kMaxTasksPerThread]{};
  };

  void publish(OpenStep step);
  void advance();
  void take_tasks(OpenStep step, int thread);
  void wait(std::uint64_t word, Worker& self);

  PoolLoad& load_;
  Owner& owner_;
  std::unique_ptr<Tasks[]> tasks_{new Tasks[kMaxThreads]};
  // Thread i + 1 of the team. Atomic, since a thread that wakes workers for a step may be overtaken by the next ones.
  std::unique_ptr<std::atomic<Worker*>[]> workers_ { new std::atomic<Worker*>[kMaxThreads] {} };
  // The innermost run, written before its first step is published.
  struct Run {
    PoolWork* work = nullptr;
    int threads = 1;
    std::atomic<bool>* over = nullptr;  // of a run within another one
  };
  Run run_;
  alignas(64) std::atomic<std::uint64_t> open_{0};
  alignas(64) std::atomic<int> finished_{0};
  alignas(64) std::atomic<int> sleeping_{0};
};

// Whether this thread computes for a run: a worker always, a caller from the lease of its threads to its end.
bool& this_thread_computes();

}  // namespace graft
