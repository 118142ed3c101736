#include "kernel/conv/packed_quantized_conv.h"
#include "kernel/conv/separable_quantized_conv.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "kernel/conv/conv_input.h"
#include "kernel/conv/packed_conv.h"
#include "kernel/conv/quantized_panels.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::ByteRun;
using simd::ByteTile;
using simd::QuantizedConvTable;

constexpr i64 kMinParallel = 4096;
// All panels for this many tiles at a time: their inputs stay in the first-level cache.
constexpr i64 kTilesAtOnce = 4;

// The numbers of one channel in the header of a panel or block of `width` channels.
struct Header {
  std::int32_t* start;
  float *scale, *bias;
  std::byte* weights;
  Header(std::byte* panel, i64 width)
      : start(reinterpret_cast<std::int32_t*>(panel)),
        scale(reinterpret_cast<float*>(panel) + width),
        bias(scale + width),
        weights(panel + kPlaceHeaderBytes * width) {}
};

// Groups of taps of a row of a depthwise weight.
i64 tap_groups(const ConvAttrs& conv, i64 taps, const QuantizedConvTable& table) {
  return packs_pairs(conv, taps, table) ? 2 : ceil_div(taps, table.step);
}

// --- packing ---

class Packer {
 public:
  Packer(const KernelContext& ctx, const QuantizedConvTable& table)
      : ctx_(ctx),
        attrs_(ctx.attrs<PackQuantizedConvAttrs>()),
        table_(table),
        shape_(ctx.in(0).shape),
        depth_(shape_[1] * shape_[2] * shape_[3] * shape_[4]) {}

  void panels() const {
    const i64 taps = shape_[4], lines = shape_[2] * shape_[3], channels = shape_[1];
    const BytePanels panels(shape_[0] / attrs_.conv.groups, sum_rows(shape_, attrs_.conv, table_.step), table_);
    const bool whole = whole_lines(attrs_.conv, taps);
    const auto [begin, end] = ctx_.range(attrs_.conv.groups * panels.count);
    for (i64 unit = begin; unit < end; ++unit) {
      const i64 group = unit / panels.count, panel = unit % panels.count;
      const int vectors = panels.vectors(panel);
      const i64 width = vectors * table_.lanes;
      const Header to = cleared(panels.offset(group, panel), panels.bytes(panel), width);
      for (int c = 0; c < panels.channels(panel); ++c) {
        const i64 row = group * panels.rows + panel * panels.width + c, slot = simd::slot_of(c, vectors, table_.lanes);
        put_numbers(to, slot, row);
        // Runs in order; each starts a new row of the weight.
        const i64 run_depth = whole ? taps * channels : channels, run_rows = ceil_div(run_depth, table_.step);
        for (i64 l = 0; l < lines; ++l)
          for (i64 t = 0; t < taps; ++t)
            for (i64 k = 0; k < channels; ++k) {
              const i64 run = whole ? l : l * taps + t, at = whole ? t * channels + k : k;
              const i64 sum_row = run * run_rows + at / table_.step;
              to.weights[(sum_row * width + slot) * table_.step + at % table_.step] =
                  weight(row, (k * lines + l) * taps + t);
            }
      }
    }
  }

  void blocks() const {
    const i64 taps = shape_[4], lines = shape_[2] * shape_[3], groups = tap_groups(attrs_.conv, taps, table_);
    const bool pairs = packs_pairs(attrs_.conv, taps, table_);
    i64 offset = 0;
    for (i64 first = 0; first < shape_[0];) {
      const int width = table_.block_width(shape_[0] - first);
      const i64 bytes = width * (kPlaceHeaderBytes + lines * groups * table_.step);
      const Header to = cleared(offset, bytes, width);
      for (int c = 0; c < width && first + c < shape_[0]; ++c) {
        const i64 slot = simd::slot_of(c, 4, width / 4);
        put_numbers(to, slot, first + c);
        const auto put = [&](i64 l, i64 group, i64 at, i64 t) {
          to.weights[((l * groups + group) * width + slot) * table_.step + at] = weight(first + c, l * taps + t);
        };
        for (i64 l = 0; l < lines; ++l)
          for (i64 t = 0; t < taps; ++t) {
            put(l, t / table_.step, t % table_.step, t);
            if (pairs) put(l, 1, t + 1, t);
          }
      }
      offset += bytes;
      first += width;
    }
  }

 private:
  std::byte weight(i64 row, i64 at) const { return ctx_.input<std::byte>(0)[row * depth_ + at]; }

  Header cleared(i64 offset, i64 bytes, i64 width) const {
    std::byte* panel = ctx_.output<std::byte>() + offset;
    std::memset(panel, 0, static_cast<std::size_t>(bytes));
    return {panel, width};
  }

  void put_numbers(const Header& to, i64 slot, i64 row) const {
    std::int32_t sum = 0;
    for (i64 k = 0; k < depth_; ++k) sum += ctx_.input<std::int8_t>(0)[row * depth_ + k];
    to.start[slot] = -attrs_.input_zero * sum;
    const float* scales = attrs_.has_weight_scale != 0 ? ctx_.input<float>(1) : nullptr;
    const bool one = scales != nullptr && ctx_.in(1).numel() == 1;
    to.scale[slot] = attrs_.input_scale * (scales != nullptr ? scales[one ? 0 : row] : attrs_.weight_scale);
    if (attrs_.conv.has_bias != 0) to.bias[slot] = ctx_.input<float>(1 + attrs_.has_weight_scale)[row];
  }

  const KernelContext& ctx_;
  const PackQuantizedConvAttrs attrs_;
  const QuantizedConvTable& table_;
  const Shape& shape_;
  const i64 depth_;
};

// --- running ---

// The epilogue for output positions from `first` on.
simd::QuantizedEpilogue epilogue_of(const KernelContext& ctx, const PackedQuantizedConvAttrs& attrs, i64 first) {
  const TensorDesc& out = ctx.out();
  simd::QuantizedEpilogue e = quantized_epilogue(attrs, out.dtype, attrs.has_residual != 0 ? &ctx.in(2) : nullptr);
  e.out_row = out.shape[1];
  e.out = ctx.output<std::byte>() + first * e.out_row * (e.floats ? 4 : 1);
  if (attrs.has_residual == 0) return e;
  e.residual_row = e.out_row;
  e.residual = ctx.input<std::uint8_t>(2) + first * e.residual_row;
  return e;
}

class Products {
 public:
  Products(const TensorDesc& x, const PackedQuantizedConvAttrs& attrs)
      : x_(x), attrs_(attrs), input_(x, attrs.conv, whole()) {}

  bool copies_input() const { return input_.copies_input(); }
  i64 scratch_bytes(int threads) const { return runs_bytes(threads) + input_.scratch_bytes() + kMostByteStep; }
  int phases() const { return input_.phases(); }

  void run(const KernelContext& ctx, const QuantizedConvTable& table) const {
    if (ctx.out().numel() == 0) return;
    input_.run(
        ctx, ctx.scratch_bytes + runs_bytes(ctx.tasks), static_cast<std::uint8_t>(attrs_.input_zero),
        [&](const std::uint8_t* x, i64 first, i64 samples) { multiply(ctx, table, x, first, samples); },
        flip_of(x_.dtype) != 0);
  }

 private:
  bool whole() const { return whole_lines(attrs_.conv, attrs_.kernel[2]); }
  i64 run_count() const { return attrs_.kernel[0] * attrs_.kernel[1] * (whole() ? 1 : attrs_.kernel[2]); }
  i64 runs_bytes(int threads) const {
    return ceil_div(threads * run_count() * static_cast<i64>(sizeof(ByteRun)), 64) * 64;
  }

  std::span<const ByteRun> runs_of(const KernelContext& ctx, i64 step) const {
    ByteRun* runs = reinterpret_cast<ByteRun*>(ctx.scratch_bytes) + ctx.task * run_count();
    ByteRun* next = runs;
    input_.for_each_run(attrs_.kernel, whole(), [&](i64 offset, i64 depth) {
      *next++ = {offset, copies_input() ? ceil_div(depth, step) * step : depth};
    });
    return {runs, static_cast<std::size_t>(run_count())};
  }

  void multiply(const KernelContext& ctx, const QuantizedConvTable& table, const std::uint8_t* x, i64 first_sample,
                i64 samples) const {
    const Shape& out = ctx.out().shape;
    const i64 groups = attrs_.conv.groups, channels = x_.shape[1] / groups, rows = out[1] / groups;
    const Shape weight = {out[1], channels, attrs_.kernel[0], attrs_.kernel[1], attrs_.kernel[2]};
    const BytePanels panels(rows, sum_rows(weight, attrs_.conv, table.step), table);
    const std::span<const ByteRun> runs = runs_of(ctx, table.step);
    const auto lines = input_.lines_of(out, samples, table.tile_rows);
    const simd::QuantizedEpilogue e = epilogue_of(ctx, attrs_, first_sample * out[2] * out[3] * out[4]);
    const i64 tiles = lines.all * lines.parts;
    const std::uint8_t flip = copies_input() ? 0 : flip_of(x_.dtype);
    for_tiles(ctx, tiles, groups * panels.count, kTilesAtOnce, samples * (x_.numel() / x_.shape[0]),
              [&](i64 index, i64, i64 from, i64 to) {
                const i64 group = index / panels.count, panel = index % panels.count;
                const std::byte* packed = ctx.input<std::byte>(1) + panels.offset(group, panel);
                const int vectors = panels.vectors(panel), width = panels.channels(panel);
                for (i64 t = from; t < to; ++t) {
                  const auto part = input_.part_of(lines, t);
                  const ByteTile tile{x + part.offset + group * channels, part.first, part.rows};
                  table.tile(tile, lines.step, flip, runs.data(), static_cast<i64>(runs.size()), packed, vectors,
                             group * rows + panel * panels.width, width, e);
                }
              });
  }

  const TensorDesc& x_;
  const PackedQuantizedConvAttrs& attrs_;
  const ConvInput<std::uint8_t> input_;
};

// A thread's table of columns, then a padding column.
struct ColumnTable {
  i64 lines, pitch, padding_offset, bytes;
  ColumnTable(const TensorDesc& x, const TensorDesc& out, const PackedQuantizedConvAttrs& attrs)
      : lines(attrs.kernel[0] * attrs.kernel[1]),
        pitch((out.shape[4] - 1) * attrs.conv.stride[2] + (attrs.kernel[2] - 1) * attrs.conv.dilation[2] + 1),
        padding_offset(lines * pitch * static_cast<i64>(sizeof(const std::uint8_t*))),
        bytes(ceil_div(padding_offset + x.shape[1], 64) * 64) {}
};

void pack_here(const KernelContext& ctx) noexcept { run_pack_quantized_conv(ctx, simd::quantized_conv()); }
void conv_here(const KernelContext& ctx) noexcept { run_packed_quantized_conv(ctx, simd::quantized_conv()); }
void depthwise_here(const KernelContext& ctx) noexcept {
  run_packed_quantized_depthwise_conv(ctx, simd::quantized_conv());
}

int phases(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<PackedQuantizedConvAttrs>();
  return Products(ctx.in(0), attrs).phases();
}

}  // namespace

i64 packed_quantized_conv_bytes(const Shape& weight, const ConvAttrs& conv, const QuantizedConvTable& table) {
  if (!is_depthwise(weight, conv.groups))
    return conv.groups * BytePanels(weight[0] / conv.groups, sum_rows(weight, conv, table.step), table).group_bytes();
  const i64 row = weight[2] * weight[3] * tap_groups(conv, weight[4], table) * table.step;
  i64 bytes = 0;
  for (i64 first = 0; first < weight[0]; first += table.block_width(weight[0] - first))
    bytes += table.block_width(weight[0] - first) * (kPlaceHeaderBytes + row);
  return bytes;
}
i64 packed_quantized_conv_bytes(const Shape& weight, const ConvAttrs& conv) {
  return packed_quantized_conv_bytes(weight, conv, simd::quantized_conv());
}

void run_pack_quantized_conv(const KernelContext& ctx, const QuantizedConvTable& table) noexcept {
  const Packer packer(ctx, table);
  if (!is_depthwise(ctx.in(0).shape, ctx.attrs<PackQuantizedConvAttrs>().conv.groups)) return packer.panels();
  if (ctx.task == 0) packer.blocks();
}

void run_packed_quantized_conv(const KernelContext& ctx, const QuantizedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<PackedQuantizedConvAttrs>();
  Products(ctx.in(0), attrs).run(ctx, table);
}

// Rows of outputs in order: [N, D', H'].
void run_packed_quantized_depthwise_conv(const KernelContext& ctx, const QuantizedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<PackedQuantizedConvAttrs>();
  const ConvAttrs& conv = attrs.conv;
  const TensorDesc& x = ctx.in(0);
  const Shape& out = ctx.out().shape;
  if (ctx.out().numel() == 0) return;
  const ColumnTable size(x, ctx.out(), attrs);
  std::byte* mine = ctx.scratch_bytes + ctx.task * size.bytes;
  const auto** columns = reinterpret_cast<const std::uint8_t**>(mine);
  auto* padding = reinterpret_cast<std::uint8_t*>(mine + size.padding_offset);
  std::memset(padding, attrs.input_zero, static_cast<std::size_t>(x.shape[1]));
  QuantizedConvTable::Line line;
  line.columns = columns;
  line.pitch = size.pitch;
  line.lines = size.lines;
  line.taps = attrs.kernel[2];
  line.tap = conv.dilation[2];
  line.step = conv.stride[2];
  line.outputs = out[4];
  line.channels = out[1];
  line.pairs = packs_pairs(conv, line.taps, table);
  line.flip = flip_of(x.dtype);
  line.weight = ctx.input<std::byte>(1);
  const auto [begin, end] = ctx.range(out[0] * out[2] * out[3]);
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 h = unit % out[3], d = unit / out[3] % out[2], n = unit / out[3] / out[2];
    for (i64 kd = 0; kd < attrs.kernel[0]; ++kd) {
      for (i64 kh = 0; kh < attrs.kernel[1]; ++kh) {
        const i64 from_d = d * conv.stride[0] - conv.padding[0] + kd * conv.dilation[0];
        const i64 from_h = h * conv.stride[1] - conv.padding[1] + kh * conv.dilation[1];
        const bool inside = from_d >= 0 && from_d < x.shape[2] && from_h >= 0 && from_h < x.shape[3];
        const std::uint8_t* from = ctx.input<std::uint8_t>(0) +
                                   (inside ? n * x.strides[0] + from_d * x.strides[2] + from_h * x.strides[3] : 0);
        const auto** to = columns + (kd * attrs.kernel[1] + kh) * size.pitch;
        for (i64 c = 0; c < size.pitch; ++c) {
          const i64 column = c - conv.padding[2];
          to[c] = inside && column >= 0 && column < x.shape[4] ? from + column * x.strides[4] : padding;
        }
      }
    }
    table.depthwise(line, epilogue_of(ctx, attrs, unit * out[4]));
  }
}

i64 packed_quantized_conv_scratch_bytes(const TensorDesc& x, const PackedQuantizedConvAttrs& attrs, int threads) {
  return Products(x, attrs).scratch_bytes(threads);
}

i64 packed_quantized_depthwise_scratch_bytes(const TensorDesc& x, const TensorDesc& out,
                                             const PackedQuantizedConvAttrs& attrs, int threads) {
  return threads * ColumnTable(x, out, attrs).bytes;
}

const Kernel kPackQuantizedConv = {"pack_quantized_conv", pack_here, kMinParallel};
namespace {

constexpr Fusion kConvFusion = {.separable = &kSeparableQuantizedRule};
constexpr Fusion kDepthwiseFusion = {.separable = &kSeparableQuantizedRule, .is_depthwise = true};

}  // namespace

const Kernel kPackedQuantizedConv = {.name = "packed_quantized_conv",
                                     .run = conv_here,
                                     .parallel_from = kMinParallel,
                                     .phases = phases,
                                     .explain =
                                         [](const KernelContext& ctx) {
                                           const auto attrs = ctx.attrs<PackedQuantizedConvAttrs>();
                                           const bool copies_input = Products(ctx.in(0), attrs).copies_input();
                                           return "8 bits, channels last, weights packed at load, " + isa_name() +
                                                  (copies_input ? ", input copied" : "") +
                                                  epilogue_text(attrs, ctx.out().dtype);
                                         },
                                     .steals_work = true,
                                     .fusion = &kConvFusion};
const Kernel kPackedQuantizedDepthwiseConv = {
    .name = "packed_quantized_depthwise_conv",
    .run = depthwise_here,
    .parallel_from = kMinParallel,
    .explain =
        [](const KernelContext& ctx) {
          return "8 bits, channels last, one input channel per group, " + isa_name() +
                 epilogue_text(ctx.attrs<PackedQuantizedConvAttrs>(), ctx.out().dtype);
        },
    .fusion = &kDepthwiseFusion};

}  // namespace graft
