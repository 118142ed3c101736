#include "kernel/separable_conv.h"

#include <algorithm>
#include <array>

#include "kernel/conv_input.h"
#include "kernel/matmul.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::ChannelEpilogue;
using simd::ConvPiece;
using simd::ConvTile;
using simd::PackedConvTable;

// What a band takes of the second-level cache, whose rest is for weights, input and output.
constexpr i64 kBandBytes = i64{256} << 10;
constexpr i64 kMinParallel = 4096;

// Weight, bias and residual of one of the three, as they follow in the inputs.
struct Operands {
  const float* weight = nullptr;
  ChannelEpilogue epilogue;  // without its output
};

Operands take_operands(const KernelContext& ctx, const PackedConvAttrs& attrs, int& next) {
  Operands o;
  o.weight = ctx.input<float>(next++);
  if (attrs.conv.has_bias != 0) o.epilogue.bias = ctx.input<float>(next++);
  if (attrs.has_residual != 0) {
    o.epilogue.residual = ctx.input<float>(next++);
    o.epilogue.residual_row = ctx.out().shape[1];
  }
  o.epilogue.activation = attrs.activation;
  o.epilogue.clamps = attrs.clamps != 0;
  o.epilogue.low = attrs.low;
  o.epilogue.high = attrs.high;
  return o;
}

// A product of positions by a packed weight.
struct Pointwise {
  i64 depth = 0, channels = 0;
  const float* weight = nullptr;
  const ConvPiece* pieces = nullptr;
  i64 piece_count = 0;

  static i64 pieces_of(i64 depth) { return ceil_div(depth, simd::kConvDepth); }
  void cut(ConvPiece* to) {
    pieces = to;
    piece_count = pieces_of(depth);
    for (i64 i = 0; i < piece_count; ++i)
      to[i] = {i * simd::kConvDepth, std::min(depth - i * simd::kConvDepth, simd::kConvDepth)};
  }

  // Lines of `columns` positions, all `row` apart. Each line is cut into tiles by itself: how the sum of a position is
  // taken then does not depend on the share that it falls into.
  void run(const PackedConvTable& table, const float* x, i64 row, i64 lines, i64 columns,
           const ChannelEpilogue& e) const {
    const i64 parts = ceil_div(columns, table.tile_rows), panels = ceil_div(channels, table.panel_width);
    const i64 least = columns / parts, more = columns % parts;
    std::array<ConvTile, simd::kConvTiles> list;
    i64 at = 0, part = 0;
    for (i64 left = lines * parts; left > 0; left -= simd::kConvTiles) {
      const int count = static_cast<int>(std::min<i64>(simd::kConvTiles, left));
      for (int i = 0; i < count; ++i) {
        const i64 rows = least + (part < more ? 1 : 0);
        list[static_cast<std::size_t>(i)] = {x + at * row, at, static_cast<int>(rows)};
        at += rows;
        part = part + 1 < parts ? part + 1 : 0;
      }
      for (i64 panel = 0; panel < panels; ++panel) {
        const i64 first = panel * table.panel_width;
        table.tiles(list.data(), count, row, pieces, piece_count, weight + first * depth, first,
                    static_cast<int>(std::min<i64>(table.panel_width, channels - first)), e);
      }
    }
  }
};

class SeparableConvolution {
 public:
  SeparableConvolution(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs)
      : x_(x), out_(out), attrs_(attrs), conv_(attrs.depthwise.conv), lines_(attrs.depthwise.kernel[1]) {
    const i64 reach = (lines_ - 1) * conv_.dilation[1] + 1;
    const auto held_by = [&](i64 band) { return (band - 1) * conv_.stride[1] + reach; };
    const auto bytes_of = [&](i64 band) { return 4 * (expanded_floats(held_by(band)) + depthwise_floats(band)); };
    while (band_ < out.shape[3] && bytes_of(band_ + 1) <= kBandBytes) ++band_;
    held_ = held_by(band_);
  }

  i64 scratch_bytes(int threads) const { return threads * thread_bytes(); }

  // Lines of outputs, one after another: [N, H'].
  void run(const KernelContext& ctx, const PackedConvTable& table) const {
    const i64 height = out_.shape[3];
    const auto [begin, end] = ctx.share(out_.shape[0] * height);
    if (begin == end) return;
    const Work work(*this, ctx, table);
    for (i64 unit = begin; unit < end;) {
      const i64 sample = unit / height, first = unit % height, last = std::min(height, first + end - unit);
      run_lines(work, sample, first, last);
      unit += last - first;
    }
  }

 private:
  i64 expanded_floats(i64 lines) const { return attrs_.has_expand != 0 ? lines * x_.shape[4] * attrs_.channels : 0; }
  i64 depthwise_floats(i64 lines) const {
    return attrs_.has_project != 0 ? lines * out_.shape[4] * attrs_.channels : 0;
  }
  i64 expand_pieces() const { return attrs_.has_expand != 0 ? Pointwise::pieces_of(x_.shape[1]) : 0; }
  i64 project_pieces() const { return attrs_.has_project != 0 ? Pointwise::pieces_of(attrs_.channels) : 0; }
  i64 list_bytes() const {
    const auto bytes = (expand_pieces() + project_pieces()) * static_cast<i64>(sizeof(ConvPiece)) +
                       lines_ * static_cast<i64>(sizeof(const float*));
    return ceil_div(bytes, 64) * 64;
  }
  i64 thread_bytes() const {
    return list_bytes() + ceil_div(4 * (expanded_floats(held_) + depthwise_floats(band_)), 64) * 64;
  }

  // What a share works with: its operands and its part of the scratch.
  struct Work {
    const PackedConvTable& table;
    const float* x;
    float* out;
    Operands of_expand, of_depthwise, of_project;
    Pointwise expand, project;
    const float** lines;  // of a line of outputs
    float* expanded;      // [held, W, channels]: line h of the input's lies at h % held
    float* between;       // [band, W', channels]

    Work(const SeparableConvolution& c, const KernelContext& ctx, const PackedConvTable& loops)
        : table(loops), x(ctx.input<float>(0)), out(ctx.output<float>()) {
      const SeparableConvAttrs& attrs = c.attrs_;
      int next = 1;
      if (attrs.has_expand != 0) of_expand = take_operands(ctx, attrs.expand, next);
      of_depthwise = take_operands(ctx, attrs.depthwise, next);
      if (attrs.has_project != 0) of_project = take_operands(ctx, attrs.project, next);
      std::byte* mine = ctx.scratch_bytes + ctx.thread * c.thread_bytes();
      auto* pieces = reinterpret_cast<ConvPiece*>(mine);
      expand = {c.x_.shape[1], attrs.channels, of_expand.weight};
      if (attrs.has_expand != 0) expand.cut(pieces);
      project = {attrs.channels, c.out_.shape[1], of_project.weight};
      if (attrs.has_project != 0) project.cut(pieces + c.expand_pieces());
      lines = reinterpret_cast<const float**>(pieces + c.expand_pieces() + c.project_pieces());
      expanded = reinterpret_cast<float*>(mine + c.list_bytes());
      between = expanded + c.expanded_floats(c.held_);
    }
  };

  void run_lines(const Work& work, i64 sample, i64 first, i64 last) const {
    const i64 reach = (lines_ - 1) * conv_.dilation[1] + 1;
    i64 ready = 0;  // input lines below it are expanded, as far as they are held
    for (i64 h = first; h < last; h += band_) {
      const i64 count = std::min(band_, last - h);
      if (attrs_.has_expand != 0) {
        const i64 from = h * conv_.stride[1] - conv_.padding[1];
        const i64 to = std::min(x_.shape[3], from + (count - 1) * conv_.stride[1] + reach);
        ready = std::max(ready, from);
        if (ready < to) expand(work, sample, ready, to);
        ready = std::max(ready, to);
      }
      depthwise(work, sample, h, count);
      if (attrs_.has_project != 0) project(work, sample, h, count);
    }
  }

  // Lines [from, to) of the input.
  void expand(const Work& work, i64 sample, i64 from, i64 to) const {
    const i64 line = x_.shape[4] * attrs_.channels;
    while (from < to) {
      const i64 at = from % held_, count = std::min(to - from, held_ - at);
      ChannelEpilogue e = work.of_expand.epilogue;
      e.out = work.expanded + at * line;
      e.out_row = attrs_.channels;
      work.expand.run(work.table, work.x + sample * x_.strides[0] + from * x_.strides[3], x_.strides[4], count,
                      x_.shape[4], e);
      from += count;
    }
  }

  void depthwise(const Work& work, i64 sample, i64 first, i64 count) const {
    const i64 columns = out_.shape[4];
    PackedConvTable::Line line;
    line.lines = work.lines;
    line.line_count = static_cast<int>(lines_);
    line.taps = attrs_.depthwise.kernel[2];
    line.tap = conv_.dilation[2];
    line.step = conv_.stride[2];
    line.pad = conv_.padding[2];
    line.columns = x_.shape[4];
    line.outputs = columns;
    line.channels = attrs_.channels;
    line.column = attrs_.has_expand != 0 ? attrs_.channels : x_.strides[4];
    line.weight = work.of_depthwise.weight;
    ChannelEpilogue e = work.of_depthwise.epilogue;
    e.out = attrs_.has_project != 0 ? work.between : work.out + (sample * out_.shape[3] + first) * columns * e_row();
    e.out_row = e_row();
    for (i64 h = first; h < first + count; ++h, e.out += columns * e_row()) {
      for (i64 k = 0; k < lines_; ++k) {
        const i64 from = h * conv_.stride[1] - conv_.padding[1] + k * conv_.dilation[1];
        const bool inside = from >= 0 && from < x_.shape[3];
        work.lines[k] = !inside                  ? nullptr
                        : attrs_.has_expand != 0 ? work.expanded + from % held_ * x_.shape[4] * attrs_.channels
                                                 : work.x + sample * x_.strides[0] + from * x_.strides[3];
      }
      work.table.depthwise(line, e);
    }
  }
  i64 e_row() const { return attrs_.channels; }

  void project(const Work& work, i64 sample, i64 first, i64 count) const {
    const i64 columns = out_.shape[4], channels = out_.shape[1];
    ChannelEpilogue e = work.of_project.epilogue;
    const i64 at = (sample * out_.shape[3] + first) * columns * channels;
    e.out = work.out + at;
    e.out_row = channels;
    if (e.residual != nullptr) e.residual += at;
    work.project.run(work.table, work.between, attrs_.channels, count, columns, e);
  }

  const TensorDesc &x_, &out_;
  const SeparableConvAttrs& attrs_;
  const ConvAttrs& conv_;
  const i64 lines_;  // of the depthwise kernel
  i64 band_ = 1;     // output lines at a time
  i64 held_ = 1;     // expanded lines that they need
};

void run_here(const KernelContext& ctx) noexcept { run_separable_conv(ctx, simd::packed_conv()); }

std::string why(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<SeparableConvAttrs>();
  const auto part = [](const PackedConvAttrs& of) {
    return std::string(of.has_residual != 0 ? ", a sum on the way out" : "") +
           (of.clamps != 0 ? ", clamped on the way out" : "") + activation_text(of.activation);
  };
  std::string text = "f32, channels last, " + isa_name() + ", by bands of lines: ";
  if (attrs.has_expand != 0) text += "pointwise" + part(attrs.expand) + "; ";
  text += "one input channel per group" + part(attrs.depthwise);
  if (attrs.has_project != 0) text += "; pointwise" + part(attrs.project);
  return text;
}

}  // namespace

void run_separable_conv(const KernelContext& ctx, const PackedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<SeparableConvAttrs>();
  SeparableConvolution(ctx.in(0), ctx.out(), attrs).run(ctx, table);
}

i64 separable_conv_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs,
                                 int threads) {
  return SeparableConvolution(x, out, attrs).scratch_bytes(threads);
}

const Kernel kSeparableConv = {"separable_conv", run_here, kMinParallel, nullptr, why};

}  // namespace graft
