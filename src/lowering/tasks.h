#pragma once

#include <cstdint>

#include "lowering/launch.h"

namespace graft {

inline constexpr int kMaxTasksPerThread = 4;

// Bytes of all elements that a launch reads and writes, those of repeated ones once.
std::uint64_t touched_bytes(const Launch& launch);

// Whether one thread should run a launch of a kernel of graft alone: Kernel::parallel_from.
bool has_little_work(const Launch& launch);

// How many tasks of each phase of the launch a thread gets. With several, the other threads take over what a thread
// has not begun when its core is slow or busy with something else; each costs a fraction of a microsecond, so launches
// with little to do have one, and so have ops of ggml.
int tasks_per_thread(const Launch& launch);

// The most tasks that a phase of a launch has on so many threads.
int max_tasks(int threads);

}  // namespace graft
