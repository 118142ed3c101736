#pragma once

#include <sanitizer/asan_interface.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "feed.h"

// Common to the libFuzzer targets.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, std::size_t),
                                                         void (*)(const volatile void*));

namespace graft::fuzz {

inline std::atomic<std::size_t> largest_allowed{0};  // 0: not watched

inline void on_malloc(const volatile void*, std::size_t bytes) {
  const std::size_t most = largest_allowed.load(std::memory_order_relaxed);
  if (most == 0 || bytes <= most) return;
  largest_allowed = 0;
  std::fprintf(stderr, "a load allocates %zu bytes at once, at most %zu are allowed\n", bytes, most);
  std::abort();
}

inline void watch_allocations() {
  __sanitizer_install_malloc_and_free_hooks(on_malloc, [](const volatile void*) {});
  set_watch({[](std::size_t bytes) {
               largest_allowed = bytes * kLoadGrowth > kWatchSlack ? bytes * kLoadGrowth : kWatchSlack;
             },
             [] { largest_allowed = 0; }});
}

// Prints now and then, and at the end, how far the inputs came.
inline void count(const Fate& fate) {
  static struct Counts {
    std::uint64_t all = 0, verified = 0, planned = 0, ran = 0;
    void print() const {
      if (all > 0)
        std::fprintf(stderr, "%llu inputs: %.1f %% verified, %.1f %% planned, %.1f %% ran\n",
                     static_cast<unsigned long long>(all),
                     100. * static_cast<double>(verified) / static_cast<double>(all),
                     100. * static_cast<double>(planned) / static_cast<double>(all),
                     100. * static_cast<double>(ran) / static_cast<double>(all));
    }
    ~Counts() { print(); }
  } counts;
  ++counts.all;
  counts.verified += fate.verified;
  counts.planned += fate.planned;
  counts.ran += fate.ran;
  if (counts.all % 100000 == 0) counts.print();
}

inline std::size_t store(const std::vector<std::byte>& mutant, std::uint8_t* data, std::size_t max_size) {
  const std::size_t size = mutant.size() < max_size ? mutant.size() : max_size;
  if (size > 0) std::memcpy(data, mutant.data(), size);
  return size;
}

}  // namespace graft::fuzz
