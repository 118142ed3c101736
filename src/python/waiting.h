#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/clock.h"

namespace graft {

// Seconds to a deadline; 0: none.
inline std::optional<Clock::time_point> deadline_after(double seconds) {
  if (seconds <= 0) return std::nullopt;
  return Clock::now() + duration_of(seconds);
}

// How long Python waits without looking whether it got a signal.
inline constexpr std::chrono::milliseconds kSignalPoll{50};

// Calls `wait(milliseconds)` without the GIL until it returns true, at most for so many seconds (below 0: any time),
// and returns whether it did. A signal ends it with what Python's handler raises (KeyboardInterrupt).
template <typename Wait>
bool wait_with_signals(double seconds, const Wait& wait) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    auto most = kSignalPoll;
    if (seconds >= 0) {
      const auto left = std::chrono::duration<double>(seconds) - (Clock::now() - start);
      most = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(0), kSignalPoll);
    }
    {
      const nanobind::gil_scoped_release release;
      if (wait(most)) return true;
    }
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (most == std::chrono::milliseconds(0)) return false;
  }
}

}  // namespace graft
