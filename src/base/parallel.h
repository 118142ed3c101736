#pragma once

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread.h"

namespace graft {

// Calls part(0) ... part(parts - 1), each on a thread of its own but the first, which the caller does; throws the first
// exception of a part when all have ended. When threads cannot be started, the caller does their parts.
template <typename Part>
void in_parallel(int parts, const Part& part) {
  std::mutex mutex;
  std::exception_ptr error;
  const auto guarded = [&](int i) noexcept {
    try {
      part(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  int started = 1;
  {
    std::vector<std::jthread> others;
    try {
      others.reserve(static_cast<std::size_t>(parts));  // a thread that has begun must get its place
      for (; started < parts; ++started) others.emplace_back(guarded, started);
    } catch (...) {  // fewer threads
    }
    guarded(0);
    for (int i = started; i < parts; ++i) guarded(i);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace graft
