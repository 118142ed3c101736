#include "exec/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ggml_cpu.h"
#include "ggml.h"

namespace graft {
namespace {

// Steps in a row with a free CPU after which a run takes one more worker: a CPU that is free only between two runs of
// another caller is left to it.
constexpr int kStepsBeforeMore = 16;

// The calling thread's affinity; empty if the machine has more CPUs than a cpu_set_t holds.
cpu_set_t allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_ZERO(&set);
  return set;
}

class ThreadPool final : ThreadTeam::Owner {
 public:
  // Never destroyed: workers may be asleep in it at exit.
  static ThreadPool& current() {
    static std::atomic<ThreadPool*>& pool = pointer();
    return *pool.load(std::memory_order_acquire);
  }

  int waiting() {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(waiters_.size());
  }

  // Null: `control` stopped the wait.
  ThreadTeam* lease(int threads, RunControl& control, ThreadLease::Use use) {
    std::unique_lock lock(mutex_);
    if (admits(use)) {
      begin_run(use);
    } else if (!wait(lock, control, use)) {
      return nullptr;
    }
    ThreadTeam* taken = nullptr;
    try {
      ThreadTeam& team = *(taken = &take_team(threads));
      team.planned = threads;
      team.spare_steps = 0;
      team.granted.store(1, std::memory_order_relaxed);
      team.caller_cpu = sched_getcpu();
      if (use == ThreadLease::Use::kernels) {
        // A worker for each thread that was asked for, for when there are CPUs for them.
        while (static_cast<int>(workers_.size()) < threads - 1) start_worker(threads);
        resize(team);
      } else {  // ggml has threads of its own
        count(load_.threads, threads - 1);
      }
    } catch (...) {
      if (taken != nullptr) idle_teams_.push_back(taken);
      end_run(use, 1);
      throw;
    }
    return taken;
  }

  void release(ThreadTeam& team, ThreadLease::Use use) {
    const std::lock_guard lock(mutex_);
    idle_teams_.push_back(&team);  // has the capacity
    end_run(use, use == ThreadLease::Use::ggml ? team.planned : team.granted.load(std::memory_order_relaxed));
  }

  PoolLoad& load() { return load_; }

  ggml_threadpool* take_ggml_pool(int threads) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find(ggml_pools_, threads, &IdleGgmlPool::threads);
      if (found != ggml_pools_.end()) {
        ggml_threadpool* const pool = found->pool;
        *found = ggml_pools_.back();
        ggml_pools_.pop_back();
        return pool;
      }
    }
    {
      const std::lock_guard lock(mutex_);
      ggml_pools_.reserve(++made_ggml_pools_);  // giving one back must not allocate
    }
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    params.poll = threads == 1 ? 0 : 1;  // 131,072 rounds before a worker sleeps, ggml's smallest nonzero number
    ggml_threadpool* const pool = ggml_cpu().threadpool_new(&params);
    GRAFT_CHECK(SystemError, pool != nullptr, "cannot start a ggml pool of ", threads, " threads");
    return pool;
  }

  void return_ggml_pool(ggml_threadpool* pool, int threads) {
    const std::lock_guard lock(mutex_);
    ggml_pools_.push_back({pool, threads});
  }

 private:
  struct Waiter {
    int priority;
    ThreadLease::Use use;
    bool admitted = false;
    std::condition_variable turn;
  };
  struct IdleGgmlPool {
    ggml_threadpool* pool;
    int threads;
  };

  static std::atomic<ThreadPool*>& pointer() {
    static std::atomic<ThreadPool*> pool = [] {
      // A forked child has no workers, and a thread that no longer exists may hold the lock: the child gets a new pool
      // and leaks the old one.
      pthread_atfork(nullptr, nullptr, [] {
        this_thread_computes() = false;
        pointer().store(new ThreadPool, std::memory_order_release);
      });
      return new ThreadPool;
    }();
    return pool;
  }

  // Written under the lock only.
  static void count(std::atomic<int>& counter, int change) {
    counter.store(counter.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }

  bool admits(ThreadLease::Use use) const {
    return load_.runs.load(std::memory_order_relaxed) < load_.cpus && (use == ThreadLease::Use::kernels || !ggml_runs_);
  }

  // Waits until end_run() begins this run. False: `control` stopped the wait.
  bool wait(std::unique_lock<std::mutex>& lock, RunControl& control, ThreadLease::Use use) {
    Waiter self{control.priority, use, false, {}};
    waiters_.push_back(&self);
    while (!self.admitted) {
      if (control.should_stop()) {
        std::erase(waiters_, &self);
        return false;
      }
      if (control.cancel != nullptr) {
        self.turn.wait_for(lock, kCancelPoll);
      } else if (control.has_deadline) {
        self.turn.wait_until(lock, control.deadline);
      } else {
        self.turn.wait(lock);
      }
    }
    return true;
  }

  // With the caller's thread alone.
  void begin_run(ThreadLease::Use use) {
    if (use == ThreadLease::Use::ggml) ggml_runs_ = true;
    count(load_.runs, 1);
    count(load_.threads, 1);
  }

  // Ends a run of so many threads and begins those that wait for it.
  void end_run(ThreadLease::Use use, int threads) {
    if (use == ThreadLease::Use::ggml) ggml_runs_ = false;
    count(load_.runs, -1);
    count(load_.threads, -threads);
    for (;;) {
      Waiter* next = nullptr;  // the first of the highest priority
      for (Waiter* waiter : waiters_)
        if (admits(waiter->use) && (next == nullptr || waiter->priority > next->priority)) next = waiter;
      if (next == nullptr) return;
      std::erase(waiters_, next);
      next->admitted = true;
      begin_run(next->use);
      next->turn.notify_one();
    }
  }

  // An idle team, best with workers for so many threads: they may still be awake.
  ThreadTeam& take_team(int threads) {
    if (idle_teams_.empty()) {
      idle_teams_.reserve(teams_ + 1);
      idle_teams_.push_back(new ThreadTeam(load_, *this));  // after reserve(), which may fail
      ++teams_;
    }
    const auto fits = [&](const ThreadTeam* team) { return team->attached == threads - 1; };
    const auto found = std::find_if(idle_teams_.rbegin(), idle_teams_.rend(), fits);
    std::swap(found == idle_teams_.rend() ? idle_teams_.back() : *found, idle_teams_.back());
    ThreadTeam& team = *idle_teams_.back();
    idle_teams_.pop_back();
    return team;
  }

  // How many threads the team should have now.
  int allowed(const ThreadTeam& team) const {
    return load_.fair(team.granted.load(std::memory_order_relaxed), team.planned);
  }

  void let_go(ThreadTeam& team) {
    Worker& worker = team.detach();
    worker.join(nullptr, 0);
    idle_workers_.push_back(&worker);  // has the capacity
  }

  // One without a team, else of an idle team; null if all workers compute.
  Worker* idle_worker() {
    if (!idle_workers_.empty()) {
      Worker* const worker = idle_workers_.back();
      idle_workers_.pop_back();
      return worker;
    }
    for (ThreadTeam* team : idle_teams_)
      if (team->attached > 0) return &team->detach();
    return nullptr;
  }

  void adapt(ThreadTeam& team) noexcept override {
    const bool fewer = allowed(team) < team.granted.load(std::memory_order_relaxed);
    if (!fewer && ++team.spare_steps < kStepsBeforeMore) return;
    team.spare_steps = 0;
    const std::lock_guard lock(mutex_);
    resize(team);
  }

  // Takes workers or lets some go, for as many threads as the team should have.
  void resize(ThreadTeam& team) {
    const int threads = allowed(team);
    while (team.attached > threads - 1) let_go(team);
    while (team.attached < threads - 1) {
      Worker* const worker = idle_worker();
      if (worker == nullptr) break;
      team.attach(*worker);
    }
    keep_off_the_caller(team);
    count(load_.threads, team.attached + 1 - team.granted.load(std::memory_order_relaxed));
    team.granted.store(team.attached + 1, std::memory_order_relaxed);
  }

  // Keeps the workers off the caller's CPU. Linux may wake a worker there (seen for whole seconds on virtual machines
  // of two CPUs), where it waits behind the spinning caller: runs then take as long as with one thread. Costs a system
  // call per worker whenever the caller has moved.
  void keep_off_the_caller(ThreadTeam& team) {
    const int cpu = team.caller_cpu, threads = team.attached + 1;
    if (cpu < 0 || threads > load_.cpus) return;
    cpu_set_t others;
    bool known = false;
    team.for_each_worker([&](Worker& worker) {
      if (worker.kept_off == cpu) return;
      if (!std::exchange(known, true)) {
        others = allowed_cpus();
        if (CPU_COUNT(&others) < threads) others = first_cpus_;  // the caller was bound after the pool was made
        CPU_CLR(static_cast<std::size_t>(cpu), &others);
      }
      if (CPU_COUNT(&others) < threads - 1) return;
      // If this is not permitted, the kernel places the workers.
      pthread_setaffinity_np(worker.thread.native_handle(), sizeof(others), &others);
      worker.kept_off = cpu;
    });
  }

  void start_worker(int threads) {
    workers_.reserve(workers_.size() + 1);
    idle_workers_.reserve(workers_.size() + 1);
    auto worker = std::make_unique<Worker>();
    // Signals go to the caller: a handler of the application never runs on a worker.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      worker->thread = std::thread([self = worker.get()] { self->loop(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      try {
        throw;
      } catch (const std::system_error& error) {
        throw SystemError(str("cannot start thread ", workers_.size() + 2, " of ", threads, ": ", error.what()));
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    idle_workers_.push_back(worker.get());
    workers_.push_back(std::move(worker));
  }

  std::mutex mutex_;
  PoolLoad load_;
  const cpu_set_t first_cpus_ = allowed_cpus();
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_workers_;    // without a team
  std::vector<ThreadTeam*> idle_teams_;  // the last used one last; their workers may be taken
  std::size_t teams_ = 0;
  std::vector<Waiter*> waiters_;  // the longest waiting first
  std::vector<IdleGgmlPool> ggml_pools_;
  std::size_t made_ggml_pools_ = 0;
  bool ggml_runs_ = false;
};

}  // namespace

namespace {

// Each run takes some of the stack of its thread.
constexpr int kMostRunsWithinRuns = 32;

int& runs_within_runs() {
  thread_local int depth = 0;
  return depth;
}

}  // namespace

int ThreadLease::waiting() { return ThreadPool::current().waiting(); }

ThreadLease::ThreadLease(int threads, RunControl& control, Use use)
    : threads_(threads), use_(use), nested_(this_thread_computes()) {
  if (nested_) {
    GRAFT_CHECK(ExecutionError, runs_within_runs() < kMostRunsWithinRuns, "runs within kernels of other runs: at most ",
                kMostRunsWithinRuns, " levels are allowed");
    ++runs_within_runs();
  }
  if (!nested_ && threads > 1) {
    team_ = ThreadPool::current().lease(threads, control, use);
    leased_ = team_ != nullptr;
    if (!leased_) return;
  } else if (nested_) {
    if (threads > 1 && use == Use::kernels) team_ = ThreadTeam::between_steps();
  } else {
    ThreadPool::current().load().single.fetch_add(1, std::memory_order_relaxed);
  }
  this_thread_computes() = true;
}

ThreadLease::~ThreadLease() {
  if (!leased_) return;
  if (ggml_.pool != nullptr) ThreadPool::current().return_ggml_pool(ggml_.pool, ggml_.threads);
  if (nested_) {
    --runs_within_runs();
    return;
  }
  this_thread_computes() = false;
  if (team_ != nullptr) {
    ThreadPool::current().release(*team_, use_);
  } else {
    ThreadPool::current().load().single.fetch_sub(1, std::memory_order_relaxed);
  }
}

void ThreadLease::run(PoolWork& work) {
  if (team_ != nullptr) return nested_ ? team_->run_within(work, threads_) : team_->run(work);
  // The tasks of all planned threads, one after the other.
  while (const int tasks = work.next())
    for (int i = 0; i < threads_ * tasks; ++i) work.task(i, threads_ * tasks);
}

ThreadLease::GgmlPool ThreadLease::ggml_pool(int threads) {
  const int count = nested_ ? 1 : threads;
  if (ggml_.pool == nullptr || ggml_.threads != count) {
    if (ggml_.pool != nullptr) ThreadPool::current().return_ggml_pool(ggml_.pool, ggml_.threads);
    ggml_ = {nullptr, 0};
    ggml_ = {ThreadPool::current().take_ggml_pool(count), count};
  }
  return ggml_;
}

}  // namespace graft
