#include "kernel/attention/cache_slots.h"

#include <algorithm>

namespace graft {
namespace {

using i64 = std::int64_t;

void run_slots(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<CacheSlotsAttrs>();
  const Shape& tokens = ctx.in(0).shape;
  const i64 batch = tokens[0], count = tokens[1], spare = attrs.rows * attrs.heads * attrs.slots;
  const auto [begin, end] = ctx.range(batch * count);
  i64* out = ctx.output<i64>();
  for (i64 item = begin; item < end; ++item) {
    const i64 b = item / count, t = item % count, position = ctx.input<i64>(0)[item];
    const i64 slot = attrs.ring > 0 ? position % attrs.ring : position;
    for (i64 h = 0; h < attrs.heads; ++h) {
      const i64 at = attrs.tokens_first != 0 ? item * attrs.heads + h : (b * attrs.heads + h) * count + t;
      out[at] = position < 0 ? spare : (ctx.kv_row(b) * attrs.heads + h) * attrs.slots + slot;
    }
  }
}

void run_mask(const KernelContext& ctx) noexcept {
  constexpr std::uint16_t kSeen = 0, kHidden = 0xFC00;  // f16: 0 and -inf
  const auto attrs = ctx.attrs<CacheMaskAttrs>();
  const i64 batch = ctx.in(0).shape[0], tokens = ctx.in(0).shape[1];
  const i64 rows = ctx.out().shape[0], slots = ctx.out().shape[2];
  const i64* position = ctx.input<i64>(0);
  const auto batch_row = [&](i64 row) {
    if (attrs.by_cache_row == 0) return row;
    for (i64 b = 0; b < batch; ++b)
      if (ctx.kv_row(b) == row) return b;
    return i64{-1};
  };
  const auto [begin, end] = ctx.range(rows * tokens);
  for (i64 item = begin; item < end; ++item) {
    std::uint16_t* out = ctx.output<std::uint16_t>() + item * slots;
    const i64 b = batch_row(item / tokens);
    std::fill_n(out, slots, kHidden);
    if (b < 0) continue;
    const i64 at = position[b * tokens + item % tokens];
    if (at < 0) {
      out[0] = kSeen;
      continue;
    }
    i64 first = 0;
    if (attrs.window > 0) first = std::max(first, at - attrs.window + 1);
    if (attrs.chunk > 0) first = std::max(first, at / attrs.chunk * attrs.chunk);
    const i64* block = attrs.has_blocks != 0 ? ctx.input<i64>(1) + (b * tokens + item % tokens) * 2 : nullptr;
    if (attrs.whole_blocks != 0) first = std::min(first, block[0]);
    const i64 last = block != nullptr ? block[1] : at;
    if (attrs.ring == 0) {
      std::fill(out + first, out + last + 1, kSeen);
    } else {
      for (i64 p = first; p <= last; ++p) out[p % attrs.ring] = kSeen;
    }
  }
}

void run_rows(const KernelContext& ctx) noexcept {
  if (ctx.task != 0) return;
  for (i64 b = 0; b < ctx.in(0).shape[0]; ++b) ctx.output<std::int32_t>()[b] = static_cast<std::int32_t>(ctx.kv_row(b));
}

}  // namespace

const Kernel kCacheSlots{"cache_slots", run_slots};
const Kernel kCacheMask{"cache_mask", run_mask};
const Kernel kCacheRows{"cache_rows", run_rows};

}  // namespace graft
