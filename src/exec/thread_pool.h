#pragma once

#include <memory>
#include <mutex>

#include "lowering/tasks.h"

struct ggml_threadpool;

namespace graft {

// CPUs this process may use: its affinity mask, bounded by the cgroup's CPU quota; at least 1.
int usable_cpus();

// The number of threads for a request (0: GRAFT_THREADS, else usable_cpus()). Throws InvalidArgument when the request
// or GRAFT_THREADS is not a number in 1..512.
int resolve_threads(int requested);

// Work in steps of tasks: a step begins when all tasks of the one before it are done.
class PoolWork {
 public:
  // Prepares the next step and returns how many tasks of it each thread has, at most kMaxTasksPerThread; 0 when
  // there is no step. Called by one thread at a time, after all that was done before.
  virtual int next() noexcept = 0;
  // Task 0 .. tasks - 1 of the step, in any order, on any threads.
  virtual void task(int task, int tasks) noexcept = 0;

 protected:
  ~PoolWork() = default;
};

// The process's one pool of worker threads. A run leases it whole; others wait. After fork() the child starts with a
// pool of its own.
//
// Work stealing: thread t begins with tasks t * n .. t * n + n - 1, and with those done takes any task of the step that
// nobody has begun. So a worker whose core is busy with something else is waited for only if it was stopped in the
// middle of a task. The last thread to finish a task of the step begins the next step. Workers spin for some 50
// microseconds after a task, and for some 500 after a run, then sleep; with more threads than CPUs they never spin.
// With a CPU for each thread, no worker uses the one that the caller was on when the run began: the workers' affinity
// is the caller's without it.
class ThreadPool {
 public:
  // Leases the pool with at least `threads` threads, the caller's among them. Throws SystemError when a thread cannot
  // be started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Does all of the work, with the calling thread. Allocates nothing.
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
