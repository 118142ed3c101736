#include "kernel/kernel.h"

#include <algorithm>

#include "base/check.h"
#include "kernel/matmul/blocks_vec.h"
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

TwoEndedRange::Range TwoEndedRange::take(std::int64_t size, const Chunking& chunking, bool from_back) noexcept {
  constexpr int kHalf = 32;
  std::uint64_t now = taken_.load(std::memory_order_relaxed);
  for (;;) {
    const auto front = static_cast<std::int64_t>(now & ((std::uint64_t{1} << kHalf) - 1));
    const auto back = static_cast<std::int64_t>(now >> kHalf);
    const std::int64_t left = size - front - back;
    if (left <= 0) return {0, 0};
    std::int64_t count = std::max(chunking.min, left / 3);
    if (left >= 2 * chunking.multiple) count = std::max(count / chunking.multiple, std::int64_t{1}) * chunking.multiple;
    // The last ones are halved, so that both shares end at the same time.
    count = std::min((left + 1) / 2, std::min(chunking.max, count));
    const auto added = static_cast<std::uint64_t>(count) << (from_back ? kHalf : 0);
    if (!taken_.compare_exchange_weak(now, now + added, std::memory_order_relaxed)) continue;
    return from_back ? Range{size - back - count, size - back} : Range{front, front + count};
  }
}

void KernelContext::fail(const std::string& what) const noexcept {
  try {
    error->fail(str(node, ": ", what));
  } catch (...) {  // no memory for the text: the bare reason must do
    error->fail("out of memory while reporting a kernel error");
  }
}

std::string isa_name() { return std::string(simd::name(simd::active_isa())); }

std::string isa_names() {
  const std::string_view products = simd::panels_name(simd::active_isa());
  return products.empty() ? isa_name() : str(isa_name(), ", products ", products);
}

}  // namespace graft
