#pragma once

#include <memory>
#include <mutex>

struct ggml_threadpool;

namespace graft {

// CPUs this process may use: its affinity mask, bounded by the cgroup's CPU quota; at least 1.
int usable_cpus();

// The number of threads for a request (0: GRAFT_THREADS, else usable_cpus()). Throws InvalidArgument when the request
// or GRAFT_THREADS is not a number in 1..512.
int resolve_threads(int requested);

// The process's one pool of worker threads. A run leases it whole; others wait. Workers spin briefly after a run, then
// sleep. After fork() the child starts with a pool of its own.
class ThreadPoolLease {
 public:
  explicit ThreadPoolLease(int threads);
  ~ThreadPoolLease();
  ThreadPoolLease(const ThreadPoolLease&) = delete;
  ThreadPoolLease& operator=(const ThreadPoolLease&) = delete;

  ggml_threadpool* get() const { return pool_; }

 private:
  std::unique_lock<std::mutex> lock_;
  ggml_threadpool* pool_;
};

}  // namespace graft
