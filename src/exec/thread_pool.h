#pragma once

#include "exec/run_control.h"
#include "exec/thread_team.h"

struct ggml_threadpool;

namespace graft {

// The threads of one run, lent by the process's pool of workers.
//
// Every run computes on its caller's thread. A run of one thread takes no other and never waits. Another one gets the
// workers that it asks for as far as CPUs are free, and at most its part of the CPUs when several runs compute: it
// gives workers back between steps when others begin and takes more when they end. It waits only while as many such
// runs compute as there are CPUs; then the highest priority is next, and among equal ones the longest waiting. A run
// that a kernel of another run makes never waits: it has that run's threads when they have nothing else to do, which is
// so for a launch that one thread runs between two steps, else the kernel's thread. After fork() the child has a pool
// of its own.
//
// With a CPU for each of its threads, a run's workers avoid the CPU that the caller was on when it began: their
// affinity is the caller's without it.
class ThreadLease {
 public:
  // What the threads run: graft's kernels, or ggml graphs too, which only one run of several threads computes at a time
  // since their threads wait for each other actively.
  enum class Use : std::uint8_t { kernels, ggml };

  // Waits for the run's turn, at most until `control` stops it: ended by its deadline, or half a millisecond after a
  // cancel. Throws SystemError if a thread cannot be started.
  ThreadLease(int threads, RunControl& control, Use use = Use::kernels);
  ~ThreadLease();
  ThreadLease(const ThreadLease&) = delete;
  ThreadLease& operator=(const ThreadLease&) = delete;

  // False: the control stopped the run while it waited.
  explicit operator bool() const { return leased_; }
  // Threads that compute now, the caller's included.
  int granted() const { return team_ ? team_->granted.load(std::memory_order_relaxed) : 1; }

  // Runs that wait for their turn now, in this process.
  static int waiting();

  // Does all of the work, the calling thread taking part. Allocates nothing.
  void run(PoolWork& work);

  // A pool of ggml's own for this run, and the number of threads for a graph that was made for `threads`. Kept until
  // the lease ends; made by the first call that needs another.
  struct GgmlPool {
    ggml_threadpool* pool;
    int threads;
  };
  GgmlPool ggml_pool(int threads);

 private:
  const int threads_;
  const Use use_;
  const bool nested_;
  bool leased_ = true;
  ThreadTeam* team_ = nullptr;  // null: this thread alone. Of a nested run: that of the run around it
  GgmlPool ggml_{nullptr, 0};
};

}  // namespace graft
