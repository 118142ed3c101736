#include "exec/cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/check.h"

namespace graft {
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
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails if the machine has more CPUs than a cpu_set_t holds: one CPU then.
  if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_ZERO(&set);
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

}  // namespace graft
