#pragma once

#include <atomic>
#include <thread>

#include "base/check.h"

namespace graft::llm {

// Which thread is inside a call of an object that serves one call at a time.
class InUse {
 private:
  friend class Use;
  std::atomic<std::thread::id> holder_{};
};

// Marks such an object as in use for one call. Throws Busy when another thread is inside, and InvalidArgument when this
// thread is: a callback of the outer call made the inner one.
class Use {
 public:
  // `what` and `call` are for the messages: "TextGenerator", "generate()".
  Use(InUse& in_use, const char* what, const char* call) : Use(in_use, what, call, false) {}
  // For calls that are allowed in callbacks.
  static Use nested(InUse& in_use, const char* what, const char* call) { return {in_use, what, call, true}; }
  ~Use() {
    if (outermost_) in_use_.holder_.store({}, std::memory_order_release);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  bool outermost() const { return outermost_; }

 private:
  Use(InUse& in_use, const char* what, const char* call, bool nested) : in_use_(in_use) {
    std::thread::id holder;
    const std::thread::id own = std::this_thread::get_id();
    outermost_ = in_use_.holder_.compare_exchange_strong(holder, own, std::memory_order_acquire);
    if (outermost_) return;
    GRAFT_CHECK(Busy, holder == own, call, ": the ", what,
                " is in use by another thread; make one for each thread, which can share the model");
    GRAFT_CHECK(InvalidArgument, nested, call, " was called from a callback of another call on the same ", what);
  }

  InUse& in_use_;
  bool outermost_;
};

}  // namespace graft::llm
