#include "kernel/packed_conv.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "kernel/matmul.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::ConvPiece;
using simd::ConvTile;
using simd::PackedConvTable;

// Samples are laid out together while they fit into this: then they stay in the caches.
constexpr i64 kLaidOutBytes = i64{4} << 20;
constexpr i64 kMinParallel = 4096;
// With as many tiles for each thread, the tiles are divided among the threads, else tiles and panels are.
constexpr i64 kManyTiles = 32;

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

simd::ChannelEpilogue epilogue_of(const KernelContext& ctx, const PackedConvAttrs& attrs) {
  simd::ChannelEpilogue e;
  const TensorDesc& out = ctx.out();
  e.out = ctx.output<float>();
  e.out_row = out.shape[1];
  if (attrs.conv.has_bias != 0) e.bias = ctx.input<float>(2);
  if (attrs.has_residual != 0) {
    const int at = 2 + attrs.conv.has_bias;
    e.residual = ctx.input<float>(at);
    e.residual_row = out.shape[1];
  }
  e.activation = attrs.activation;
  e.clamps = attrs.clamps != 0;
  e.low = attrs.low;
  e.high = attrs.high;
  return e;
}

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
  const auto [begin, end] = ctx.share(attrs.groups * panels);
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 group = unit / panels, first = unit % panels * width;
    float* to = ctx.output<float>() + unit * depth * width;
    for (i64 j = 0; j < width; ++j) {
      const bool real = first + j < rows;
      const i64 row = group * rows + first + j;
      const float by = real && scale != nullptr ? scale[row] : 1.f;
      for (i64 t = 0; t < taps; ++t)
        for (i64 c = 0; c < channels; ++c)
          to[(t * channels + c) * width + j] = real ? weight[row * depth + c * taps + t] * by : 0.f;
    }
  }
}

void pack_depthwise(const KernelContext& ctx, const PackedConvTable& table) {
  const auto attrs = ctx.attrs<PackConvAttrs>();
  const Shape& shape = ctx.in(0).shape;
  const float* weight = ctx.input<float>(0);
  const float* scale = attrs.has_scale != 0 ? ctx.input<float>(1) : nullptr;
  const i64 taps = shape[2] * shape[3] * shape[4], width = ceil_div(shape[0], table.lanes) * table.lanes;
  const auto [begin, end] = ctx.share(taps);
  for (i64 t = begin; t < end; ++t)
    for (i64 c = 0; c < width; ++c)
      ctx.output<float>()[t * width + c] =
          c < shape[0] ? weight[c * taps + t] * (scale != nullptr ? scale[c] : 1.f) : 0.f;
}

// --- products ---

class PackedConvolution {
 public:
  PackedConvolution(const TensorDesc& x, const PackedConvAttrs& attrs) : x_(x), attrs_(attrs) {
    const ConvAttrs& conv = attrs.conv;
    bool padded = false;
    for (int d = 0; d < 3; ++d) {
      padded_[d] = x.shape[2 + d] + 2 * conv.padding[d];
      padded = padded || conv.padding[d] != 0;
    }
    lays_out_ = padded || (x.strides[1] != 1 && x.shape[1] != 1);
    if (lays_out_) {
      column_ = x.shape[1];
      line_ = padded_[2] * column_;
      plane_ = padded_[1] * line_;
      sample_ = padded_[0] * plane_;
      group_ = std::clamp<i64>(kLaidOutBytes / std::max<i64>(4 * sample_, 1), 1, std::max<i64>(x.shape[0], 1));
    } else {
      sample_ = x.strides[0];
      plane_ = x.strides[2];
      line_ = x.strides[3];
      column_ = x.strides[4];
      group_ = std::max<i64>(x.shape[0], 1);
    }
  }

  bool lays_out() const { return lays_out_; }
  // The pieces of a sum by thread, then the input.
  i64 scratch_bytes(int threads) const { return pieces_bytes(threads) + (lays_out_ ? group_ * sample_ * 4 : 0); }
  int phases() const { return static_cast<int>(lays_out_ ? 2 * ceil_div(x_.shape[0], group_) : 1); }

  void run(const KernelContext& ctx, const PackedConvTable& table) const {
    if (ctx.out().numel() == 0) return;
    if (!lays_out_) return multiply(ctx, table, ctx.input<float>(0), 0, x_.shape[0]);
    const i64 first = ctx.phase / 2 * group_, count = std::min(group_, x_.shape[0] - first);
    float* scratch = reinterpret_cast<float*>(ctx.scratch_bytes + pieces_bytes(ctx.threads));
    if (ctx.phase % 2 == 0) return lay_out(ctx, scratch, first, count);
    multiply(ctx, table, scratch, first, count);
  }

 private:
  // --- the input with its padding, channels last ---

  void lay_out(const KernelContext& ctx, float* to, i64 first, i64 count) const {
    const i64 lines = padded_[0] * padded_[1];
    const auto [begin, end] = ctx.share(count * lines);
    for (i64 unit = begin; unit < end; ++unit) {
      const i64 n = first + unit / lines, d = unit % lines / padded_[1] - attrs_.conv.padding[0],
                h = unit % padded_[1] - attrs_.conv.padding[1];
      float* line = to + unit * line_;
      if (d < 0 || d >= x_.shape[2] || h < 0 || h >= x_.shape[3]) {
        std::fill_n(line, line_, 0.f);
        continue;
      }
      const i64 pad = attrs_.conv.padding[2] * column_;
      std::fill_n(line, pad, 0.f);
      copy_line(ctx.input<float>(0) + n * x_.strides[0] + d * x_.strides[2] + h * x_.strides[3], line + pad);
      std::fill_n(line + line_ - pad, pad, 0.f);
    }
  }

  void copy_line(const float* from, float* to) const {
    const i64 channels = x_.shape[1], width = x_.shape[4];
    if (x_.strides[1] == 1 && (x_.strides[4] == channels || width == 1)) {
      std::memcpy(to, from, static_cast<std::size_t>(width * channels) * 4);
      return;
    }
    for (i64 w = 0; w < width; ++w)
      for (i64 c = 0; c < channels; ++c) to[w * channels + c] = from[w * x_.strides[4] + c * x_.strides[1]];
  }

  // --- the sums ---

  // Lines of outputs that are evenly apart in the input; where all positions are, one line.
  struct Lines {
    i64 count[3] = {1, 1, 1};  // samples, planes, lines of each
    i64 outputs = 0;           // of a line
    i64 step = 0;              // floats of input from one output to the next
  };

  Lines lines_of(const Shape& out, i64 samples) const {
    const ConvAttrs& conv = attrs_.conv;
    Lines lines{{samples, out[2], out[3]}, out[4], conv.stride[2] * column_};
    // A dimension joins those within it when its outputs go on where theirs end.
    const i64 strides[3] = {sample_, conv.stride[0] * plane_, conv.stride[1] * line_};
    for (int d = 2; d >= 0; --d) {
      if (lines.count[d] != 1 && strides[d] != lines.outputs * lines.step) break;
      lines.outputs *= lines.count[d];
      lines.count[d] = 1;
    }
    return lines;
  }

  // Calls add(offset, depth) for what lies beside each other of the inputs of an output, in the order of the packed
  // weight.
  template <typename Add>
  void for_each_run(Add&& add) const {
    const ConvAttrs& conv = attrs_.conv;
    const i64 channels = x_.shape[1] / conv.groups;
    // Taps of a line that lie beside each other are one.
    const bool whole = conv.dilation[2] == 1 && column_ == channels;
    for (i64 d = 0; d < attrs_.kernel[0]; ++d) {
      for (i64 h = 0; h < attrs_.kernel[1]; ++h) {
        const i64 from = d * conv.dilation[0] * plane_ + h * conv.dilation[1] * line_;
        if (whole) {
          add(from, attrs_.kernel[2] * channels);
          continue;
        }
        for (i64 w = 0; w < attrs_.kernel[2]; ++w) add(from + w * conv.dilation[2] * column_, channels);
      }
    }
  }

  i64 piece_count() const {
    i64 count = 0;
    for_each_run([&](i64, i64 depth) { count += ceil_div(depth, simd::kConvDepth); });
    return count;
  }
  i64 pieces_bytes(int threads) const {
    return ceil_div(threads * piece_count() * static_cast<i64>(sizeof(ConvPiece)), 64) * 64;
  }

  std::span<const ConvPiece> pieces_of(const KernelContext& ctx) const {
    const i64 count = piece_count();
    ConvPiece* pieces = reinterpret_cast<ConvPiece*>(ctx.scratch_bytes) + ctx.thread * count;
    ConvPiece* next = pieces;
    for_each_run([&](i64 offset, i64 depth) {
      for (; depth > 0; offset += simd::kConvDepth, depth -= simd::kConvDepth)
        *next++ = {offset, std::min(depth, simd::kConvDepth)};
    });
    return {pieces, static_cast<std::size_t>(count)};
  }

  void multiply(const KernelContext& ctx, const PackedConvTable& table, const float* x, i64 first_sample,
                i64 samples) const {
    const Shape& out = ctx.out().shape;
    const i64 groups = attrs_.conv.groups, channels = x_.shape[1] / groups, rows = out[1] / groups;
    const i64 depth = channels * attrs_.kernel[0] * attrs_.kernel[1] * attrs_.kernel[2];
    const i64 panels = ceil_div(rows, table.panel_width);
    const std::span<const ConvPiece> pieces = pieces_of(ctx);
    const Lines lines = lines_of(out, samples);
    const i64 line_count = lines.count[0] * lines.count[1] * lines.count[2];
    const i64 per_line = ceil_div(lines.outputs, table.tile_rows), tiles = line_count * per_line;
    simd::ChannelEpilogue e = epilogue_of(ctx, attrs_);
    offset(e, first_sample * out[2] * out[3] * out[4] * out[1]);

    const auto tile_at = [&](i64 i, i64 group) {
      const i64 line = i / per_line, part = i % per_line;
      const i64 first = part * lines.outputs / per_line, last = (part + 1) * lines.outputs / per_line;
      const i64 h = line % lines.count[2], d = line / lines.count[2] % lines.count[1],
                n = line / lines.count[2] / lines.count[1];
      const float* from = x + n * sample_ + d * attrs_.conv.stride[0] * plane_ + h * attrs_.conv.stride[1] * line_;
      return ConvTile{from + first * lines.step + group * channels, line * lines.outputs + first,
                      static_cast<int>(last - first)};
    };
    const auto run = [&](i64 panel, i64 from, i64 to) {
      const i64 group = panel / panels, first_channel = panel % panels * table.panel_width;
      const int width = static_cast<int>(std::min<i64>(table.panel_width, rows - first_channel));
      std::array<ConvTile, simd::kConvTiles> list;
      for (i64 t = from; t < to; t += simd::kConvTiles) {
        const int count = static_cast<int>(std::min<i64>(simd::kConvTiles, to - t));
        for (int i = 0; i < count; ++i) list[static_cast<std::size_t>(i)] = tile_at(t + i, group);
        table.tiles(list.data(), count, lines.step, pieces.data(), static_cast<i64>(pieces.size()),
                    ctx.input<float>(1) + panel * depth * table.panel_width, group * rows + first_channel, width, e);
      }
    };
    const i64 all = groups * panels;
    if (tiles >= kManyTiles * ctx.threads) {
      // Some tiles at a time by all panels: these inputs stay in the first caches.
      const auto [begin, end] = ctx.share(tiles);
      for (i64 t = begin; t < end; t += simd::kConvTiles)
        for (i64 panel = 0; panel < all; ++panel) run(panel, t, std::min<i64>(t + simd::kConvTiles, end));
      return;
    }
    const auto [begin, end] = ctx.share(all * tiles);
    for (i64 unit = begin; unit < end;) {
      const i64 panel = unit / tiles, last = std::min(end, (panel + 1) * tiles);
      run(panel, unit - panel * tiles, last - panel * tiles);
      unit = last;
    }
  }

  const TensorDesc& x_;
  const PackedConvAttrs& attrs_;
  i64 padded_[3] = {};
  bool lays_out_ = false;
  i64 sample_ = 0, plane_ = 0, line_ = 0, column_ = 0;  // floats, of what is read
  i64 group_ = 1;                                       // samples that are laid out at a time
};

void pack_here(const KernelContext& ctx) noexcept { run_pack_conv(ctx, simd::packed_conv()); }
void conv_here(const KernelContext& ctx) noexcept { run_packed_conv(ctx, simd::packed_conv()); }
void depthwise_here(const KernelContext& ctx) noexcept { run_packed_depthwise_conv(ctx, simd::packed_conv()); }

int phases(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<PackedConvAttrs>();
  return PackedConvolution(ctx.in(0), attrs).phases();
}

std::string why(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<PackedConvAttrs>();
  std::string text = "f32, channels last, weights packed at load, " + isa_name();
  if (PackedConvolution(ctx.in(0), attrs).lays_out()) text += ", input laid out";
  if (attrs.has_residual != 0) text += ", a sum on the way out";
  if (attrs.clamps != 0) text += ", clamped on the way out";
  return text + activation_text(attrs.activation);
}

}  // namespace

bool is_depthwise(const Shape& weight, i64 groups) { return groups > 1 && weight[0] == groups && weight[1] == 1; }

i64 packed_conv_floats(const Shape& weight, i64 groups, const PackedConvTable& table) {
  const i64 taps = weight[2] * weight[3] * weight[4];
  if (is_depthwise(weight, groups)) return taps * ceil_div(weight[0], table.lanes) * table.lanes;
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
  PackedConvolution(ctx.in(0), attrs).run(ctx, table);
}

// Lines of outputs, one after another: [N, D', H'].
void run_packed_depthwise_conv(const KernelContext& ctx, const PackedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<PackedConvAttrs>();
  const ConvAttrs& conv = attrs.conv;
  const TensorDesc& x = ctx.in(0);
  const Shape& out = ctx.out().shape;
  if (ctx.out().numel() == 0) return;
  PackedConvTable::Line line;
  line.taps = attrs.kernel[2];
  line.tap = conv.dilation[2];
  line.step = conv.stride[2];
  line.pad = conv.padding[2];
  line.columns = x.shape[4];
  line.outputs = out[4];
  line.channels = out[1];
  line.column = x.strides[4];
  const auto [begin, end] = ctx.share(out[0] * out[2] * out[3]);
  // A thread's list of input lines lies in its scratch.
  const i64 count = attrs.kernel[0] * attrs.kernel[1];
  const auto** lines = reinterpret_cast<const float**>(ctx.scratch_bytes) + ctx.thread * count;
  line.lines = lines;
  line.line_count = static_cast<int>(count);
  line.weight = ctx.input<float>(1);
  const simd::ChannelEpilogue from_start = epilogue_of(ctx, attrs);
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 h = unit % out[3], d = unit / out[3] % out[2], n = unit / out[3] / out[2];
    for (i64 kd = 0; kd < attrs.kernel[0]; ++kd) {
      for (i64 kh = 0; kh < attrs.kernel[1]; ++kh) {
        const i64 from_d = d * conv.stride[0] - conv.padding[0] + kd * conv.dilation[0];
        const i64 from_h = h * conv.stride[1] - conv.padding[1] + kh * conv.dilation[1];
        const bool inside = from_d >= 0 && from_d < x.shape[2] && from_h >= 0 && from_h < x.shape[3];
        lines[kd * attrs.kernel[1] + kh] =
            inside ? ctx.input<float>(0) + n * x.strides[0] + from_d * x.strides[2] + from_h * x.strides[3] : nullptr;
      }
    }
    simd::ChannelEpilogue e = from_start;
    offset(e, unit * out[4] * out[1]);
    table.depthwise(line, e);
  }
}

i64 packed_conv_scratch_bytes(const TensorDesc& x, const PackedConvAttrs& attrs, int threads) {
  return PackedConvolution(x, attrs).scratch_bytes(threads);
}

i64 packed_depthwise_scratch_bytes(const PackedConvAttrs& attrs, int threads) {
  return threads * attrs.kernel[0] * attrs.kernel[1] * static_cast<i64>(sizeof(const float*));
}

const Kernel kPackConv = {"pack_conv", pack_here, kMinParallel};
const Kernel kPackedConv = {"packed_conv", conv_here, kMinParallel, phases, why};
const Kernel kPackedDepthwiseConv = {
    "packed_depthwise_conv", depthwise_here, kMinParallel, nullptr, [](const KernelContext& ctx) {
      const auto attrs = ctx.attrs<PackedConvAttrs>();
      return "f32, channels last, one input channel per group, " + isa_name() +
             (attrs.clamps != 0 ? ", clamped on the way out" : "") + activation_text(attrs.activation);
    }};

}  // namespace graft
