#include "kernel/kernel.h"

#include <algorithm>

#include "base/check.h"
#include "kernel/simd/dispatch.h"

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

void KernelContext::fail(const std::string& what) const noexcept {
  try {
    error->fail(str(node, ": ", what));
  } catch (...) {  // no memory for the text: the bare reason must do
    error->fail("out of memory while reporting a kernel error");
  }
}

std::string isa_name() { return std::string(simd::name(simd::active_isa())); }

}  // namespace graft
