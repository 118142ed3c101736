#include "kernel/matmul/packed_pairs.h"

#include <algorithm>

#include "kernel/conv/conv_input.h"
#include "kernel/matmul/matmul.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Stride of rounded rows. Rows a multiple of half a page apart would fall into the same sets of the first-level cache.
i64 rounded_row(i64 depth) {
  const i64 row = ceil_div(depth, 32) * 32;
  return row % 512 == 0 ? row + 32 : row;
}

// Rounds the rows of x [1, K, 1, 1, M].
void round_rows(const KernelContext& ctx, const simd::PackedPairTable& table, std::uint16_t* to) {
  const TensorDesc& x = ctx.in(0);
  const i64 depth = x.shape[1], step = x.strides[1], row = rounded_row(depth);
  const auto [begin, end] = ctx.range(x.shape[4]);
  for (i64 r = begin; r < end; ++r) {
    const float* from = ctx.input<float>(0) + r * x.strides[4];
    std::uint16_t* at = to + r * row;
    if (step == 1 || depth == 1) {
      table.round(from, depth, at);
    } else {
      constexpr i64 kAtOnce = 64;
      float together[kAtOnce];
      for (i64 k = 0; k < depth; k += kAtOnce) {
        const i64 n = std::min(kAtOnce, depth - k);
        for (i64 i = 0; i < n; ++i) together[i] = from[(k + i) * step];
        table.round(together, n, at + k);
      }
    }
    if (depth % 2 != 0) at[depth] = 0;
  }
}

int phases(const KernelContext&) noexcept { return 2; }

template <typename Attrs>
std::string explain(const KernelContext& ctx) {
  return "f32, products in bf16 of " + isa_name() + ", weights packed at load" + epilogue_text(ctx.attrs<Attrs>());
}

void multiply(const KernelContext& ctx, const simd::PackedPairTable& table, const PackedProducts& products) {
  const TensorDesc& x = ctx.in(0);
  const i64 depth = x.shape[1], rows = x.shape[4], outputs = ctx.out().shape[1];
  auto* rounded = reinterpret_cast<std::uint16_t*>(ctx.scratch_bytes);
  if (ctx.phase == 0) return round_rows(ctx, table, rounded);
  const i64 tiles = ceil_div(rows, table.tile_rows), width = table.panel_width, panels = ceil_div(outputs, width);
  for_tiles(ctx, tiles, products.count() * panels, simd::kConvTilesAtOnce, rows * rounded_row(depth) * 2,
            [&](i64 index, i64, i64 from, i64 to) {
              const auto [product, panel] = products.unit(index, panels);
              const i64 first = panel * width;
              table.tiles(rounded, rounded_row(depth), rows, tiles, from, to, depth,
                          ctx.input<std::uint32_t>(product.weight) + first * ceil_div(depth, 2), first,
                          static_cast<int>(std::min(width, outputs - first)), product.epilogue);
            });
}

void linears_here(const KernelContext& ctx) noexcept {
  multiply(ctx, *simd::packed_pairs(), {ctx, ctx.attrs<PackedLinearsAttrs>()});
}

}  // namespace

i64 packed_pair_words(i64 outputs, i64 depth, const simd::PackedPairTable& table) {
  return ceil_div(outputs, table.panel_width) * table.panel_width * ceil_div(depth, 2);
}

i64 packed_pair_scratch_bytes(const TensorDesc& x) { return x.shape[4] * rounded_row(x.shape[1]) * 2; }

void run_pack_pairs(const KernelContext& ctx, const simd::PackedPairTable& table) noexcept {
  const Shape& shape = ctx.in(0).shape;
  const i64 outputs = shape[0], depth = shape[1];
  const simd::MatrixView columns = {ctx.inputs[0], ctx.in(0).dtype, 1, depth};
  const auto [begin, end] = ctx.range(ceil_div(outputs, table.panel_width));
  for (i64 panel = begin; panel < end; ++panel)
    table.pack(columns, depth, outputs, panel, 0, depth, ctx.output<std::uint32_t>());
}

void run_packed_pairs(const KernelContext& ctx, const simd::PackedPairTable& table) noexcept {
  multiply(ctx, table, {ctx, ctx.attrs<PackedConvAttrs>()});
}

const Kernel kPackPairs = {"pack_pairs",
                           [](const KernelContext& ctx) noexcept { run_pack_pairs(ctx, *simd::packed_pairs()); }};

namespace {

constexpr MergeRule kMerge = {kMostPackedLinears, linear_can_merge, linears_fit_together, &kPackedPairLinears,
                              merged_linears};
constexpr Fusion kFusion = {.take_epilogue = take_epilogue_of<PackedConvAttrs, take_epilogue>,
                            .take_residual = take_residual_of<PackedConvAttrs, take_residual>,
                            .merge = &kMerge};

}  // namespace

const Kernel kPackedPairs = {
    .name = "packed_linear_bf16",
    .run = [](const KernelContext& ctx) noexcept { run_packed_pairs(ctx, *simd::packed_pairs()); },
    .parallel_from = kMinParallelProducts,
    .phases = phases,
    .explain = explain<PackedConvAttrs>,
    .work = work_of_linears,
    .steals_work = true,
    .fusion = &kFusion};
const Kernel kPackedPairLinears = {
    "packed_linears_bf16", linears_here, kMinParallelProducts, phases, explain<PackedLinearsAttrs>,
    work_of_linears,       true};

}  // namespace graft
