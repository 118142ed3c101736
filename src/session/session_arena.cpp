#include "session/session_arena.h"

#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "load/program_impl.h"

namespace graft {

Arena::Arena() try : impl_(std::make_unique<Impl>()) {
} catch (...) {
  rethrow_typed();
}
Arena::~Arena() = default;
std::size_t Arena::bytes() const { return impl_->memory.size(); }

SessionArena::SessionArena(std::shared_ptr<Arena> shared, Counters& counters)
    : arena_(shared ? std::move(shared) : std::make_shared<Arena>()), counters_(counters) {}

void SessionArena::lock(std::optional<BusyGuard>& guard, const RunOptions& options) const {
  if (options.arena.data()) return;
  guard.emplace(Internal::of(*arena_).busy,
                "the arena is in use by another session; sessions that share one take turns");
}

std::byte* SessionArena::memory(std::int64_t bytes, const RunOptions& options) {
  const auto needed = static_cast<std::size_t>(bytes);
  if (options.arena.data()) {
    const std::span<std::byte> lent = options.arena;
    GRAFT_CHECK(InvalidArgument, lent.size() >= needed, "the lent arena must have at least ", needed, " bytes, it has ",
                lent.size());
    GRAFT_CHECK(InvalidArgument, reinterpret_cast<std::uintptr_t>(lent.data()) % kAlignment == 0,
                "the lent arena must be aligned to ", kAlignment, " bytes, its address is ",
                static_cast<void*>(lent.data()));
    return lent.data();
  }
  AlignedMemory& memory = Internal::of(*arena_).memory;
  if (!memory.data() || memory.size() < needed) {
    memory = AlignedMemory();  // the old block goes first, so that the peak is the new one alone
    memory = AlignedMemory(needed);
    ++counters_.arena_allocations;
  }
  counters_.arena_bytes = memory.size();
  return memory.data();
}

void SessionArena::release() {
  arena_.reset();
  counters_.arena_bytes = 0;
}

}  // namespace graft
