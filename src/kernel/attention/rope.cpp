#include "kernel/attention/rope.h"

#include <cmath>

namespace graft {
namespace {

using i64 = std::int64_t;

constexpr i64 kMinParallel = 8192;

const float* row(const KernelContext& ctx, int i, i64 b, i64 h, i64 t) {
  const TensorDesc& desc = ctx.in(i);
  return ctx.input<float>(i) + b * desc.strides[0] + h * desc.strides[1] + t * desc.strides[2];
}

void run_angles(const KernelContext& ctx) noexcept {
  const auto scale = static_cast<float>(ctx.attrs<RopeAnglesAttrs>().scale);
  const i64 half = ctx.in(1).shape[0];
  const auto [begin, end] = ctx.range(ctx.in(0).numel());
  for (i64 t = begin; t < end; ++t) {
    const i64 at = ctx.in(0).dtype == DType::i32 ? ctx.input<std::int32_t>(0)[t] : ctx.input<i64>(0)[t];
    const auto position = static_cast<float>(at);
    float *cos = ctx.output<float>(0) + t * 2 * half, *sin = ctx.output<float>(1) + t * 2 * half;
    for (i64 i = 0; i < half; ++i) {
      const float angle = position * ctx.input<float>(1)[i];
      cos[i] = cos[half + i] = std::cos(angle) * scale;
      sin[i] = sin[half + i] = std::sin(angle) * scale;
    }
  }
}

void rope_here(const KernelContext& ctx) noexcept { run_rope(ctx, simd::rows()); }

}  // namespace

void run_rope(const KernelContext& ctx, const simd::RowsTable& table) noexcept {
  const TensorDesc& out = ctx.out();
  const i64 heads = out.shape[1], tokens = out.shape[2];
  const auto [begin, end] = ctx.range(out.shape[0] * tokens);
  for (i64 item = begin; item < end; ++item) {
    const i64 b = item / tokens, t = item % tokens;
    for (i64 h = 0; h < heads; ++h)
      table.rotate(row(ctx, 0, b, h, t), row(ctx, 1, b, h, t), row(ctx, 2, b, h, t), out.shape[3],
                   ctx.output<float>() + b * out.strides[0] + h * out.strides[1] + t * out.strides[2]);
  }
}

const Kernel kRope = {"rope", rope_here, kMinParallel};
const Kernel kRopeAngles = {"rope_angles", run_angles, kMinParallel};

}  // namespace graft
