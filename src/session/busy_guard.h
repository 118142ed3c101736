#pragma once

#include <atomic>

#include "base/check.h"

namespace graft {

inline constexpr const char* kSessionInUse = "the session is in use by another thread; make one session per thread";

// A lock held for the time of a call; throws Busy with `message` when it is held already.
class BusyGuard {
 public:
  struct Wait {};

  BusyGuard(std::atomic_flag& busy, const char* message) : busy_(busy) {
    GRAFT_CHECK(Busy, !busy_.test_and_set(std::memory_order_acquire), message);
  }
  // Waits until it is free instead.
  BusyGuard(std::atomic_flag& busy, Wait) : busy_(busy) {
    while (busy_.test_and_set(std::memory_order_acquire)) busy_.wait(true, std::memory_order_relaxed);
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
