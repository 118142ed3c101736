#pragma once

#include <cstddef>
#include <span>

// Feeds an untrusted file through load, plan, and a run where that is small. graft's errors are the expected outcome;
// anything else (an assertion, memory of other sizes than requested, a crash) is a finding and propagates.
namespace graft::fuzz {

struct Fate {
  bool verified = false;  // the graphs are valid and every node is one that graft runs
  bool planned = false;   // loaded, and planning of some method began
  bool ran = false;
};

Fate feed_ir(std::span<const std::byte> blob);
Fate feed_package(std::span<const std::byte> file);

// Called around every load, with the size of the file, to watch allocations.
struct Watch {
  void (*begin)(std::size_t file_bytes) = nullptr;
  void (*end)() = nullptr;
};
void set_watch(const Watch& watch);

// One allocation of a load is at most this many times the file's size; small files have kWatchSlack.
inline constexpr std::size_t kLoadGrowth = 10;
inline constexpr std::size_t kWatchSlack = 1024 * 1024;

}  // namespace graft::fuzz
