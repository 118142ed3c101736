#pragma once

#include <algorithm>
#include <exception>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "exec/run_control.h"
#include "graft/graft.h"

namespace graft {

// What ends a run that waits in a queue: its deadline, or a cancel.
struct WaitLimit {
  const CancelToken* cancel = nullptr;  // outlives the run
  std::optional<Clock::time_point> deadline;

  static WaitLimit of(const RunOptions& options) { return {options.cancel, options.deadline}; }

  bool exists() const { return cancel != nullptr || deadline.has_value(); }
  // The error of a run that must not begin any more; null while it may.
  std::exception_ptr error(Clock::time_point now) const {
    if (cancel != nullptr && cancel->cancelled())
      return std::make_exception_ptr(Cancelled("the run was cancelled before it began"));
    if (deadline && now >= *deadline)
      return std::make_exception_ptr(Cancelled("the deadline passed before the run began"));
    return nullptr;
  }
  // When to look again.
  Clock::time_point next_look(Clock::time_point now) const {
    Clock::time_point next = deadline.value_or(Clock::time_point::max());
    if (cancel != nullptr) next = std::min<Clock::time_point>(next, now + kCancelPoll);
    return next;
  }
};

}  // namespace graft
