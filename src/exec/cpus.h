#pragma once

namespace graft {

inline constexpr int kMaxThreads = 512;

// CPUs that this process may use: its affinity mask, bounded by the cgroup's CPU quota; in 1..kMaxThreads.
int usable_cpus();

// The number of threads for a request (0: GRAFT_THREADS, else usable_cpus()). Throws InvalidArgument when the request
// or GRAFT_THREADS is not a number in 1..kMaxThreads.
int resolve_threads(int requested);

}  // namespace graft
