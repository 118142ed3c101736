#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/check.h"

namespace graft::audio {

inline constexpr std::int64_t kMaxRate = 768'000;  // samples per second

// Throws InvalidArgument for one that no sound has.
inline void check_rate(std::int64_t rate) {
  GRAFT_CHECK(InvalidArgument, rate >= 1 && rate <= kMaxRate, "a sampling rate must be from 1 to ", kMaxRate, ", got ",
              rate);
}

inline bool all_finite(std::span<const float> samples) {
  return std::ranges::all_of(samples, [](float sample) { return std::isfinite(sample); });
}

}  // namespace graft::audio
