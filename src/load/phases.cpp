#include "load/phases.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/rethrow.h"

namespace graft {

void PhaseLog::add(std::string_view name, double milliseconds, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(phases_.begin(), phases_.end(), [&](const PhaseStats& p) { return p.name == name; });
  if (found == phases_.end()) found = phases_.insert(phases_.end(), PhaseStats{std::string(name), 0, 0, 0});
  ++found->times;
  found->milliseconds += milliseconds;
  found->bytes += bytes;
}

std::vector<PhaseStats> PhaseLog::list() const {
  const std::lock_guard lock(mutex_);
  return phases_;
}

void run_phase(PhaseLog& log, const LoadOptions& options, std::string_view name,
               const std::function<std::uint64_t()>& work) {
  if (options.on_phase) call_back([&] { options.on_phase(name); });
  const Clock::time_point start = Clock::now();
  std::uint64_t bytes = 0;
  try {
    bytes = work();
  } catch (const Error& error) {
    rethrow_with(str("load, phase ", name, ": "), error);
  }
  log.add(name, ms_since(start), bytes);
}

}  // namespace graft
