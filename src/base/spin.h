#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace graft {

// Some 50 microseconds: longer than the skew of the threads of one launch if each has a core, but short against the
// time slice lost if another process holds the awaited thread's core.
inline constexpr int kSpinRounds = 2000;

// Some 500 microseconds: if the caller reads the results and calls again, the other threads are still awake.
inline constexpr int kIdleSpinRounds = 10 * kSpinRounds;

inline void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls `ready` at most `rounds` + 1 times; true once it is true.
template <typename Ready>
bool spin_until(int rounds, Ready ready) {
  for (int i = 0; i < rounds; ++i) {
    if (ready()) return true;
    spin_pause();
  }
  return ready();
}

}  // namespace graft
