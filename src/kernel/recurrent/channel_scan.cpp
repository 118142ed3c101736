#include "kernel/recurrent/channel_scan.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "kernel/recurrent/cached_state.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// A work item: channels of a row of the batch. Some steps of all of them are computed at a time, so that the pages
// which these begin in stay in the TLB.
constexpr i64 kChannels = 128, kSteps = 24;

// Calls run(b, state, channel, count) for a task's items. Operand `state` is the state, or position and half; the first
// output gets zeros for padding. C is the number of channels, rows of the state have `width` elements.
template <typename Run>
void for_channels(const KernelContext& ctx, int state, bool cached, i64 width, Run run) {
  const TensorDesc& y = ctx.out(0);
  const i64 batch = y.shape[0], steps = y.shape[1], channels = y.shape[2], parts = ceil_div(channels, kChannels);
  const auto [begin, end] = ctx.range(batch * parts);
  for (i64 i = begin; i < end; ++i) {
    const i64 b = i / parts, channel = i % parts * kChannels, count = std::min(kChannels, channels - channel);
    const CachedState found =
        cached ? CachedState::of(ctx, state, state + 1, 1, b)
               : CachedState{ctx.input<float>(state) + b * width, ctx.output<float>(1) + b * width, 0};
    float* out = ctx.output<float>(0) + b * steps * channels + channel;
    for (i64 t = 0; t < found.padding; ++t) std::fill_n(out + t * channels, count, 0.f);
    if (found.padding < steps) run(b, found, channel, count);
  }
}

// The element [b, t, channel] of an operand.
const float* at(const KernelContext& ctx, int i, i64 b, i64 t, i64 channel) {
  return ctx.input<float>(i) + b * ctx.in(i).strides[0] + t * ctx.in(i).strides[1] + channel;
}

template <bool cached>
void diagonal_here(const KernelContext& ctx) {
  run_diagonal_scan(ctx, simd::channel_scan(), cached);
}
template <bool cached>
void wkv_here(const KernelContext& ctx) {
  run_wkv(ctx, simd::channel_scan(), cached);
}

i64 diagonal_work(const KernelContext& ctx) { return 2 * ctx.out(0).numel(); }
i64 wkv_work(const KernelContext& ctx) { return 48 * ctx.out(0).numel(); }  // two exponentials, a division

}  // namespace

void run_diagonal_scan(const KernelContext& ctx, const simd::ChannelScanTable& table, bool cached) noexcept {
  const i64 steps = ctx.out(0).shape[1], channels = ctx.out(0).shape[2];
  for_channels(ctx, 2, cached, channels, [&](i64 b, const CachedState& state, i64 channel, i64 count) {
    simd::DiagonalChannels part;
    part.channels = count;
    part.x_step = ctx.in(0).strides[1];
    part.decay_step = ctx.in(1).strides[1];
    part.out_step = channels;
    part.first = state.first != nullptr ? state.first + channel : nullptr;
    part.last = state.last + channel;
    for (i64 t = state.padding; t < steps; t += kSteps) {
      part.steps = std::min(kSteps, steps - t);
      part.x = at(ctx, 0, b, t, channel);
      part.decay = at(ctx, 1, b, t, channel);
      part.out = ctx.output<float>(0) + (b * steps + t) * channels + channel;
      table.diagonal(part);
      part.first = part.last;
    }
  });
}

void run_wkv(const KernelContext& ctx, const simd::ChannelScanTable& table, bool cached) noexcept {
  const i64 steps = ctx.out(0).shape[1], channels = ctx.out(0).shape[2];
  for_channels(ctx, 4, cached, 3 * channels, [&](i64 b, const CachedState& state, i64 channel, i64 count) {
    simd::WkvChannels part;
    part.log_decay = ctx.input<float>(0) + channel;
    part.bonus = ctx.input<float>(1) + channel;
    part.channels = count;
    part.key_step = ctx.in(2).strides[1];
    part.value_step = ctx.in(3).strides[1];
    part.out_step = part.state_row = channels;
    part.first = state.first != nullptr ? state.first + channel : nullptr;
    part.last = state.last + channel;
    for (i64 t = state.padding; t < steps; t += kSteps) {
      part.steps = std::min(kSteps, steps - t);
      part.key = at(ctx, 2, b, t, channel);
      part.value = at(ctx, 3, b, t, channel);
      part.out = ctx.output<float>(0) + (b * steps + t) * channels + channel;
      table.wkv(part);
      part.first = part.last;
    }
  });
}

const Kernel kDiagonalScan = {
    .name = "diagonal_scan", .run = diagonal_here<false>, .parallel_from = 1 << 14, .work = diagonal_work};
const Kernel kWkv = {.name = "wkv", .run = wkv_here<false>, .parallel_from = 1 << 14, .work = wkv_work};
const Kernel kCachedDiagonalScan = {
    .name = "diagonal_scan", .run = diagonal_here<true>, .parallel_from = 1 << 14, .work = diagonal_work};
const Kernel kCachedWkv = {.name = "wkv", .run = wkv_here<true>, .parallel_from = 1 << 14, .work = wkv_work};

}  // namespace graft
