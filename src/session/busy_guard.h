#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "base/check.h"
#include "session/wait_limit.h"

namespace graft {

inline constexpr const char* kSessionInUse = "the session is in use by another thread; make one session per thread";

// A lock held for the time of a call; throws Busy with `message` when it is held already.
class BusyGuard {
 public:
  BusyGuard(std::atomic_flag& busy, const char* message) : busy_(busy) {
    GRAFT_CHECK(Busy, !busy_.test_and_set(std::memory_order_acquire), message);
  }
  // Waits until it is free instead. Throws Cancelled when the limit ends the wait.
  BusyGuard(std::atomic_flag& busy, const WaitLimit& limit) : busy_(busy) {
    while (busy_.test_and_set(std::memory_order_acquire)) {
      if (!limit.exists()) {
        busy_.wait(true, std::memory_order_relaxed);
        continue;
      }
      const Clock::time_point now = Clock::now();
      if (const std::exception_ptr error = limit.error(now)) std::rethrow_exception(error);
      std::this_thread::sleep_until(std::min(limit.next_look(now), now + kCancelPoll));
    }
  }
  ~BusyGuard() {
    busy_.clear(std::memory_order_release);
    busy_.notify_one();
  }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  std::atomic_flag& busy_;
};

}  // namespace graft
