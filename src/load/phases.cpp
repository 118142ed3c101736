#include "load/phases.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"

namespace graft {
namespace {

template <typename... Errors>
struct ErrorTypes {};

using TypedErrors =
    ErrorTypes<Busy, InvalidArgument, InvalidProgram, Unsupported, NotFound, SystemError, ExecutionError, Cancelled>;

// Throws `error` again with its own type, with `prefix` in front of its message.
template <typename... Errors>
[[noreturn]] void rethrow(const Error& error, const std::string& prefix, ErrorTypes<Errors...>) {
  const std::string message = prefix + error.what();
  const auto throw_as = [&]<typename E>(const E* typed) {
    if (typed != nullptr) throw E(message);
  };
  (throw_as(dynamic_cast<const Errors*>(&error)), ...);
  throw Error(message);
}

}  // namespace

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
  if (options.on_phase) options.on_phase(name);
  const Clock::time_point start = Clock::now();
  std::uint64_t bytes = 0;
  try {
    bytes = work();
  } catch (const Error& error) {
    rethrow(error, str("load, phase ", name, ": "), TypedErrors{});
  }
  log.add(name, ms_since(start), bytes);
}

}  // namespace graft
