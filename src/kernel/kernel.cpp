#include "kernel/kernel.h"

#include <algorithm>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace graft {

void ErrorSlot::fail(std::string_view message) noexcept {
  int expected = kEmpty;
  if (!state_.compare_exchange_strong(expected, kWriting, std::memory_order_acq_rel)) return;
  length_ = std::min(message.size(), sizeof(text_));
  std::memcpy(text_, message.data(), length_);
  state_.store(kWritten, std::memory_order_release);
}

void ErrorSlot::clear() noexcept {
  length_ = 0;
  state_.store(kEmpty, std::memory_order_release);
}

void LaunchBarrier::wait(int threads) noexcept {
  const int generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    return;
  }
  while (generation_.load(std::memory_order_acquire) == generation) {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

void KernelContext::fail(const std::string& what) const noexcept {
  try {
    error->fail(str(node, ": ", what));
  } catch (...) {  // no memory for the text: the bare reason must do
    error->fail("out of memory while reporting a kernel error");
  }
}

}  // namespace graft
