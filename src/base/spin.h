#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace graft {

// Some 50 microseconds: longer than the threads of one launch drift apart when each has a core, short against the time
// slice that spinning costs when another process holds the core of the thread waited for.
inline constexpr int kSpinRounds = 2000;

// Some 500 microseconds: a caller that looks at the results and calls again finds the other threads awake.
inline constexpr int kIdleSpinRounds = 10 * kSpinRounds;

inline void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls `ready` at most `rounds` + 1 times; true when it came true.
template <typename Ready>
bool spin_until(int rounds, Ready ready) {
  for (int i = 0; i < rounds; ++i) {
    if (ready()) return true;
    spin_pause();
  }
  return ready();
}

}  // namespace graft
