#include "kernel/kernel.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

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
    // The last items are halved, so that both tasks end at the same time.
    count = std::min((left + 1) / 2, std::min(chunking.max, count));
    const auto added = static_cast<std::uint64_t>(count) << (from_back ? kHalf : 0);
    if (!taken_.compare_exchange_weak(now, now + added, std::memory_order_relaxed)) continue;
    return from_back ? Range{size - back - count, size - back} : Range{front, front + count};
  }
}

void KernelContext::fail_with(std::initializer_list<MessagePart> parts) const noexcept {
  std::array<char, ErrorSlot::kMaxMessage> message;
  char* next = message.data();
  char* const end = next + message.size();
  const auto append = [&](std::string_view text) {
    next = std::copy_n(text.data(), std::min(static_cast<std::ptrdiff_t>(text.size()), end - next), next);
  };
  append(node);
  append(": ");
  for (const MessagePart& part : parts) {
    if (part.kind == MessagePart::Kind::text) append(part.text);
    // A number that does not fit is omitted.
    if (part.kind == MessagePart::Kind::integer)
      if (const auto written = std::to_chars(next, end, part.integer); written.ec == std::errc()) next = written.ptr;
    if (part.kind == MessagePart::Kind::real)
      if (const auto written = std::to_chars(next, end, part.real); written.ec == std::errc()) next = written.ptr;
  }
  error->fail({message.data(), static_cast<std::size_t>(next - message.data())});
}

std::string isa_name() { return std::string(simd::name(simd::active_isa())); }

std::string isa_names() {
  const std::string_view products = simd::panels_name(simd::active_isa());
  return products.empty() ? isa_name() : str(isa_name(), ", products ", products);
}

}  // namespace graft
