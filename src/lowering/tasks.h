#pragma once

#include <cstdint>

#include "lowering/launch.h"

namespace graft {

inline constexpr int kMaxTasksPerThread = 4;

// Bytes of all elements that a launch reads and writes; repeated elements (stride 0) count once.
std::uint64_t touched_bytes(const Launch& launch);

// Whether a launch of one of graft's kernels should run on a single thread: Kernel::parallel_from.
bool has_little_work(const Launch& launch);

// The work of a launch of one of graft's kernels, in units of the work from which a second thread pays: at 1, two
// threads take as long as one.
double relative_work(const Launch& launch);

// Tasks per thread for each phase of the launch. With several, other threads steal the tasks that a thread has not
// begun when its core is slow or busy. Each task costs a fraction of a microsecond, so launches with little work have
// one per thread, and so do ggml's ops.
int tasks_per_thread(const Launch& launch);

// The largest number of tasks of a phase of a launch on this many threads.
int max_tasks(int threads);

}  // namespace graft
