#include "kernel/recurrent/linear_attention.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "kernel/recurrent/cached_state.h"

namespace graft {
namespace {

using i64 = std::int64_t;

i64 size(const TensorDesc& desc, int dim) { return desc.shape[dim]; }
i64 stride(const TensorDesc& desc, int dim) { return desc.strides[static_cast<std::size_t>(dim)]; }

// The element [b, t, h, 0] of an operand [B, T, H, ...].
const float* at(const KernelContext& ctx, int i, i64 b, i64 t, i64 h) {
  return ctx.input<float>(i) + b * stride(ctx.in(i), 0) + t * stride(ctx.in(i), 1) + h * stride(ctx.in(i), 2);
}

// Of row b, in the operands of either kind of kernel. `size`: elements of a row's state.
CachedState state_of(const KernelContext& ctx, bool cached, i64 b, i64 size) {
  constexpr int kState = 5, kPositions = 5, kHalf = 6;
  if (cached) return CachedState::of(ctx, kPositions, kHalf, 1, b);
  return {ctx.input<float>(kState) + b * size, ctx.output<float>(1) + b * size, 0};
}

float* scratch_of(const KernelContext& ctx, i64 floats) {
  return reinterpret_cast<float*>(ctx.scratch_bytes) + ctx.task * floats;
}

// Whole cache lines, so that tasks do not share one.
i64 padded(i64 floats) { return ceil_div(floats, i64{16}) * 16; }

constexpr i64 kHeads = 16;  // of one row, in a part of a scan

i64 largest_columns() {
  i64 most = 0;
  for (const simd::Isa isa : simd::available_isas()) most = std::max(most, simd::linear_attention(isa).columns);
  return most;
}

template <bool cached>
void gated_delta_here(const KernelContext& ctx) {
  run_gated_delta(ctx, simd::linear_attention(), cached);
}
template <bool cached>
void selective_scan_here(const KernelContext& ctx) {
  run_selective_scan(ctx, simd::linear_attention(), cached);
}

i64 delta_work(const KernelContext& ctx) { return 2 * ctx.out(0).numel() * size(ctx.in(0), 3); }
i64 scan_work(const KernelContext& ctx) { return 4 * ctx.out(0).numel() * size(ctx.in(3), 3); }

}  // namespace

std::int64_t gated_delta_scratch_bytes(std::int64_t keys, int tasks) {
  static const i64 columns = largest_columns();
  return padded(keys * columns) * tasks * i64{sizeof(float)};
}

std::int64_t selective_scan_scratch_bytes(std::int64_t steps, int tasks) {
  return padded(steps) * tasks * i64{sizeof(float)};
}

void run_gated_delta(const KernelContext& ctx, const simd::LinearAttentionTable& table, bool cached) noexcept {
  const TensorDesc &query = ctx.in(0), &key = ctx.in(1), &value = ctx.in(2), &decay = ctx.in(3), &beta = ctx.in(4);
  const i64 batch = size(value, 0), heads = size(value, 2), columns = size(value, 3), keys = size(key, 3);
  const i64 parts = ceil_div(columns, table.columns);
  const auto [begin, end] = ctx.range(batch * heads * parts);
  float* scratch = scratch_of(ctx, padded(keys * table.columns));
  for (i64 i = begin; i < end; ++i) {
    const i64 b = i / parts / heads, h = i / parts % heads, column = i % parts * table.columns;
    const i64 of_key = h / (heads / size(key, 2));
    const CachedState state = state_of(ctx, cached, b, heads * keys * columns);
    const i64 in_state = h * keys * columns + column, t = state.padding;
    simd::DeltaHead head;
    head.columns = std::min(table.columns, columns - column);
    head.steps = size(value, 1) - t;
    float* out = ctx.output<float>(0) + (b * size(value, 1) * heads + h) * columns + column;
    for (i64 p = 0; p < t; ++p) std::fill_n(out + p * heads * columns, head.columns, 0.f);
    if (head.steps == 0) continue;
    head.query = at(ctx, 0, b, t, of_key);
    head.key = at(ctx, 1, b, t, of_key);
    head.value = at(ctx, 2, b, t, h) + column;
    head.decay = at(ctx, 3, b, t, h);
    head.beta = at(ctx, 4, b, t, h);
    head.first = state.first != nullptr ? state.first + in_state : nullptr;
    head.out = out + t * heads * columns;
    head.last = state.last + in_state;
    head.keys = keys;
    head.query_step = stride(query, 1);
    head.key_step = stride(key, 1);
    head.value_step = stride(value, 1);
    head.decay_step = stride(decay, 1);
    head.beta_step = stride(beta, 1);
    head.out_step = heads * columns;
    head.state_row = columns;
    head.one_decay = decay.rank() == 3;
    table.delta(head, scratch);
  }
}

void run_selective_scan(const KernelContext& ctx, const simd::LinearAttentionTable& table, bool cached) noexcept {
  const TensorDesc &x = ctx.in(0), &dt = ctx.in(1), &a = ctx.in(2), &b_in = ctx.in(3), &c_in = ctx.in(4);
  const i64 batch = size(x, 0), steps = size(x, 1), heads = size(x, 2), rows = size(x, 3), width = size(b_in, 3);
  const bool one_decay = size(a, 1) != width || width == 1;
  // Heads of one row each that share b and c are computed together.
  const i64 per_group = heads / size(b_in, 2), together = rows == 1 && !one_decay ? std::min(per_group, kHeads) : 1;
  const i64 parts = ceil_div(per_group, together) * size(b_in, 2);
  const auto [begin, end] = ctx.range(batch * parts);
  float* decays = scratch_of(ctx, padded(steps));
  for (i64 i = begin; i < end; ++i) {
    const i64 b = i / parts, of_group = i % parts / (parts / size(b_in, 2));
    const i64 in_group = i % parts % (parts / size(b_in, 2)) * together, h = of_group * per_group + in_group;
    const CachedState state = state_of(ctx, cached, b, heads * rows * width);
    const i64 t = state.padding, count = std::min(together, per_group - in_group);
    simd::ScanRows row;
    row.rows = count * rows;
    float* out = ctx.output<float>(0) + (b * steps * heads + h) * rows;
    for (i64 p = 0; p < t; ++p) std::fill_n(out + p * heads * rows, row.rows, 0.f);
    if (t == steps) continue;
    row.steps = steps - t;
    row.dt = at(ctx, 1, b, t, h);
    row.dt_step = stride(dt, 1);
    row.dt_row = count > 1 ? stride(dt, 2) : 0;
    row.a = ctx.input<float>(2) + h * stride(a, 0);
    row.a_row = count > 1 ? stride(a, 0) : 0;
    if (one_decay) {
      table.decays(row.dt, row.dt_step, row.a[0], row.steps, decays);
      row.decays = decays;
    }
    row.b = at(ctx, 3, b, t, of_group);
    row.c = at(ctx, 4, b, t, of_group);
    row.size = width;
    row.x = at(ctx, 0, b, t, h);
    row.x_step = stride(x, 1);
    row.x_row = count > 1 ? stride(x, 2) : 1;
    row.b_step = stride(b_in, 1);
    row.c_step = stride(c_in, 1);
    row.out = out + t * heads * rows;
    row.out_step = heads * rows;
    row.first = state.first != nullptr ? state.first + h * rows * width : nullptr;
    row.last = state.last + h * rows * width;
    table.scan(row);
  }
}

const Kernel kGatedDelta = {
    .name = "gated_delta_rule", .run = gated_delta_here<false>, .parallel_from = 1 << 14, .work = delta_work};
const Kernel kSelectiveScan = {
    .name = "selective_scan", .run = selective_scan_here<false>, .parallel_from = 1 << 14, .work = scan_work};
const Kernel kCachedGatedDelta = {
    .name = "gated_delta_rule", .run = gated_delta_here<true>, .parallel_from = 1 << 14, .work = delta_work};
const Kernel kCachedSelectiveScan = {
    .name = "selective_scan", .run = selective_scan_here<true>, .parallel_from = 1 << 14, .work = scan_work};

}  // namespace graft
