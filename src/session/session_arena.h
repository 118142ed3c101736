#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/aligned.h"
#include "graft/graft.h"
#include "session/busy_guard.h"

namespace graft {

struct Arena::Impl {
  AlignedMemory memory;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
};

// The memory of a session's intermediate tensors: an arena of its own, one that it shares with other sessions, or what
// the caller of a run lends.
class SessionArena {
 public:
  // `shared`: null for one of its own.
  SessionArena(std::shared_ptr<Arena> shared, Counters& counters);

  // Held during a run: an arena serves one run at a time. Throws Busy when another session's run has it.
  void lock(std::optional<BusyGuard>& guard, const RunOptions& options) const;
  // At least `bytes` of memory. Throws InvalidArgument when the lent one is too small or not aligned.
  std::byte* memory(std::int64_t bytes, const RunOptions& options);
  // Drops it; the session is closed.
  void release();

 private:
  std::shared_ptr<Arena> arena_;
  Counters& counters_;
};

}  // namespace graft
