#pragma once

#include <chrono>
#include <cstdint>

namespace graft {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
inline double seconds_since(Clock::time_point start) { return seconds_between(start, Clock::now()); }
inline Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}
// Since 1970, by the system's clock.
inline std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}
inline double ms_since(Clock::time_point start) { return 1e3 * seconds_since(start); }

}  // namespace graft
