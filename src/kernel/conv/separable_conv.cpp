#include "kernel/conv/separable_conv.h"

#include <algorithm>
#include <span>

#include "kernel/conv/conv_input.h"
#include "kernel/conv/separable_rule.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::ChannelEpilogue;
using simd::ConvTile;
using simd::KBlock;
using simd::PackedConvTable;

constexpr i64 kMinParallel = 4096;

// Weight, bias and residual of one of the three convolutions, in the order of the inputs.
struct Operands {
  const float* weight = nullptr;
  ChannelEpilogue epilogue;  // `out` is not set
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

// The contiguous runs of the inputs of the convolution before a depthwise one: see ConvInput::for_each_run.
template <typename Add>
void for_each_run(const ConvInput<float>& input, const TensorDesc& x, const PackedConvAttrs& expand, Add&& add) {
  input.for_each_run(expand.kernel, expand.conv.dilation[2] == 1 && input.column == x.shape[1], add);
}

// Products of rows of positions with a packed weight.
struct Product {
  PackedSums sums;
  i64 channels = 0;
  const float* weight = nullptr;

  // `row`: floats of x between positions, `line`: between rows. How a position is summed must not depend on its task,
  // so each row is divided into tiles by itself. Rows without gaps are joined when all tiles would have more than half
  // of tile_rows: such tiles add products in the same order whatever their number of rows.
  void run(const PackedConvTable& table, const float* x, i64 row, i64 line, i64 lines, i64 columns,
           const ChannelEpilogue& e) const {
    const i64 least = columns / ceil_div(columns, table.tile_rows);
    if (line == columns * row && 2 * least > table.tile_rows) {
      columns *= lines;
      lines = 1;
    }
    const i64 panels = ceil_div(channels, table.panel_width);
    for_tiles<ConvTile, simd::kConvTilesAtOnce>(
        x, row, line, lines, columns, table.tile_rows, [&](const ConvTile* tiles, int count) {
          for (i64 panel = 0; panel < panels; ++panel) {
            const i64 first = panel * table.panel_width;
            sums.multiply(table, {tiles, static_cast<std::size_t>(count)}, row, weight + first * sums.depth, nullptr,
                          false, first, static_cast<int>(std::min<i64>(table.panel_width, channels - first)), e);
          }
        });
  }
};

class SeparableConvolution {
 public:
  SeparableConvolution(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs)
      : x_(x),
        out_(out),
        attrs_(attrs),
        conv_(attrs.depthwise.conv),
        input_(x, attrs.expand.conv),
        width_(attrs.width),
        lines_(attrs.depthwise.kernel[1]),
        bands_(conv_, lines_, attrs.height, out.shape[3], out.shape[4], 4 * expanded_floats(1),
               4 * depthwise_floats(1)),
        copied_(attrs.expand.conv, attrs.expand.kernel[1], 4 * input_.line) {}

  bool copies_input() const { return expands() && input_.copies_input(); }
  i64 scratch_bytes(int threads) const { return threads * thread_bytes(); }

  // This task's part of the rows of outputs [samples, H'].
  void run(const KernelContext& ctx, const PackedConvTable& table) const {
    const Work work(*this, ctx, table);
    bands_.run(
        ctx, x_.shape[0], [&](auto... lines) { expand(work, lines...); },
        [&](auto... lines) { depthwise(work, lines...); }, [&](auto... lines) { project(work, lines...); });
  }

 private:
  bool expands() const { return attrs_.has_expand != 0; }
  bool projects() const { return attrs_.has_project != 0; }
  i64 expanded_floats(i64 lines) const { return expands() ? lines * width_ * attrs_.channels : 0; }
  // An odd number of cache lines: pads the ring buffer so that, for most channel counts, its loads and the stores to
  // the buffer behind it do not collide by 4K aliasing.
  i64 ring_floats() const { return ceil_div(expanded_floats(bands_.held()), i64{32}) * 32 + 16; }
  i64 depthwise_floats(i64 lines) const { return projects() ? lines * out_.shape[4] * attrs_.channels : 0; }
  i64 laid_out_floats() const { return copies_input() ? copied_.read_by(copied_.made()) * input_.line : 0; }

  i64 expand_pieces() const {
    i64 count = 0;
    if (expands())
      for_each_run(input_, x_, attrs_.expand, [&](i64, i64 depth) { count += simd::k_block_count(depth); });
    return count;
  }
  i64 project_pieces() const { return projects() ? simd::k_block_count(attrs_.channels) : 0; }
  i64 list_bytes() const {
    const auto bytes = (expand_pieces() + project_pieces()) * static_cast<i64>(sizeof(KBlock)) +
                       bands_.band() * lines_ * static_cast<i64>(sizeof(const float*));
    return ceil_div(bytes, 64) * 64;
  }
  i64 thread_bytes() const {
    const i64 floats = ring_floats() + depthwise_floats(bands_.band()) + laid_out_floats();
    return list_bytes() + ceil_div(4 * floats, 64) * 64;
  }

  // A task's operands and its part of the scratch.
  struct Work {
    const PackedConvTable& table;
    const float* x;
    float* out;
    Operands of_expand, of_depthwise, of_project;
    Product expand, project;
    const float** lines;  // [band, rows of the kernel]
    float* expanded;      // ring buffer [held, W, channels]: row h is at h % held
    float* between;       // [band, W', channels]
    float* laid_out;      // rows of x with their padding

    Work(const SeparableConvolution& c, const KernelContext& ctx, const PackedConvTable& loops)
        : table(loops), x(ctx.input<float>(0)), out(ctx.output<float>()) {
      const SeparableConvAttrs& attrs = c.attrs_;
      int next = 1;
      if (c.expands()) of_expand = take_operands(ctx, attrs.expand, next);
      of_depthwise = take_operands(ctx, attrs.depthwise, next);
      if (c.projects()) of_project = take_operands(ctx, attrs.project, next);
      std::byte* mine = ctx.scratch_bytes + ctx.task * c.thread_bytes();
      auto* const k_blocks = reinterpret_cast<KBlock*>(mine);
      KBlock* end = k_blocks;
      if (c.expands()) {
        for_each_run(c.input_, c.x_, attrs.expand,
                     [&](i64 offset, i64 depth) { end = simd::cut_k_blocks(offset, depth, end); });
        const auto& kernel = attrs.expand.kernel;
        const i64 taps = kernel[1] * kernel[2];
        expand = {{taps, c.x_.shape[1] * taps, {k_blocks, end}}, attrs.channels, of_expand.weight};
      }
      if (c.projects()) {
        KBlock* const first = end;
        end = simd::cut_k_blocks(0, attrs.channels, end);
        project = {{1, attrs.channels, {first, end}}, c.out_.shape[1], of_project.weight};
      }
      lines = reinterpret_cast<const float**>(end);
      expanded = reinterpret_cast<float*>(mine + c.list_bytes());
      between = expanded + c.ring_floats();
      laid_out = between + c.depthwise_floats(c.bands_.band());
    }
  };

  // Computes rows of the depthwise convolution's input into the ring buffer, from row `at` on.
  void expand(const Work& work, i64 sample, i64 first, i64 count, i64 at) const {
    const ConvAttrs& conv = attrs_.expand.conv;
    const i64 line = conv.stride[1] * input_.line, most = copies_input() ? copied_.made() : count;
    ChannelEpilogue e = work.of_expand.epilogue;
    e.out = work.expanded + at * width_ * attrs_.channels;
    e.out_row = attrs_.channels;
    for (const i64 end = first + count; first < end; first += most, e.out += most * width_ * attrs_.channels) {
      const i64 lines = std::min(most, end - first);
      const float* x = work.laid_out;
      if (copies_input()) {
        input_.copy_rows(work.x, sample, copied_.first_read_by(first), copied_.read_by(lines), 0.f, false,
                         work.laid_out);
      } else {
        x = work.x + sample * input_.sample + first * line;
      }
      work.expand.run(work.table, x, conv.stride[2] * input_.column, line, lines, width_, e);
    }
  }

  void depthwise(const Work& work, i64 sample, i64 first, i64 count) const {
    const i64 columns = out_.shape[4], channels = attrs_.channels;
    PackedConvTable::Lines lines;
    lines.rows = count;
    lines.lines = work.lines;
    lines.line_count = static_cast<int>(lines_);
    lines.taps = attrs_.depthwise.kernel[2];
    lines.tap = conv_.dilation[2];
    lines.step = conv_.stride[2];
    lines.pad = conv_.padding[2];
    lines.columns = width_;
    lines.outputs = columns;
    lines.channels = channels;
    lines.column = expands() ? channels : x_.strides[4];
    lines.weight = work.of_depthwise.weight;
    lines.weight_row = depthwise_weight_row(channels, work.table);
    const float** next = work.lines;
    for (i64 h = first; h < first + count; ++h) {
      for (i64 k = 0; k < lines_; ++k) {
        const i64 from = bands_.seen(h, k);
        const float*& at = *next++;
        at = nullptr;
        if (!bands_.inside(from)) continue;
        at = expands() ? work.expanded + from % bands_.held() * width_ * channels
                       : work.x + sample * x_.strides[0] + from * x_.strides[3];
      }
    }
    ChannelEpilogue e = work.of_depthwise.epilogue;
    e.out = projects() ? work.between : work.out + (sample * out_.shape[3] + first) * columns * channels;
    e.out_row = channels;
    work.table.depthwise(lines, e);
  }

  void project(const Work& work, i64 sample, i64 first, i64 count) const {
    const i64 columns = out_.shape[4], channels = out_.shape[1];
    const i64 at = (sample * out_.shape[3] + first) * columns * channels;
    ChannelEpilogue e = work.of_project.epilogue;
    e.out = work.out + at;
    e.out_row = channels;
    if (e.residual != nullptr) e.residual += at;
    work.project.run(work.table, work.between, attrs_.channels, columns * attrs_.channels, count, columns, e);
  }

  const TensorDesc &x_, &out_;
  const SeparableConvAttrs& attrs_;
  const ConvAttrs& conv_;         // the depthwise one
  const ConvInput<float> input_;  // of the convolution before it
  const i64 width_;               // of the depthwise convolution's input
  const i64 lines_;               // rows of its kernel
  const LineBands bands_;
  const CopiedRows copied_;
};

// For small images: a panel's channels of the whole image fit into the first-level cache. By bands of rows, each core
// would read panels that other cores computed, for every image.
class SeparablePanels {
 public:
  SeparablePanels(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs)
      : x_(x), out_(out), attrs_(attrs), conv_(attrs.depthwise.conv), input_(x, attrs.expand.conv) {}

  i64 scratch_bytes(int threads) const { return threads * thread_bytes(); }

  void run(const KernelContext& ctx, const PackedConvTable& table) const {
    if (ctx.out().numel() == 0) return;
    int next = 1;
    const Operands of_expand = take_operands(ctx, attrs_.expand, next);
    const Operands of_depthwise = take_operands(ctx, attrs_.depthwise, next);
    std::byte* mine = ctx.scratch_bytes + ctx.task * thread_bytes();
    auto* const k_blocks = reinterpret_cast<KBlock*>(mine);
    KBlock* end = k_blocks;
    for_each_run(input_, x_, attrs_.expand,
                 [&](i64 offset, i64 depth) { end = simd::cut_k_blocks(offset, depth, end); });
    auto* const lines = reinterpret_cast<const float**>(end);
    auto* const panel = reinterpret_cast<float*>(mine + list_bytes());  // [N, H, W, panel_width]

    const auto& kernel = attrs_.expand.kernel;
    const i64 taps = kernel[1] * kernel[2], depth = x_.shape[1] * taps, width = table.panel_width;
    const PackedSums sums = {taps, depth, {k_blocks, end}};
    const i64 panels = ceil_div(attrs_.channels, width);
    const bool prefetches = depth * panels * width > kNearWeightFloats;
    bool fresh = ctx.tasks > 1;
    ctx.for_chunks(panels, {}, [&](i64 begin, i64 stop) {
      for (i64 i = begin; i < stop; ++i) {
        const i64 first = i * width, channels = std::min(width, attrs_.channels - first);
        const float* const weight = of_expand.weight + first * depth;
        const float* const next_weight = prefetches && i + 1 < panels ? weight + width * depth : nullptr;
        expand(table, sums, ctx.input<float>(0), weight, next_weight, fresh,
               of_channels(of_expand.epilogue, first, panel, width), static_cast<int>(channels));
        for (i64 n = 0; n < x_.shape[0]; ++n) {
          float* const out = ctx.output<float>() + n * out_.shape[3] * out_.shape[4] * attrs_.channels + first;
          depthwise(table, panel + n * attrs_.height * attrs_.width * width, lines, of_depthwise.weight + first,
                    channels, of_channels(of_depthwise.epilogue, first, out, attrs_.channels));
        }
        fresh = false;
      }
    });
  }

 private:
  i64 list_bytes() const {
    i64 count = 0;
    for_each_run(input_, x_, attrs_.expand, [&](i64, i64 depth) { count += simd::k_block_count(depth); });
    const auto bytes = count * static_cast<i64>(sizeof(KBlock)) +
                       out_.shape[3] * attrs_.depthwise.kernel[1] * static_cast<i64>(sizeof(const float*));
    return ceil_div(bytes, 64) * 64;
  }
  i64 thread_bytes() const {
    const i64 floats = x_.shape[0] * attrs_.height * attrs_.width * simd::packed_conv().panel_width;
    return list_bytes() + ceil_div(4 * floats, 64) * 64;
  }

  static ChannelEpilogue of_channels(ChannelEpilogue e, i64 first, float* out, i64 out_row) {
    if (e.bias != nullptr) e.bias += first;
    e.out = out;
    e.out_row = out_row;
    return e;
  }

  // Computes a panel of the depthwise convolution's input.
  void expand(const PackedConvTable& table, const PackedSums& sums, const float* x, const float* weight,
              const float* next_weight, bool fresh, const ChannelEpilogue& e, int channels) const {
    const Shape made = {x_.shape[0], attrs_.channels, 1, attrs_.height, attrs_.width};
    const auto lines = input_.lines_of(made, x_.shape[0], table.tile_rows);
    const i64 tiles = lines.all * lines.parts, calls = ceil_div(tiles, simd::kConvTiles);
    std::array<ConvTile, simd::kConvTiles> list;
    for (i64 call = 0, t = 0; call < calls; ++call) {
      const i64 count = (tiles - t + calls - call - 1) / (calls - call);
      for (i64 i = 0; i < count; ++i, ++t) {
        const auto part = input_.part_of(lines, t);
        list[static_cast<std::size_t>(i)] = {x + part.offset, part.first, part.rows};
      }
      sums.multiply(table, std::span(list).first(static_cast<std::size_t>(count)), lines.step, weight, next_weight,
                    fresh, 0, channels, e);
    }
  }

  void depthwise(const PackedConvTable& table, const float* panel, const float** list, const float* weight,
                 i64 channels, const ChannelEpilogue& e) const {
    PackedConvTable::Lines lines;
    lines.rows = out_.shape[3];
    lines.lines = list;
    lines.line_count = static_cast<int>(attrs_.depthwise.kernel[1]);
    lines.taps = attrs_.depthwise.kernel[2];
    lines.tap = conv_.dilation[2];
    lines.step = conv_.stride[2];
    lines.pad = conv_.padding[2];
    lines.columns = attrs_.width;
    lines.outputs = out_.shape[4];
    lines.channels = channels;
    lines.column = table.panel_width;
    lines.weight = weight;
    lines.weight_row = depthwise_weight_row(attrs_.channels, table);
    for (i64 h = 0; h < lines.rows; ++h)
      for (i64 k = 0; k < lines.line_count; ++k) {
        const i64 from = h * conv_.stride[1] - conv_.padding[1] + k * conv_.dilation[1];
        *list++ = from < 0 || from >= attrs_.height ? nullptr : panel + from * attrs_.width * table.panel_width;
      }
    table.depthwise(lines, e);
  }

  const TensorDesc &x_, &out_;
  const SeparableConvAttrs& attrs_;
  const ConvAttrs& conv_;         // the depthwise one
  const ConvInput<float> input_;  // of the convolution before it
};

void run_here(const KernelContext& ctx) noexcept { run_separable_conv(ctx, simd::packed_conv()); }
void run_panels_here(const KernelContext& ctx) noexcept { run_separable_panels(ctx, simd::packed_conv()); }

std::string explain(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<SeparableConvAttrs>();
  std::string text = "f32, channels last, " + isa_name() + ", by bands of lines: ";
  if (SeparableConvolution(ctx.in(0), ctx.out(), attrs).copies_input()) text += "input copied; ";
  if (attrs.has_expand != 0) text += "all channels" + epilogue_text(attrs.expand) + "; ";
  text += "one input channel per group" + epilogue_text(attrs.depthwise);
  if (attrs.has_project != 0) text += "; all channels" + epilogue_text(attrs.project);
  return text;
}

std::string explain_panels(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<SeparableConvAttrs>();
  return "f32, channels last, " + isa_name() + ", by panels of channels: all channels" + epilogue_text(attrs.expand) +
         "; one input channel per group" + epilogue_text(attrs.depthwise);
}

}  // namespace

bool expands_by_panels(const TensorDesc& x, const PackedConvAttrs& expand) {
  return !ConvInput<float>(x, expand.conv).copies_input();
}

void run_separable_panels(const KernelContext& ctx, const PackedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<SeparableConvAttrs>();
  SeparablePanels(ctx.in(0), ctx.out(), attrs).run(ctx, table);
}

i64 separable_panels_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs,
                                   int threads) {
  return SeparablePanels(x, out, attrs).scratch_bytes(threads);
}

void run_separable_conv(const KernelContext& ctx, const PackedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<SeparableConvAttrs>();
  SeparableConvolution(ctx.in(0), ctx.out(), attrs).run(ctx, table);
}

i64 separable_conv_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs,
                                 int threads) {
  return SeparableConvolution(x, out, attrs).scratch_bytes(threads);
}

namespace {

// Whether there are enough panels of channels for each thread.
bool has_panels_for(const KernelContext& expand, int threads) {
  constexpr i64 kPanelsPerThread = 4;
  const i64 panels = expand.out().shape[1] / simd::packed_conv().panel_width;
  return panels >= kPanelsPerThread * threads && expands_by_panels(expand.in(0), expand.attrs<PackedConvAttrs>());
}

i64 scratch_bytes(const TensorDesc& x, const TensorDesc& out, const AttrBytes& attrs, int threads) {
  return separable_conv_scratch_bytes(x, out, attrs_of_bytes<SeparableConvAttrs>(attrs), threads);
}
i64 panels_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const AttrBytes& attrs, int threads) {
  return separable_panels_scratch_bytes(x, out, attrs_of_bytes<SeparableConvAttrs>(attrs), threads);
}

void cut_by_rows(AttrBytes& expand) {
  auto attrs = attrs_of_bytes<PackedConvAttrs>(expand);
  attrs.by_lines = 1;
  expand = bytes_of_attrs(attrs);
}

using Functions = SeparableFunctions<SeparableConvAttrs>;

}  // namespace

const SeparableRule kSeparableRule = {.fits = Functions::fits,
                                      .can_expand = Functions::can_expand,
                                      .can_project = Functions::can_project,
                                      .min_bytes = i64{256} << 10,
                                      .repeats_much = Functions::repeats_much,
                                      .kernel = &kSeparableConv,
                                      .attrs = Functions::attrs,
                                      .scratch_bytes = scratch_bytes,
                                      .expands_by_panels = has_panels_for,
                                      .kernel_by_panels = &kSeparableConvByPanels,
                                      .scratch_bytes_by_panels = panels_scratch_bytes,
                                      .keep_sums = cut_by_rows};

const Kernel kSeparableConv = {"separable_conv", run_here, kMinParallel, nullptr, explain, nullptr, true};
const Kernel kSeparableConvByPanels = {
    "separable_conv_by_panels", run_panels_here, kMinParallel, nullptr, explain_panels, nullptr, true};

}  // namespace graft
