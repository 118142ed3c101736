#include "run/thread_team.h"

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

// A step that is open for threads to take shares of: its number, which only grows, the shares of each thread, and the
// threads of the run. No shares: no run is under way.
struct OpenStep {
  static constexpr int kThreadBits = 10;
  static constexpr int kShareBits = 3;
  static_assert(kMaxThreads < 1 << kThreadBits && kMostSharesPerThread < 1 << kShareBits);
  std::uint64_t epoch;
  int shares_each;
  int threads;

  static OpenStep of(std::uint64_t word) {
    return {word >> (kThreadBits + kShareBits), static_cast<int>(word >> kThreadBits & ((1u << kShareBits) - 1)),
            static_cast<int>(word & ((1u << kThreadBits) - 1))};
  }
  std::uint64_t word() const {
    return (epoch << kShareBits | static_cast<std::uint64_t>(shares_each)) << kThreadBits |
           static_cast<std::uint64_t>(threads);
  }
};

// The calling thread's; empty when the machine has more than a cpu_set_t holds.
cpu_set_t allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_ZERO(&set);
  return set;
}

}  // namespace

struct ThreadTeam::Impl {
  // Of share i of each thread: the last step in which somebody took it. A thread takes it by moving this to the step's
  // number; a step is done only when all its shares were taken, so that a thread that comes late finds nothing.
  struct alignas(64) Shares {
    std::atomic<std::uint64_t> taken[kMostSharesPerThread]{};
  };
  struct alignas(64) Worker {
    std::atomic<std::uint32_t> wakes{0};
    std::atomic<bool> asleep{false};
    std::thread thread;
  };

  std::mutex mutex;
  std::vector<std::unique_ptr<Worker>> workers;  // thread i + 1 of a run
  std::unique_ptr<Shares[]> shares{new Shares[kMaxThreads]};
  std::unique_ptr<ggml_threadpool, void (*)(ggml_threadpool*)> caller_pool{nullptr, ggml_cpu().threadpool_free};
  std::unique_ptr<ggml_threadpool, void (*)(ggml_threadpool*)> pool{nullptr, ggml_cpu().threadpool_free};
  int pool_threads = 0;
  const int cpus = usable_cpus();
  const cpu_set_t born_on = allowed_cpus();
  int kept_off = -1;  // the CPU that no worker may use

  TeamWork* work = nullptr;  // of the run under way: written before its first step is published

  alignas(64) std::atomic<std::uint64_t> open{0};
  alignas(64) std::atomic<int> finished{0};
  alignas(64) std::atomic<int> sleepers{0};

  void publish(OpenStep step) {
    // Pairs with sleep(): either the sleeper sees the step or this sees the sleeper.
    open.store(step.word(), std::memory_order_seq_cst);
    if (step.shares_each == 0 || sleepers.load(std::memory_order_seq_cst) == 0) return;
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

  // Does shares of the step that nobody has begun, first those of the thread: caches keep what they hold of them from
  // step to step.
  void help(OpenStep step, int thread) {
    const int all = step.threads * step.shares_each;
    for (int i = 0; i < step.threads; ++i) {
      const int owner = thread + i < step.threads ? thread + i : thread + i - step.threads;
      for (int k = 0; k < step.shares_each; ++k) {
        std::atomic<std::uint64_t>& taken = shares[static_cast<std::size_t>(owner)].taken[k];
        std::uint64_t last = taken.load(std::memory_order_relaxed);
        if (last >= step.epoch || !taken.compare_exchange_strong(last, step.epoch, std::memory_order_acq_rel)) continue;
        // The step cannot end before this share does: what belongs to the run may be read from here on.
        work->share(owner * step.shares_each + k, all);
        if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 == all) return advance(step);
      }
    }
  }

  // On a worker: until something other than `word` is open.
  void wait(std::uint64_t word, Worker& self) {
    const auto changed = [&] { return open.load(std::memory_order_seq_cst) != word; };
    const OpenStep step = OpenStep::of(word);
    const int rounds = step.shares_each == 0 ? kIdleSpinRounds : kSpinRounds;
    if (spin_until(step.threads <= cpus ? rounds : 0, changed)) return;
    const std::uint32_t wakes = self.wakes.load(std::memory_order_acquire);
    self.asleep.store(true, std::memory_order_relaxed);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!changed()) self.wakes.wait(wakes, std::memory_order_acquire);
    sleepers.fetch_sub(1, std::memory_order_relaxed);
    self.asleep.store(false, std::memory_order_relaxed);
  }

  void work_for_ever(Worker& self, int thread) {
    for (;;) {
      const std::uint64_t word = open.load(std::memory_order_acquire);
      const OpenStep step = OpenStep::of(word);
      if (thread < step.threads) help(step, thread);
      wait(word, self);
    }
  }

  // Keeps the workers off the caller's CPU. Linux may wake a worker there (seen for whole seconds on virtual
  // machines of two CPUs), where it waits behind the spinning caller: runs then take as long as with one thread. Costs
  // a system call for each worker, when the caller has moved.
  void keep_off_the_caller(int threads) {
    const int cpu = sched_getcpu();
    if (cpu == kept_off || cpu < 0 || threads > cpus) return;
    cpu_set_t others = allowed_cpus();
    if (CPU_COUNT(&others) < threads) others = born_on;  // a caller that was bound after the team was made
    CPU_CLR(static_cast<std::size_t>(cpu), &others);
    if (CPU_COUNT(&others) < threads - 1) return;
    // Where this is not permitted, the workers stay where the kernel wants them.
    for (const auto& worker : workers) pthread_setaffinity_np(worker->thread.native_handle(), sizeof(others), &others);
    kept_off = cpu;
  }

  void run(TeamWork& job, int threads) {
    work = &job;
    keep_off_the_caller(threads);
    advance({OpenStep::of(open.load(std::memory_order_relaxed)).epoch, 0, threads});
    for (;;) {
      const std::uint64_t word = open.load(std::memory_order_acquire);
      const OpenStep step = OpenStep::of(word);
      if (step.shares_each == 0) return;
      help(step, 0);
      const auto changed = [&] { return open.load(std::memory_order_acquire) != word; };
      if (!spin_until(threads <= cpus ? kSpinRounds : 0, changed))
        while (!changed()) sched_yield();
    }
  }

  void grow(int count) {
    while (static_cast<int>(workers.size()) < count - 1) {
      auto worker = std::make_unique<Worker>();
      // Signals are the caller's: a handler of the application never runs on a worker.
      sigset_t all;
      sigset_t before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        worker->thread = std::thread(
            [this, self = worker.get(), id = static_cast<int>(workers.size()) + 1] { work_for_ever(*self, id); });
      } catch (const std::system_error& error) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw SystemError(str("cannot start thread ", workers.size() + 1, " of ", count, ": ", error.what()));
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      workers.push_back(std::move(worker));
      kept_off = -1;
    }
  }

  // Never destroyed: workers may sleep in it when the process ends.
  static std::atomic<Impl*>& current() {
    static std::atomic<Impl*> team = [] {
      // The workers do not exist in a forked child and the lock may be held by a thread that is gone: the child gets a
      // new team and leaks the old one.
      pthread_atfork(nullptr, nullptr, [] { current().store(new Impl, std::memory_order_release); });
      return new Impl;
    }();
    return team;
  }
};

namespace {

// CPUs allowed by cgroup v2 ("max 100000" or "150000 100000") or v1; 0 when there is no limit.
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

ThreadTeam::ThreadTeam(int threads)
    : impl_(*Impl::current().load(std::memory_order_acquire)), lock_(impl_.mutex), threads_(threads) {
  impl_.grow(threads);
}

ThreadTeam::~ThreadTeam() = default;

void ThreadTeam::run(TeamWork& work) {
  if (threads_ > 1) return impl_.run(work, threads_);
  while (const int shares = work.next())
    for (int i = 0; i < shares; ++i) work.share(i, shares);
}

ggml_threadpool* ThreadTeam::ggml_pool(int threads) {
  auto& pool = threads == 1 ? impl_.caller_pool : impl_.pool;
  if (!pool || (threads > 1 && impl_.pool_threads < threads)) {
    pool.reset();
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    params.poll = threads == 1 ? 0 : 1;  // 131,072 rounds before a worker sleeps, ggml's smallest number but none
    pool.reset(ggml_cpu().threadpool_new(&params));
    GRAFT_CHECK(SystemError, pool, "cannot start a ggml pool of ", threads, " threads");
    if (threads > 1) impl_.pool_threads = threads;
  }
  return pool.get();
}

}  // namespace graft
