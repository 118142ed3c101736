#pragma once

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>

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
  bool ended(Clock::time_point now) const {
    return (cancel != nullptr && cancel->cancelled()) || (deadline && now >= *deadline);
  }
  // The error of a run that must not wait any more; null while it may. `when` ends its message.
  std::exception_ptr error(Clock::time_point now, std::string_view when = "before the run began") const {
    if (cancel != nullptr && cancel->cancelled())
      return std::make_exception_ptr(Cancelled(str("the run was cancelled ", when)));
    if (deadline && now >= *deadline) return std::make_exception_ptr(Cancelled(str("the deadline passed ", when)));
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
