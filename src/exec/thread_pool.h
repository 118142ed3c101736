#pragma once

#include <memory>
#include <mutex>

#include "lowering/tasks.h"

struct ggml_threadpool;

namespace graft {

// CPUs that this process may use: its affinity mask, bounded by the cgroup's CPU quota; at least 1.
int usable_cpus();

// The number of threads for a request (0: GRAFT_THREADS, else usable_cpus()). Throws InvalidArgument when the request
// or GRAFT_THREADS is not a number in 1..512.
int resolve_threads(int requested);

// Work in steps of tasks: a step begins when all tasks of the previous one are done.
class PoolWork {
 public:
  // Prepares the next step and returns its tasks per thread, at most kMaxTasksPerThread; 0 after the last step. Called
  // by one thread at a time, after all earlier work is done.
  virtual int next() noexcept = 0;
  // Runs one of the tasks 0 .. tasks - 1 of the step; they run in any order, on any threads.
  virtual void task(int task, int tasks) noexcept = 0;

 protected:
  ~PoolWork() = default;
};

// The process's only pool of worker threads. A run leases all of it; others wait. After fork() the child starts with
// its own pool.
//
// Work stealing: thread t begins with tasks t * n .. t * n + n - 1, then takes any task of the step that no thread has
// begun. So the others wait for a worker whose core is busy only if it was preempted in the middle of a task. The
// thread that finishes the last task of a step begins the next step. Workers spin for some 50 microseconds after a
// task, and for some 500 after a run, then sleep; with more threads than CPUs they never spin. With a CPU for each
// thread, workers avoid the CPU that the caller was on when the run began: their affinity is the caller's without it.
class ThreadPool {
 public:
  // Leases the pool with at least `threads` threads, the caller's included. Throws SystemError if a thread cannot be
  // started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Does all of the work, the calling thread taking part. Allocates nothing.
  void run(PoolWork& work);

  // ggml's own pool, for ggml graphs: `threads` is 1 or the pool's. Made by the first call.
  ggml_threadpool* ggml_pool(int threads);

  struct Impl;

 private:
  Impl& impl_;
  std::unique_lock<std::mutex> lock_;
  int threads_;
};

}  // namespace graft
