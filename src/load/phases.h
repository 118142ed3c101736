#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "graft/graft.h"

namespace graft {

// Phases after the load, for PhaseLog::add.
inline constexpr std::string_view kPlansPhase = "plans";
inline constexpr std::string_view kLaunchSequencePhase = "launch sequence";

// Count, duration and bytes of each phase, in the order of first occurrence. Thread-safe.
class PhaseLog {
 public:
  void add(std::string_view name, double milliseconds, std::uint64_t bytes);
  std::vector<PhaseStats> list() const;

 private:
  mutable std::mutex mutex_;
  std::vector<PhaseStats> phases_;
};

// One phase of a load: calls `on_phase`, does the work, records its time and the bytes it returns. A typed error of the
// work gets the name of the phase in front of its message.
void run_phase(PhaseLog& log, const LoadOptions& options, std::string_view name,
               const std::function<std::uint64_t()>& work);

}  // namespace graft
