#include "plan/arena_check.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "base/check.h"

namespace graft {
namespace {

std::string describe(std::size_t index, const Lifetime& lifetime, std::int64_t offset) {
  return str("buffer ", index, " (bytes ", offset, " to ", offset + lifetime.bytes, ", launches ", lifetime.first,
             " to ", lifetime.last, ")");
}

}  // namespace

std::int64_t live_lower_bound(std::span<const Lifetime> lifetimes, std::int64_t alignment) {
  // The launch after the buffer's last one; may need more than 32 bits.
  std::map<std::int64_t, std::int64_t> change;
  for (const Lifetime& lifetime : lifetimes) {
    const std::int64_t units = lifetime.bytes / alignment + (lifetime.bytes % alignment != 0 ? 1 : 0);
    change[lifetime.first] += units;
    change[std::int64_t{lifetime.last} + 1] -= units;
  }
  std::int64_t live = 0;
  std::int64_t most = 0;
  for (const auto& [launch, units] : change) {
    live += units;
    most = std::max(most, live);
  }
  return most * alignment;
}

std::optional<std::string> find_overlap(std::span<const Lifetime> lifetimes, std::span<const std::int64_t> offsets,
                                        std::int64_t alignment) {
  if (offsets.size() != lifetimes.size()) {
    return str("expected ", lifetimes.size(), " offsets, found ", offsets.size());
  }
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    const Lifetime& lifetime = lifetimes[i];
    if (lifetime.bytes < 0) return str("buffer ", i, ": expected at least 0 bytes, found ", lifetime.bytes);
    if (lifetime.last < lifetime.first) {
      return str("buffer ", i, ": last launch ", lifetime.last, " is before its first ", lifetime.first);
    }
    if (offsets[i] < 0 || offsets[i] % alignment != 0) {
      return str("buffer ", i, ": expected an offset that is a multiple of ", alignment, ", found ", offsets[i]);
    }
    if (lifetime.bytes > 0) starts.push_back(i);
  }
  std::vector<std::size_t> ends = starts;
  std::sort(starts.begin(), starts.end(),
            [&](std::size_t a, std::size_t b) { return lifetimes[a].first < lifetimes[b].first; });
  std::sort(ends.begin(), ends.end(),
            [&](std::size_t a, std::size_t b) { return lifetimes[a].last < lifetimes[b].last; });

  // Sweeps over the launches. Live buffers are disjoint so far, so a new one only has to be compared with its two
  // neighbours in memory.
  std::map<std::int64_t, std::size_t> alive;  // by offset
  auto ended = ends.begin();
  for (const std::size_t buffer : starts) {
    for (; ended != ends.end() && lifetimes[*ended].last < lifetimes[buffer].first; ++ended)
      alive.erase(offsets[*ended]);
    const auto above = alive.lower_bound(offsets[buffer]);
    std::optional<std::size_t> other;
    if (above != alive.end() && above->first - offsets[buffer] < lifetimes[buffer].bytes) other = above->second;
    if (above != alive.begin()) {
      const auto below = std::prev(above);
      if (offsets[buffer] - below->first < lifetimes[below->second].bytes) other = below->second;
    }
    if (other) {
      return str(describe(*other, lifetimes[*other], offsets[*other]), " overlaps ",
                 describe(buffer, lifetimes[buffer], offsets[buffer]));
    }
    alive.emplace(offsets[buffer], buffer);
  }
  return std::nullopt;
}

}  // namespace graft
