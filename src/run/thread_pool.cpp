#include "run/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/check.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace graft {
namespace {

constexpr int kMaxThreads = 512;
// ggml spins 131,072 rounds per unit before a worker sleeps: about 2 ms, longer than the gap between two decode steps.
constexpr std::uint32_t kSpinUnits = 1;

struct Pool {
  std::mutex mutex;
  ggml_threadpool* threads = nullptr;
  int size = 0;
};

std::atomic<Pool*>& current_pool() {
  static std::atomic<Pool*> pool = [] {
    // The worker threads do not exist in a forked child and the lock may be held by a thread that is gone: the child
    // gets a new pool and leaks the old one.
    pthread_atfork(nullptr, nullptr, [] { current_pool().store(new Pool, std::memory_order_release); });
    return new Pool;
  }();
  return pool;
}

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
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
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

ThreadPoolLease::ThreadPoolLease(int threads) {
  Pool& pool = *current_pool().load(std::memory_order_acquire);
  lock_ = std::unique_lock(pool.mutex);
  if (pool.size < threads) {
    if (pool.threads) ggml_threadpool_free(pool.threads);
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    params.poll = kSpinUnits;
    pool.threads = ggml_threadpool_new(&params);
    pool.size = pool.threads ? threads : 0;
    GRAFT_CHECK(SystemError, pool.threads, "cannot start a pool of ", threads, " threads");
  }
  pool_ = pool.threads;
}

ThreadPoolLease::~ThreadPoolLease() = default;

}  // namespace graft
