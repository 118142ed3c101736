#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "load/program_impl.h"
#include "session/state_store.h"

namespace graft {

// What the segments of a run overwrite of states before the last one, which writes all others: kept for a run that
// does not get that far. A segment that does not end undoes what it wrote itself (LaunchSequence::undo).
class StateUndo {
 public:
  explicit StateUndo(StateStore& states) : states_(states) {}

  // Copies what a run of the plan will overwrite: of ring buffers the rows that tokens enter at the end of it.
  // `rows`: RunOptions::kv_rows.
  void keep(const LoadedMethod& method, const Plan& plan, std::span<const std::int64_t> rows);
  // Puts it back, the last copy first.
  void restore() noexcept;
  void clear();

 private:
  struct Kept {
    std::byte* to = nullptr;
    std::size_t at = 0;  // in bytes_
    std::size_t bytes = 0;
  };
  void keep(std::byte* from, std::size_t bytes);

  StateStore& states_;
  std::vector<Kept> kept_;
  std::vector<std::byte> bytes_;  // keeps its memory from run to run
};

}  // namespace graft
