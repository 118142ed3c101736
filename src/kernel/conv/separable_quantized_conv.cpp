#include "kernel/conv/separable_quantized_conv.h"

#include <cstring>
#include <span>
#include <string>

#include "kernel/conv/conv_input.h"
#include "kernel/conv/quantized_panels.h"
#include "kernel/conv/separable_rule.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::ByteRun;
using simd::ByteTile;
using simd::QuantizedConvTable;
using simd::QuantizedEpilogue;
using Line = QuantizedConvTable::Line;

constexpr i64 kMinParallel = 4096;
// All panels for this many tiles at a time: their inputs stay in the first-level cache.
constexpr int kTilesAtOnce = 4;

i64 ceil_64(i64 bytes) { return ceil_div(bytes, 64) * 64; }

// Products of rows of positions with a packed weight.
struct Product {
  BytePanels panels;
  const std::byte* weight = nullptr;
  std::span<const ByteRun> runs = {};
  std::uint8_t flip = 0;

  // `row`: bytes of x between positions, `line`: between rows.
  void run(const QuantizedConvTable& table, const std::uint8_t* x, i64 row, i64 line, i64 lines, i64 columns,
           const QuantizedEpilogue& e) const {
    // Integer sums do not depend on the division into tiles, so tiles may cross rows.
    if (line == columns * row) {
      columns *= lines;
      lines = 1;
    }
    for_tiles<ByteTile, kTilesAtOnce>(x, row, line, lines, columns, table.tile_rows,
                                      [&](const ByteTile* tiles, int count) {
                                        for (i64 panel = 0; panel < panels.count; ++panel)
                                          for (int i = 0; i < count; ++i)
                                            table.tile(tiles[i], row, flip, runs.data(), static_cast<i64>(runs.size()),
                                                       weight + panels.offset(0, panel), panels.vectors(panel),
                                                       panel * panels.width, panels.channels(panel), e);
                                      });
  }
};

// Intermediates are kept as unsigned bytes, whatever their dtype in memory, so that reading them needs no flip.
class SeparableQuantizedConvolution {
 public:
  SeparableQuantizedConvolution(const TensorDesc& x, const TensorDesc& out, const SeparableQuantizedConvAttrs& attrs)
      : x_(x),
        out_(out),
        attrs_(attrs),
        conv_(attrs.depthwise.conv),
        input_(x, attrs.expand.conv, whole()),
        width_(attrs.width),
        lines_(attrs.depthwise.kernel[1]),
        pitch_((out.shape[4] - 1) * conv_.stride[2] + (attrs.depthwise.kernel[2] - 1) * conv_.dilation[2] + 1),
        bands_(conv_, lines_, attrs.height, out.shape[3], out.shape[4], expanded_bytes(1), between_bytes(1)),
        copied_(attrs.expand.conv, attrs.expand.kernel[1], input_.line) {}

  bool copies_input() const { return expands() && input_.copies_input(); }
  i64 scratch_bytes(int threads) const { return threads * thread_bytes(); }

  // This task's part of the rows of outputs [samples, H'].
  void run(const KernelContext& ctx, const QuantizedConvTable& table) const {
    const Work work(*this, ctx, table);
    bands_.run(
        ctx, x_.shape[0], [&](auto... lines) { expand(work, lines...); },
        [&](auto... lines) { depthwise(work, lines...); }, [&](auto... lines) { project(work, lines...); });
  }

 private:
  bool expands() const { return attrs_.has_expand != 0; }
  bool projects() const { return attrs_.has_project != 0; }
  bool whole() const { return whole_lines(attrs_.expand.conv, attrs_.expand.kernel[2]); }

  i64 expanded_bytes(i64 lines) const { return expands() ? lines * width_ * attrs_.channels : 0; }
  i64 between_bytes(i64 lines) const { return projects() ? lines * out_.shape[4] * attrs_.channels : 0; }
  // A product reads a byte once for each panel, so bytes are flipped once before all of them. Copied bytes are flipped.
  bool copies_flipped() const {
    const ConvAttrs& conv = attrs_.expand.conv;
    const i64(&kernel)[3] = attrs_.expand.kernel;
    const bool pointwise = kernel[1] == 1 && kernel[2] == 1 && conv.stride[1] == 1 && conv.stride[2] == 1;
    return expands() && pointwise && !input_.copies_input() && flip_of(x_.dtype) != 0 && x_.strides[4] == x_.shape[1];
  }
  bool copies() const { return copies_input() || copies_flipped(); }
  // Size of the copy for the rows that are expanded at a time.
  i64 copy_bytes() const {
    return copies_input() ? copied_.read_by(copied_.made()) * input_.line : bands_.held() * width_ * x_.shape[1];
  }

  i64 expand_runs() const { return expands() ? attrs_.expand.kernel[1] * (whole() ? 1 : attrs_.expand.kernel[2]) : 0; }

  // The parts of a task's scratch, in order.
  i64 runs_bytes() const { return ceil_64((expand_runs() + 1) * static_cast<i64>(sizeof(ByteRun))); }
  i64 columns_bytes() const { return ceil_64(lines_ * pitch_ * static_cast<i64>(sizeof(const std::uint8_t*))); }
  i64 padding_bytes() const { return ceil_64(attrs_.channels); }
  i64 ring_bytes() const { return ceil_64(expanded_bytes(bands_.held())); }
  i64 thread_bytes() const {
    return runs_bytes() + columns_bytes() + padding_bytes() + ring_bytes() +
           (copies() ? ceil_64(copy_bytes() + kMostByteStep) : 0) +
           (projects() ? ceil_64(between_bytes(bands_.band()) + kMostByteStep) : 0);
  }

  // A task's operands and its part of the scratch.
  struct Work {
    const QuantizedConvTable& table;
    const std::uint8_t* x;
    Product expand, project;
    QuantizedEpilogue of_expand, of_depthwise, of_project;
    Line line;
    const std::uint8_t** columns;
    std::uint8_t* padding;
    std::uint8_t* copy = nullptr;  // rows of x, where they are copied or flipped
    std::uint8_t* expanded;        // ring buffer [held, W, channels]: row h is at h % held
    std::uint8_t* between;         // [band, W', channels]

    Work(const SeparableQuantizedConvolution& c, const KernelContext& ctx, const QuantizedConvTable& loops)
        : table(loops), x(ctx.input<std::uint8_t>(0)) {
      std::byte* mine = ctx.scratch_bytes + ctx.task * c.thread_bytes();
      const auto take = [&](i64 bytes) {
        std::byte* at = mine;
        mine += bytes;
        return at;
      };
      auto* const runs = reinterpret_cast<ByteRun*>(take(c.runs_bytes()));
      columns = reinterpret_cast<const std::uint8_t**>(take(c.columns_bytes()));
      padding = reinterpret_cast<std::uint8_t*>(take(c.padding_bytes()));
      expanded = reinterpret_cast<std::uint8_t*>(take(c.ring_bytes()));
      if (c.copies()) copy = reinterpret_cast<std::uint8_t*>(take(ceil_64(c.copy_bytes() + kMostByteStep)));
      between = reinterpret_cast<std::uint8_t*>(mine);

      const SeparableQuantizedConvAttrs& attrs = c.attrs_;
      int next = 1;
      if (c.expands()) {
        of_expand = inward(attrs.expand, attrs.expanded, attrs.channels);
        expand = c.expand_product(ctx.input<std::byte>(next++), runs, table);
      }
      set_line(c, ctx.input<std::byte>(next++));
      of_depthwise = inward(attrs.depthwise, attrs.between, attrs.channels);
      if (c.projects()) {
        ByteRun* const run = runs + c.expand_runs();
        *run = {0, ceil_div(attrs.channels, table.step) * table.step};
        project = {
            {c.out_.shape[1], ceil_div(attrs.channels, table.step), table}, ctx.input<std::byte>(next++), {run, 1}, 0};
        const TensorDesc* residual = attrs.project.has_residual != 0 ? &ctx.in(next) : nullptr;
        of_project = quantized_epilogue(attrs.project, c.out_.dtype, residual);
        if (residual != nullptr) {
          of_project.residual_row = c.out_.shape[1];
          of_project.residual = ctx.input<std::uint8_t>(next);
        }
      } else {
        of_depthwise = quantized_epilogue(attrs.depthwise, c.out_.dtype, nullptr);
      }
      QuantizedEpilogue& last = c.projects() ? of_project : of_depthwise;
      last.out_row = c.out_.shape[1];
      last.out = ctx.output<std::byte>();
    }

   private:
    static QuantizedEpilogue inward(const PackedQuantizedConvAttrs& attrs, DType dtype, i64 channels) {
      QuantizedEpilogue e = quantized_epilogue(attrs, dtype, nullptr);
      e.flip = 0x80;
      e.out_row = channels;
      return e;
    }

    void set_line(const SeparableQuantizedConvolution& c, const std::byte* weight) {
      const PackedQuantizedConvAttrs& depthwise = c.attrs_.depthwise;
      line.columns = columns;
      line.pitch = c.pitch_;
      line.lines = c.lines_;
      line.taps = depthwise.kernel[2];
      line.tap = c.conv_.dilation[2];
      line.step = c.conv_.stride[2];
      line.outputs = c.out_.shape[4];
      line.channels = c.attrs_.channels;
      line.pairs = packs_pairs(c.conv_, line.taps, table);
      line.flip = c.expands() ? 0 : flip_of(c.x_.dtype);
      line.weight = weight;
      const bool shifted = c.expands() && c.attrs_.expanded == DType::i8;
      std::memset(padding, depthwise.input_zero + (shifted ? 128 : 0), static_cast<std::size_t>(line.channels));
    }
  };

  Product expand_product(const std::byte* weight, ByteRun* runs, const QuantizedConvTable& table) const {
    ByteRun* next = runs;
    input_.for_each_run(attrs_.expand.kernel, whole(), [&](i64 offset, i64 depth) {
      *next++ = {offset, copies() ? ceil_div(depth, table.step) * table.step : depth};
    });
    const auto& kernel = attrs_.expand.kernel;
    const Shape shape = {attrs_.channels, x_.shape[1], kernel[0], kernel[1], kernel[2]};
    return {{attrs_.channels, sum_rows(shape, attrs_.expand.conv, table.step), table},
            weight,
            {runs, next},
            copies() ? std::uint8_t{0} : flip_of(x_.dtype)};
  }

  // Computes rows of the depthwise convolution's input into the ring buffer, from row `at` on.
  void expand(const Work& work, i64 sample, i64 first, i64 count, i64 at) const {
    const ConvAttrs& conv = attrs_.expand.conv;
    const i64 row = conv.stride[2] * input_.column, line = conv.stride[1] * input_.line;
    const std::uint8_t flip = flip_of(x_.dtype);
    QuantizedEpilogue e = work.of_expand;
    e.out = work.expanded + expanded_bytes(at);
    if (copies_input()) {
      for (const i64 end = first + count; first < end; first += copied_.made()) {
        const i64 lines = std::min(copied_.made(), end - first);
        input_.copy_rows(work.x, sample, copied_.first_read_by(first), copied_.read_by(lines),
                         static_cast<std::uint8_t>(attrs_.expand.input_zero), flip != 0, work.copy);
        work.expand.run(work.table, work.copy, row, line, lines, width_, e);
        advance(e, lines * width_);
      }
      return;
    }
    const std::uint8_t* x = work.x + sample * input_.sample + first * line;
    if (!copies_flipped()) return work.expand.run(work.table, x, row, line, count, width_, e);
    const i64 bytes = width_ * x_.shape[1];
    for (i64 i = 0; i < count; ++i) flip_bytes(x + i * line, work.copy + i * bytes, bytes);
    work.expand.run(work.table, work.copy, x_.shape[1], bytes, count, width_, e);
  }

  void depthwise(const Work& work, i64 sample, i64 first, i64 count) const {
    const i64 columns = out_.shape[4];
    QuantizedEpilogue e = work.of_depthwise;
    if (projects())
      e.out = work.between;
    else
      advance(e, (sample * out_.shape[3] + first) * columns);
    for (i64 h = first; h < first + count; ++h, advance(e, columns)) {
      for (i64 k = 0; k < lines_; ++k) list_columns(work, sample, bands_.seen(h, k), work.columns + k * pitch_);
      work.table.depthwise(work.line, e);
    }
  }

  // Lists the columns of a row that the depthwise convolution reads.
  void list_columns(const Work& work, i64 sample, i64 line, const std::uint8_t** to) const {
    if (!bands_.inside(line)) return void(std::fill_n(to, pitch_, work.padding));
    const std::uint8_t* from = expands() ? work.expanded + expanded_bytes(line % bands_.held())
                                         : work.x + sample * x_.strides[0] + line * x_.strides[3];
    const i64 step = expands() ? attrs_.channels : x_.strides[4], before = conv_.padding[2];
    for (i64 c = 0; c < pitch_; ++c)
      to[c] = c >= before && c < before + width_ ? from + (c - before) * step : work.padding;
  }

  void project(const Work& work, i64 sample, i64 first, i64 count) const {
    const i64 columns = out_.shape[4];
    QuantizedEpilogue e = work.of_project;
    advance(e, (sample * out_.shape[3] + first) * columns);
    work.project.run(work.table, work.between, attrs_.channels, columns * attrs_.channels, count, columns, e);
  }

  static void advance(QuantizedEpilogue& e, i64 positions) {
    e.out = static_cast<std::byte*>(e.out) + positions * e.out_row * (e.floats ? 4 : 1);
    if (e.residual != nullptr) e.residual += positions * e.residual_row;
  }

  const TensorDesc &x_, &out_;
  const SeparableQuantizedConvAttrs& attrs_;
  const ConvAttrs& conv_;                // the depthwise one
  const ConvInput<std::uint8_t> input_;  // of the convolution before it
  const i64 width_;                      // of the depthwise convolution's input
  const i64 lines_;                      // rows of its kernel
  const i64 pitch_;                      // columns of a row that it reads, padding included
  const LineBands bands_;
  const CopiedRows copied_;
};

void run_here(const KernelContext& ctx) noexcept { run_separable_quantized_conv(ctx, simd::quantized_conv()); }

std::string explain(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<SeparableQuantizedConvAttrs>();
  const bool projects = attrs.has_project != 0;
  std::string text = "8 bits, channels last, " + isa_name() + ", by bands of lines: ";
  if (SeparableQuantizedConvolution(ctx.in(0), ctx.out(), attrs).copies_input()) text += "input copied; ";
  if (attrs.has_expand != 0) text += "all channels" + epilogue_text(attrs.expand, attrs.expanded) + "; ";
  text += "one input channel per group" + epilogue_text(attrs.depthwise, attrs.between);
  if (projects) text += "; all channels" + epilogue_text(attrs.project, ctx.out().dtype);
  return text;
}

}  // namespace

void run_separable_quantized_conv(const KernelContext& ctx, const QuantizedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<SeparableQuantizedConvAttrs>();
  SeparableQuantizedConvolution(ctx.in(0), ctx.out(), attrs).run(ctx, table);
}

i64 separable_quantized_conv_scratch_bytes(const TensorDesc& x, const TensorDesc& out,
                                           const SeparableQuantizedConvAttrs& attrs, int threads) {
  return SeparableQuantizedConvolution(x, out, attrs).scratch_bytes(threads);
}

namespace {

i64 scratch_bytes(const TensorDesc& x, const TensorDesc& out, const AttrBytes& attrs, int threads) {
  return separable_quantized_conv_scratch_bytes(x, out, attrs_of_bytes<SeparableQuantizedConvAttrs>(attrs), threads);
}

using Functions = SeparableFunctions<SeparableQuantizedConvAttrs>;

}  // namespace

// min_bytes: every tensor measured was larger. Integer sums are the same in every order.
const SeparableRule kSeparableQuantizedRule = {.fits = Functions::fits,
                                               .can_expand = Functions::can_expand,
                                               .can_project = Functions::can_project,
                                               .min_bytes = i64{32} << 10,
                                               .repeats_much = Functions::repeats_much,
                                               .kernel = &kSeparableQuantizedConv,
                                               .attrs = Functions::attrs,
                                               .scratch_bytes = scratch_bytes};

const Kernel kSeparableQuantizedConv = {
    "separable_quantized_conv", run_here, kMinParallel, nullptr, explain, nullptr, true};

}  // namespace graft
