#include "kernel/conv/packed_conv.h"

#include "kernel/conv/separable_conv.h"

#include <algorithm>
#include <array>
#include <span>

#include "kernel/conv/conv_input.h"
#include "kernel/matmul/matmul.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::ConvTile;
using simd::KBlock;
using simd::PackedConvTable;

constexpr i64 kMinParallel = 4096;
// Output rows that a depthwise convolution computes at once: neighbours read the same input rows.
constexpr i64 kLinesAtOnce = 8;

void offset(simd::ChannelEpilogue& e, i64 floats) {
  e.out += floats;
  if (e.residual != nullptr) e.residual += floats;
}

// --- packing ---

void pack_panels(const KernelContext& ctx, const PackedConvTable& table) {
  const auto attrs = ctx.attrs<PackConvAttrs>();
  const Shape& shape = ctx.in(0).shape;
  const float* weight = ctx.input<float>(0);
  const float* scale = attrs.has_scale != 0 ? ctx.input<float>(1) : nullptr;
  const i64 channels = shape[1], taps = shape[2] * shape[3] * shape[4], depth = channels * taps;
  const i64 rows = shape[0] / attrs.groups, width = table.panel_width, panels = ceil_div(rows, width);
  const auto [begin, end] = ctx.range(attrs.groups * panels);
  const bool narrow = table.narrow_halves(taps, depth, rows - (panels - 1) * width) != 0;  // each group's last panel
  if (attrs.groups == 1 && taps == 1 && scale == nullptr && !narrow) {
    const simd::MatrixView columns = {weight, DType::f32, 1, depth};
    for (i64 panel = begin; panel < end; ++panel)
      table.pack(columns, depth, rows, panel, 0, depth, ctx.output<float>());
    return;
  }
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 group = unit / panels, first = unit % panels * width;
    float* to = ctx.output<float>() + unit * depth * width;
    const i64 halves = table.narrow_halves(taps, depth, std::min(width, rows - first)), half = table.lanes / 2;
    const i64 columns = halves == 0 ? width : half * halves;
    const auto place = [&](i64 j, i64 k) {
      return halves == 0 ? k * width + j : ((k / 2 * halves + j / half) * half + j % half) * 2 + k % 2;
    };
    for (i64 j = 0; j < columns; ++j) {
      const bool real = first + j < rows;
      const i64 row = group * rows + first + j;
      const float by = real && scale != nullptr ? scale[row] : 1.f;
      for (i64 t = 0; t < taps; ++t)
        for (i64 c = 0; c < channels; ++c)
          to[place(j, t * channels + c)] = real ? weight[row * depth + c * taps + t] * by : 0.f;
    }
    std::fill(to + depth * columns, to + depth * width, 0.f);
  }
}

void pack_depthwise(const KernelContext& ctx, const PackedConvTable& table) {
  const auto attrs = ctx.attrs<PackConvAttrs>();
  const Shape& shape = ctx.in(0).shape;
  const float* weight = ctx.input<float>(0);
  const float* scale = attrs.has_scale != 0 ? ctx.input<float>(1) : nullptr;
  const i64 taps = shape[2] * shape[3] * shape[4], width = depthwise_weight_row(shape[0], table);
  const auto [begin, end] = ctx.range(taps);
  for (i64 t = begin; t < end; ++t)
    for (i64 c = 0; c < width; ++c)
      ctx.output<float>()[t * width + c] =
          c < shape[0] ? weight[c * taps + t] * (scale != nullptr ? scale[c] : 1.f) : 0.f;
}

// --- products ---

// Tiles for which all panels are read in turn, of `tile_floats` each. Weights that fit into a second-level cache are
// cheap to read again: few tiles, which stay in the first-level cache. Larger weights come from farther away: the tiles
// fill a part of the second-level cache, so that the prefetches of the next panel are spread over more work.
i64 tiles_at_once(i64 weight_floats, i64 tile_floats) {
  constexpr i64 kTilesFloats = i64{1} << 17;
  if (weight_floats <= kNearWeightFloats) return simd::kConvTilesAtOnce;
  return std::clamp<i64>(kTilesFloats / tile_floats, simd::kConvTilesAtOnce, simd::kConvTiles);
}

class PackedConvolution {
 public:
  PackedConvolution(const TensorDesc& x, const PackedConvAttrs& attrs) : x_(x), attrs_(attrs), input_(x, attrs.conv) {}

  bool copies_input() const { return input_.copies_input(); }
  // Each thread's list of K blocks, then the copied input.
  i64 scratch_bytes(int threads) const { return k_blocks_bytes(threads) + input_.scratch_bytes(); }
  int phases() const { return input_.phases(); }

  void run(const KernelContext& ctx, const PackedConvTable& table, const PackedProducts& products) const {
    if (ctx.out().numel() == 0) return;
    input_.run(ctx, ctx.scratch_bytes + k_blocks_bytes(ctx.tasks), 0.f,
               [&](const float* x, i64 first, i64 samples) { multiply(ctx, table, products, x, first, samples); });
  }

 private:
  template <typename Add>
  void for_each_run(Add&& add) const {
    // Contiguous taps of a kernel row are one run.
    const ConvAttrs& conv = attrs_.conv;
    input_.for_each_run(attrs_.kernel, conv.dilation[2] == 1 && input_.column == x_.shape[1] / conv.groups, add);
  }

  i64 block_count() const {
    i64 count = 0;
    for_each_run([&](i64, i64 depth) { count += simd::k_block_count(depth); });
    return count;
  }
  i64 k_blocks_bytes(int threads) const {
    return ceil_div(threads * block_count() * static_cast<i64>(sizeof(KBlock)), 64) * 64;
  }

  std::span<const KBlock> k_blocks_of(const KernelContext& ctx) const {
    const i64 count = block_count();
    KBlock* k_blocks = reinterpret_cast<KBlock*>(ctx.scratch_bytes) + ctx.task * count;
    KBlock* next = k_blocks;
    for_each_run([&](i64 offset, i64 depth) { next = simd::cut_k_blocks(offset, depth, next); });
    return {k_blocks, static_cast<std::size_t>(count)};
  }

  void multiply(const KernelContext& ctx, const PackedConvTable& table, PackedProducts products, const float* x,
                i64 first_sample, i64 samples) const {
    const Shape& out = ctx.out().shape;
    const i64 groups = attrs_.conv.groups, channels = x_.shape[1] / groups, rows = out[1] / groups;
    const i64 taps = attrs_.kernel[0] * attrs_.kernel[1] * attrs_.kernel[2], depth = channels * taps;
    const i64 panels = ceil_div(rows, table.panel_width), all_panels = groups * panels;
    const PackedSums sums = {taps, depth, k_blocks_of(ctx)};
    const auto lines = input_.lines_of(out, samples, table.tile_rows, attrs_.by_lines == 0);
    products.offset(first_sample * out[2] * out[3] * out[4] * out[1]);
    const i64 tiles = lines.all * lines.parts;
    const i64 bytes = samples * (x_.numel() / x_.shape[0]) * static_cast<i64>(sizeof(float));
    const i64 weight_floats = products.count() * panels * table.panel_width * depth;
    const i64 at_once = tiles_at_once(weight_floats, table.tile_rows * channels);
    const bool prefetches = weight_floats > kNearWeightFloats || !all_panels_by_tiles(ctx, tiles);
    const auto weight_of = [&](const PackedProducts::Unit& unit) {
      return ctx.input<float>(unit.product.weight) + unit.panel * depth * table.panel_width;
    };
    i64 read_from = tiles, read_to = 0;  // tiles whose inputs this task has read
    for_tiles(ctx, tiles, products.count() * all_panels, at_once, bytes, [&](i64 index, i64 next, i64 from, i64 to) {
      const auto [product, panel] = products.unit(index, all_panels);
      const float* const weight = weight_of({product, panel});
      const float* const next_weight = prefetches ? weight_of(products.unit(next, all_panels)) : nullptr;
      const bool fresh = ctx.tasks > 1 && (from < read_from || to > read_to);
      read_from = std::min(read_from, from);
      read_to = std::max(read_to, to);
      const i64 group = panel / panels, first_channel = panel % panels * table.panel_width;
      const int width = static_cast<int>(std::min<i64>(table.panel_width, rows - first_channel));
      std::array<ConvTile, simd::kConvTiles> list;
      // Calls of about equally many tiles: each call prefetches all of the panel's next block.
      const i64 calls = ceil_div(to - from, simd::kConvTiles);
      for (i64 call = 0, t = from; call < calls; ++call) {
        const int count = static_cast<int>((to - t + calls - call - 1) / (calls - call));
        for (int i = 0; i < count; ++i, ++t) {
          const auto part = input_.part_of(lines, t);
          list[static_cast<std::size_t>(i)] = {x + part.offset + group * channels, part.first, part.rows};
        }
        sums.multiply(table, std::span(list).first(static_cast<std::size_t>(count)), lines.step, weight, next_weight,
                      fresh, group * rows + first_channel, width, product.epilogue);
      }
    });
  }

  const TensorDesc& x_;
  const PackedConvAttrs& attrs_;
  const ConvInput<float> input_;
};

void pack_here(const KernelContext& ctx) noexcept { run_pack_conv(ctx, simd::packed_conv()); }
void conv_here(const KernelContext& ctx) noexcept { run_packed_conv(ctx, simd::packed_conv()); }
void depthwise_here(const KernelContext& ctx) noexcept { run_packed_depthwise_conv(ctx, simd::packed_conv()); }

void linears_here(const KernelContext& ctx) noexcept { run_packed_linears(ctx, simd::packed_conv()); }

const PackedConvAttrs& attrs_of_input(const PackedConvAttrs& attrs) { return attrs; }
const PackedConvAttrs& attrs_of_input(const PackedLinearsAttrs& attrs) { return attrs.layers[0]; }

template <typename Attrs>
int phases(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<Attrs>();
  return PackedConvolution(ctx.in(0), attrs_of_input(attrs)).phases();
}

template <typename Attrs>
std::string explain_from(std::string text, const KernelContext& ctx) {
  const auto attrs = ctx.attrs<Attrs>();
  text += ", weights packed at load, " + isa_name();
  if (PackedConvolution(ctx.in(0), attrs_of_input(attrs)).copies_input()) text += ", input copied";
  return text + epilogue_text(attrs);
}
std::string explain(const KernelContext& ctx) { return explain_from<PackedConvAttrs>("f32, channels last", ctx); }
std::string explain_linear(const KernelContext& ctx) { return explain_from<PackedConvAttrs>("f32", ctx); }
std::string explain_linears(const KernelContext& ctx) { return explain_from<PackedLinearsAttrs>("f32", ctx); }

}  // namespace

simd::ChannelEpilogue channel_epilogue(const KernelContext& ctx, const PackedConvAttrs& attrs, int output, int extra) {
  simd::ChannelEpilogue e;
  const TensorDesc& out = ctx.out(output);
  e.out = ctx.output<float>(output);
  e.out_row = out.shape[1];
  if (attrs.conv.has_bias != 0) e.bias = ctx.input<float>(extra);
  if (attrs.has_residual != 0) {
    e.residual = ctx.input<float>(extra + attrs.conv.has_bias);
    e.residual_row = out.shape[1];
  }
  e.activation = attrs.activation;
  e.clamps = attrs.clamps != 0;
  e.low = attrs.low;
  e.high = attrs.high;
  return e;
}

std::string epilogue_text(const PackedConvAttrs& attrs) {
  return std::string(attrs.has_residual != 0 ? ", a sum in the epilogue" : "") +
         (attrs.clamps != 0 ? ", clamped in the epilogue" : "") + activation_text(attrs.activation);
}

std::string epilogue_text(const PackedLinearsAttrs& attrs) {
  std::string text;
  for (std::size_t i = 0; i < static_cast<std::size_t>(attrs.count); ++i) text += epilogue_text(attrs.layers[i]);
  return text + ", " + std::to_string(attrs.count) + " layers of the same rows";
}

i64 work_of_linears(const KernelContext& ctx) {
  return static_cast<i64>(ctx.output_descs.size()) * ctx.out().numel() * ctx.in(0).shape[1];
}

PackedProducts::PackedProducts(const KernelContext& ctx, const PackedConvAttrs& attrs) {
  products_[0].epilogue = channel_epilogue(ctx, attrs);
}

PackedProducts::PackedProducts(const KernelContext& ctx, const PackedLinearsAttrs& attrs) : count_(attrs.count) {
  int extra = 1 + attrs.count;
  for (int i = 0; i < attrs.count; ++i) {
    const PackedConvAttrs& layer = attrs.layers[static_cast<std::size_t>(i)];
    products_[static_cast<std::size_t>(i)] = {1 + i, channel_epilogue(ctx, layer, i, extra)};
    extra += layer.conv.has_bias;
  }
}

void PackedProducts::offset(i64 floats) {
  for (i64 i = 0; i < count_; ++i) graft::offset(products_[static_cast<std::size_t>(i)].epilogue, floats);
}

bool is_depthwise(const Shape& weight, i64 groups) { return groups > 1 && weight[0] == groups && weight[1] == 1; }

i64 packed_conv_floats(const Shape& weight, i64 groups, const PackedConvTable& table) {
  const i64 taps = weight[2] * weight[3] * weight[4];
  if (is_depthwise(weight, groups)) return taps * depthwise_weight_row(weight[0], table);
  return groups * ceil_div(weight[0] / groups, table.panel_width) * table.panel_width * weight[1] * taps;
}
i64 packed_conv_floats(const Shape& weight, i64 groups) {
  return packed_conv_floats(weight, groups, simd::packed_conv());
}

void run_pack_conv(const KernelContext& ctx, const PackedConvTable& table) noexcept {
  const bool depthwise = is_depthwise(ctx.in(0).shape, ctx.attrs<PackConvAttrs>().groups);
  depthwise ? pack_depthwise(ctx, table) : pack_panels(ctx, table);
}

void run_packed_conv(const KernelContext& ctx, const PackedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<PackedConvAttrs>();
  PackedConvolution(ctx.in(0), attrs).run(ctx, table, {ctx, attrs});
}

void run_packed_linears(const KernelContext& ctx, const PackedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<PackedLinearsAttrs>();
  PackedConvolution(ctx.in(0), attrs.layers[0]).run(ctx, table, {ctx, attrs});
}

// Rows of outputs in order: [N, D', H'].
void run_packed_depthwise_conv(const KernelContext& ctx, const PackedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<PackedConvAttrs>();
  const ConvAttrs& conv = attrs.conv;
  const TensorDesc& x = ctx.in(0);
  const Shape& out = ctx.out().shape;
  if (ctx.out().numel() == 0) return;
  PackedConvTable::Lines lines;
  lines.taps = attrs.kernel[2];
  lines.tap = conv.dilation[2];
  lines.step = conv.stride[2];
  lines.pad = conv.padding[2];
  lines.columns = x.shape[4];
  lines.outputs = out[4];
  lines.channels = out[1];
  lines.column = x.strides[4];
  const auto [begin, end] = ctx.range(out[0] * out[2] * out[3]);
  // A thread's list of input rows is in its scratch.
  const i64 count = attrs.kernel[0] * attrs.kernel[1];
  const auto** const list = reinterpret_cast<const float**>(ctx.scratch_bytes) + ctx.task * kLinesAtOnce * count;
  lines.lines = list;
  lines.line_count = static_cast<int>(count);
  lines.weight = ctx.input<float>(1);
  lines.weight_row = depthwise_weight_row(out[1], table);
  const simd::ChannelEpilogue from_start = channel_epilogue(ctx, attrs);
  for (i64 unit = begin; unit < end; unit += lines.rows) {
    lines.rows = std::min(kLinesAtOnce, end - unit);
    const auto** next = list;
    for (i64 i = unit; i < unit + lines.rows; ++i) {
      const i64 h = i % out[3], d = i / out[3] % out[2], n = i / out[3] / out[2];
      for (i64 kd = 0; kd < attrs.kernel[0]; ++kd) {
        for (i64 kh = 0; kh < attrs.kernel[1]; ++kh) {
          const i64 from_d = d * conv.stride[0] - conv.padding[0] + kd * conv.dilation[0];
          const i64 from_h = h * conv.stride[1] - conv.padding[1] + kh * conv.dilation[1];
          const bool inside = from_d >= 0 && from_d < x.shape[2] && from_h >= 0 && from_h < x.shape[3];
          *next++ =
              inside ? ctx.input<float>(0) + n * x.strides[0] + from_d * x.strides[2] + from_h * x.strides[3] : nullptr;
        }
      }
    }
    simd::ChannelEpilogue e = from_start;
    offset(e, unit * out[4] * out[1]);
    table.depthwise(lines, e);
  }
}

i64 packed_conv_scratch_bytes(const TensorDesc& x, const PackedConvAttrs& attrs, int threads) {
  return PackedConvolution(x, attrs).scratch_bytes(threads);
}

i64 packed_depthwise_scratch_bytes(const PackedConvAttrs& attrs, int threads) {
  return threads * kLinesAtOnce * attrs.kernel[0] * attrs.kernel[1] * static_cast<i64>(sizeof(const float*));
}

bool take_epilogue(PackedConvAttrs& attrs, const Epilogue& epilogue) {
  if (attrs.activation != simd::Activation::none || attrs.clamps != 0) return false;
  attrs.activation = epilogue.activation;
  attrs.clamps = epilogue.clamps ? 1 : 0;
  attrs.low = epilogue.low;
  attrs.high = epilogue.high;
  return true;
}

bool take_residual(PackedConvAttrs& attrs) {
  if (attrs.activation != simd::Activation::none || attrs.clamps != 0 || attrs.has_residual != 0) return false;
  attrs.has_residual = 1;
  return true;
}

bool linear_can_merge(const KernelContext& ctx) { return ctx.attrs<PackedConvAttrs>().has_residual == 0; }

bool linears_fit_together(const KernelContext& a, const KernelContext& b) { return a.out().shape == b.out().shape; }

AttrBytes merged_linears(std::span<const KernelContext* const> launches) {
  PackedLinearsAttrs attrs;
  for (const KernelContext* launch : launches)
    attrs.layers[static_cast<std::size_t>(attrs.count++)] = launch->attrs<PackedConvAttrs>();
  return bytes_of_attrs(attrs);
}

namespace {

constexpr auto kTakeEpilogue = take_epilogue_of<PackedConvAttrs, take_epilogue>;
constexpr auto kTakeResidual = take_residual_of<PackedConvAttrs, take_residual>;
constexpr MergeRule kMergeLinears = {kMostPackedLinears, linear_can_merge, linears_fit_together, &kPackedLinears,
                                     merged_linears};
constexpr Fusion kConvFusion = {
    .take_epilogue = kTakeEpilogue, .take_residual = kTakeResidual, .separable = &kSeparableRule};
constexpr Fusion kDepthwiseFusion = {
    .take_epilogue = kTakeEpilogue, .take_residual = kTakeResidual, .separable = &kSeparableRule, .is_depthwise = true};
constexpr Fusion kLinearFusion = {
    .take_epilogue = kTakeEpilogue, .take_residual = kTakeResidual, .merge = &kMergeLinears};

}  // namespace

const Kernel kPackConv = {"pack_conv", pack_here, kMinParallel};
const Kernel kPackedConv = {.name = "packed_conv",
                            .run = conv_here,
                            .parallel_from = kMinParallel,
                            .phases = phases<PackedConvAttrs>,
                            .explain = explain,
                            .steals_work = true,
                            .fusion = &kConvFusion};
const Kernel kPackedLinear = {.name = "packed_linear",
                              .run = conv_here,
                              .parallel_from = kMinParallelProducts,
                              .phases = phases<PackedConvAttrs>,
                              .explain = explain_linear,
                              .work = work_of_linears,
                              .steals_work = true,
                              .fusion = &kLinearFusion};
const Kernel kPackedLinears = {
    "packed_linears", linears_here, kMinParallelProducts, phases<PackedLinearsAttrs>, explain_linears,
    work_of_linears,  true};
const Kernel kPackedDepthwiseConv = {.name = "packed_depthwise_conv",
                                     .run = depthwise_here,
                                     .parallel_from = kMinParallel,
                                     .explain =
                                         [](const KernelContext& ctx) {
                                           const auto attrs = ctx.attrs<PackedConvAttrs>();
                                           return "f32, channels last, one input channel per group, " + isa_name() +
                                                  (attrs.clamps != 0 ? ", clamped in the epilogue" : "") +
                                                  activation_text(attrs.activation);
                                         },
                                     .fusion = &kDepthwiseFusion};

}  // namespace graft
