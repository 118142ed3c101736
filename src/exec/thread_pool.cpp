#include "exec/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/ggml_cpu.h"
#include "base/spin.h"
#include "ggml.h"

namespace graft {
namespace {

constexpr int kMaxThreads = 512;

// A step whose tasks threads may take: its number, which only grows, the tasks per thread, and the threads of the run.
// No tasks: no run is active.
struct OpenStep {
  static constexpr int kThreadBits = 10;
  static constexpr int kTaskBits = 3;
  static_assert(kMaxThreads < 1 << kThreadBits && kMaxTasksPerThread < 1 << kTaskBits);
  std::uint64_t epoch;
  int tasks_per_thread;
  int threads;

  static OpenStep of(std::uint64_t word) {
    return {word >> (kThreadBits + kTaskBits), static_cast<int>(word >> kThreadBits & ((1u << kTaskBits) - 1)),
            static_cast<int>(word & ((1u << kThreadBits) - 1))};
  }
  std::uint64_t word() const {
    return (epoch << kTaskBits | static_cast<std::uint64_t>(tasks_per_thread)) << kThreadBits |
           static_cast<std::uint64_t>(threads);
  }
};

// The calling thread's affinity; empty if the machine has more CPUs than a cpu_set_t holds.
cpu_set_t allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_ZERO(&set);
  return set;
}

}  // namespace

struct ThreadPool::Impl {
  // For task i of each thread: the last step in which it was taken. A thread takes it by storing the step's number. A
  // step is done only when all its tasks were taken, so a late thread finds none.
  struct alignas(64) Tasks {
    std::atomic<std::uint64_t> taken[kMaxTasksPerThread]{};
  };
  struct alignas(64) Worker {
    std::atomic<std::uint32_t> wakes{0};
    std::atomic<bool> asleep{false};
    std::thread thread;
  };

  std::mutex mutex;
  std::vector<std::unique_ptr<Worker>> workers;  // thread i + 1 of a run
  std::unique_ptr<Tasks[]> tasks{new Tasks[kMaxThreads]};
  std::unique_ptr<ggml_threadpool, void (*)(ggml_threadpool*)> caller_pool{nullptr, ggml_cpu().threadpool_free};
  std::unique_ptr<ggml_threadpool, void (*)(ggml_threadpool*)> pool{nullptr, ggml_cpu().threadpool_free};
  int pool_threads = 0;
  const int cpus = usable_cpus();
  const cpu_set_t first_cpus = allowed_cpus();
  int kept_off = -1;  // the CPU that workers avoid

  PoolWork* work = nullptr;  // the current run's, written before its first step is published

  alignas(64) std::atomic<std::uint64_t> open{0};
  alignas(64) std::atomic<int> finished{0};
  alignas(64) std::atomic<int> sleeping{0};

  void publish(OpenStep step) {
    // Pairs with wait(): either the worker going to sleep sees the step, or this sees that it sleeps.
    open.store(step.word(), std::memory_order_seq_cst);
    if (step.tasks_per_thread == 0 || sleeping.load(std::memory_order_seq_cst) == 0) return;
    for (int i = 0; i < step.threads - 1; ++i) {
      Worker& worker = *workers[static_cast<std::size_t>(i)];
      if (!worker.asleep.load(std::memory_order_relaxed)) continue;
      worker.wakes.fetch_add(1, std::memory_order_release);
      worker.wakes.notify_one();
    }
  }

  // Begins the step after `done`, or ends the run.
  void advance(OpenStep done) {
    finished.store(0, std::memory_order_relaxed);
    publish({done.epoch + 1, work->next(), done.threads});
  }

  // Runs untaken tasks of the step, first those of this thread: its caches may hold their data from the step before.
  void take_tasks(OpenStep step, int thread) {
    const int all = step.threads * step.tasks_per_thread;
    for (int i = 0; i < step.threads; ++i) {
      const int owner = thread + i < step.threads ? thread + i : thread + i - step.threads;
      for (int k = 0; k < step.tasks_per_thread; ++k) {
        std::atomic<std::uint64_t>& taken = tasks[static_cast<std::size_t>(owner)].taken[k];
        std::uint64_t last = taken.load(std::memory_order_relaxed);
        if (last >= step.epoch || !taken.compare_exchange_strong(last, step.epoch, std::memory_order_acq_rel)) continue;
        // The step cannot end before this task does, so data of the run may be read from here on.
        work->task(owner * step.tasks_per_thread + k, all);
        if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 == all) return advance(step);
      }
    }
  }

  // On a worker: waits until `open` differs from `word`.
  void wait(std::uint64_t word, Worker& self) {
    const auto changed = [&] { return open.load(std::memory_order_seq_cst) != word; };
    const OpenStep step = OpenStep::of(word);
    const int rounds = step.tasks_per_thread == 0 ? kIdleSpinRounds : kSpinRounds;
    if (spin_until(step.threads <= cpus ? rounds : 0, changed)) return;
    const std::uint32_t wakes = self.wakes.load(std::memory_order_acquire);
    self.asleep.store(true, std::memory_order_relaxed);
    sleeping.fetch_add(1, std::memory_order_seq_cst);
    if (!changed()) self.wakes.wait(wakes, std::memory_order_acquire);
    sleeping.fetch_sub(1, std::memory_order_relaxed);
    self.asleep.store(false, std::memory_order_relaxed);
  }

  void worker_loop(Worker& self, int thread) {
    for (;;) {
      const std::uint64_t word = open.load(std::memory_order_acquire);
      const OpenStep step = OpenStep::of(word);
      if (thread < step.threads) take_tasks(step, thread);
      wait(word, self);
    }
  }

  // Keeps the workers off the caller's CPU. Linux may wake a worker there (seen for whole seconds on virtual machines
  // of two CPUs), where it waits behind the spinning caller: runs then take as long as with one thread. Costs a system
  // call per worker whenever the caller has moved.
  void keep_off_the_caller(int threads) {
    const int cpu = sched_getcpu();
    if (cpu == kept_off || cpu < 0 || threads > cpus) return;
    cpu_set_t others = allowed_cpus();
    if (CPU_COUNT(&others) < threads) others = first_cpus;  // the caller was bound after the pool was made
    CPU_CLR(static_cast<std::size_t>(cpu), &others);
    if (CPU_COUNT(&others) < threads - 1) return;
    // If this is not permitted, the kernel places the workers.
    for (const auto& worker : workers) pthread_setaffinity_np(worker->thread.native_handle(), sizeof(others), &others);
    kept_off = cpu;
  }

  void run(PoolWork& job, int threads) {
    work = &job;
    keep_off_the_caller(threads);
    advance({OpenStep::of(open.load(std::memory_order_relaxed)).epoch, 0, threads});
    for (;;) {
      const std::uint64_t word = open.load(std::memory_order_acquire);
      const OpenStep step = OpenStep::of(word);
      if (step.tasks_per_thread == 0) return;
      take_tasks(step, 0);
      const auto changed = [&] { return open.load(std::memory_order_acquire) != word; };
      if (!spin_until(threads <= cpus ? kSpinRounds : 0, changed))
        while (!changed()) sched_yield();
    }
  }

  void grow(int count) {
    while (static_cast<int>(workers.size()) < count - 1) {
      auto worker = std::make_unique<Worker>();
      // Signals go to the caller: a handler of the application never runs on a worker.
      sigset_t all;
      sigset_t before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        worker->thread = std::thread(
            [this, self = worker.get(), id = static_cast<int>(workers.size()) + 1] { worker_loop(*self, id); });
      } catch (const std::system_error& error) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw SystemError(str("cannot start thread ", workers.size() + 1, " of ", count, ": ", error.what()));
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      workers.push_back(std::move(worker));
      kept_off = -1;
    }
  }

  // Never destroyed: workers may be asleep in it at exit.
  static std::atomic<Impl*>& current() {
    static std::atomic<Impl*> pool = [] {
      // A forked child has no workers, and a thread that no longer exists may hold the lock: the child gets a new pool
      // and leaks the old one.
      pthread_atfork(nullptr, nullptr, [] { current().store(new Impl, std::memory_order_release); });
      return new Impl;
    }();
    return pool;
  }
};

namespace {

// CPUs allowed by cgroup v2 ("max 100000" or "150000 100000") or v1; 0 if unlimited.
int cgroup_cpus() {
  double quota = -1;
  double period = 0;
  std::string word;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> word >> period) {
    quota = word == "max" ? -1 : std::strtod(word.c_str(), nullptr);
  } else {
    std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(v1_quota >> quota) || !(v1_period >> period)) return 0;
  }
  if (quota <= 0 || period <= 0) return 0;
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

}  // namespace

int usable_cpus() {
  const cpu_set_t set = allowed_cpus();
  int cpus = CPU_COUNT(&set);
  if (const int limit = cgroup_cpus(); limit > 0) cpus = std::min(cpus, limit);
  return std::clamp(cpus, 1, kMaxThreads);
}

int resolve_threads(int requested) {
  GRAFT_CHECK(InvalidArgument, requested >= 0 && requested <= kMaxThreads, "threads must be in 1..", kMaxThreads,
              " (or 0 for the default), got ", requested);
  if (requested > 0) return requested;
  if (const char* text = std::getenv("GRAFT_THREADS"); text && *text) {
    int threads = 0;
    const char* end = text + std::strlen(text);
    const auto [parsed, error] = std::from_chars(text, end, threads);
    GRAFT_CHECK(InvalidArgument, error == std::errc() && parsed == end && threads >= 1 && threads <= kMaxThreads,
                "GRAFT_THREADS must be a number in 1..", kMaxThreads, ", got '", text, "'");
    return threads;
  }
  return usable_cpus();
}

ThreadPool::ThreadPool(int threads)
    : impl_(*Impl::current().load(std::memory_order_acquire)), lock_(impl_.mutex), threads_(threads) {
  impl_.grow(threads);
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::run(PoolWork& work) {
  if (threads_ > 1) return impl_.run(work, threads_);
  while (const int tasks = work.next())
    for (int i = 0; i < tasks; ++i) work.task(i, tasks);
}

ggml_threadpool* ThreadPool::ggml_pool(int threads) {
  auto& pool = threads == 1 ? impl_.caller_pool : impl_.pool;
  if (!pool || (threads > 1 && impl_.pool_threads < threads)) {
    pool.reset();
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    params.poll = threads == 1 ? 0 : 1;  // 131,072 rounds before a worker sleeps, ggml's smallest nonzero number
    pool.reset(ggml_cpu().threadpool_new(&params));
    GRAFT_CHECK(SystemError, pool, "cannot start a ggml pool of ", threads, " threads");
    if (threads > 1) impl_.pool_threads = threads;
  }
  return pool.get();
}

}  // namespace graft
