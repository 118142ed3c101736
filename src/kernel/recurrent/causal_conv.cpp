#include "kernel/recurrent/causal_conv.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "kernel/recurrent/cached_state.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// A work item: few enough tokens that the pages which their rows begin in stay in the TLB, and so many channels that
// each of these pages is worth it.
constexpr i64 kChannels = 512, kTokens = 24;

void run_here(const KernelContext& ctx) { run_cached_causal_conv(ctx, simd::causal_conv()); }

i64 work(const KernelContext& ctx) { return 2 * ctx.out(0).numel() * ctx.in(1).shape[0]; }

}  // namespace

void run_cached_causal_conv(const KernelContext& ctx, const simd::CausalConvTable& table) noexcept {
  const auto attrs = ctx.attrs<CausalConvAttrs>();
  const TensorDesc& x = ctx.in(0);
  const i64 batch = x.shape[0], tokens = x.shape[1], channels = x.shape[2], taps = ctx.in(1).shape[0];
  const int positions = 2 + attrs.has_bias;
  const i64 blocks = ceil_div(channels, kChannels), parts = ceil_div(tokens, kTokens);
  const auto [begin, end] = ctx.range(batch * blocks * parts);
  for (i64 item = begin; item < end; ++item) {
    const i64 b = item / parts / blocks, channel = item / parts % blocks * kChannels;
    const i64 first = item % parts * kTokens, last = std::min(first + kTokens, tokens);
    const CachedState state = CachedState::of(ctx, positions, positions + 1, 1, b);
    simd::ConvChannels part;
    part.channels = std::min(kChannels, channels - channel);
    part.steps = tokens - state.padding;
    part.begin = std::max(first - state.padding, i64{0});
    part.end = std::max(last - state.padding, i64{0});
    part.taps = taps;
    part.x_step = x.strides[1];
    part.row = channels;
    part.silu = attrs.silu != 0;
    float* out = ctx.output<float>(0) + b * tokens * channels + channel;
    for (i64 t = first; t < std::min(last, state.padding); ++t) std::fill_n(out + t * channels, part.channels, 0.f);
    if (part.begin == part.end) continue;
    part.out = out + state.padding * channels;
    part.x = ctx.input<float>(0) + b * x.strides[0] + state.padding * x.strides[1] + channel;
    part.weight = ctx.input<float>(1) + channel;
    part.bias = attrs.has_bias != 0 ? ctx.input<float>(2) + channel : nullptr;
    part.first = state.first != nullptr ? state.first + channel : nullptr;
    part.last = state.last + channel;
    table.conv(part);
  }
}

const Kernel kCachedCausalConv = {.name = "causal_conv1d", .run = run_here, .parallel_from = 1 << 14, .work = work};

}  // namespace graft
