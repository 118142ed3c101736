#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernel/conv/conv.h"
#include "kernel/conv/conv_input.h"

// What separable convolutions in f32 and in 8 bits have in common.
namespace graft {

// A depthwise convolution with the convolution before it and the pointwise one after it, each described by a Part.
// Planar: the depth of kernels and input is 1. `expand`: any convolution of one group. Of `project` only the epilogue
// is used, not its geometry. The others have no residual.
//
// Inputs: x [N, C, 1, H, W] of any strides (without expand: channels last), then, for each of expand, depthwise and
// project that is present, its inputs after its x. Output [N, O, 1, H', W'], channels last.
template <typename PartAttrs>
struct SeparableAttrs {
  using Part = PartAttrs;
  Part expand, depthwise, project;
  std::int32_t has_expand = 0, has_project = 0;
  DType expanded = DType::f32, between = DType::f32;  // what expand and depthwise alone would output
  std::int64_t channels = 0, height = 0, width = 0;   // of the depthwise convolution's input
};

// How many rows the convolution before a depthwise one computes at a time when its input is copied. Each task copies
// the rows that it reads: written in one phase and read in the next, they would travel between cores.
class CopiedRows {
  using i64 = std::int64_t;

 public:
  // `kernel`: rows of its kernel; `line_bytes`: bytes of an input row.
  CopiedRows(const ConvAttrs& conv, i64 kernel, i64 line_bytes)
      : stride_(conv.stride[1]), reach_((kernel - 1) * conv.dilation[1] + 1) {
    rows_made_ = std::max(kLeastLines, (kCopiedBytes / std::max(line_bytes, i64{1}) - reach_) / stride_ + 1);
  }

  i64 made() const { return rows_made_; }
  i64 first_read_by(i64 line) const { return line * stride_; }
  i64 read_by(i64 lines) const { return (lines - 1) * stride_ + reach_; }

 private:
  static constexpr i64 kCopiedBytes = i64{96} << 10;
  // With fewer rows, too many input rows are copied again for the next ones.
  static constexpr i64 kLeastLines = 4;

  i64 stride_, reach_, rows_made_;
};

// Bands of output rows of a depthwise convolution: as many rows as keep the intermediates in a core's cache.
class LineBands {
  using i64 = std::int64_t;

 public:
  // `lines`: rows of its kernel; expanded_bytes and between_bytes: size of a row of its input and of its output where
  // they are intermediates, else 0.
  LineBands(const ConvAttrs& conv, i64 lines, i64 height, i64 out_height, i64 out_width, i64 expanded_bytes,
            i64 between_bytes)
      : conv_(conv),
        height_(height),
        out_height_(out_height),
        reach_((lines - 1) * conv.dilation[1] + 1),
        least_(ceil_div(kLeastPositions, std::max(i64{1}, out_width))),
        expands_(expanded_bytes > 0),
        projects_(between_bytes > 0) {
    const auto held_by = [&](i64 band) { return (band - 1) * conv.stride[1] + reach_; };
    while (band_ < out_height && expanded_bytes * held_by(band_ + 1) + between_bytes * (band_ + 1) <= kBandBytes)
      ++band_;
    held_ = held_by(band_);
  }

  i64 band() const { return band_; }  // output rows at a time
  i64 held() const { return held_; }  // input rows that they see, in a ring buffer: row h is at h % held
  i64 out_height() const { return out_height_; }

  // The input row at row k of the kernel for output row h; it may be padding.
  i64 seen(i64 h, i64 k) const { return h * conv_.stride[1] - conv_.padding[1] + k * conv_.dilation[1]; }
  bool inside(i64 line) const { return line >= 0 && line < height_; }

  // Computes this task's rows of outputs [samples, out_height]: expand(sample, line, count, at) computes input rows
  // into the ring buffer from row `at` on; then depthwise(sample, line, count) and project(the same) compute outputs.
  //
  // Two neighbouring tasks both need the halo of input rows at their border, and nothing else: by two-ended work
  // stealing they advance towards each other, so that the one on a slow core computes fewer rows.
  template <typename Expand, typename Depthwise, typename Project>
  void run(const KernelContext& ctx, i64 samples, Expand&& expand, Depthwise&& depthwise, Project&& project) const {
    const i64 lines = samples * out_height_;
    Kept kept;
    const auto bands = [&](i64 begin, i64 end) {
      for (i64 line = begin; line < end;) {
        const i64 count = std::min({band_, out_height_ - line % out_height_, end - line});
        const i64 sample = line / out_height_, h = line % out_height_;
        if (expands_) make(sample, h, count, kept, expand);
        depthwise(sample, h, count);
        if (projects_) project(sample, h, count);
        line += count;
      }
    };
    ctx.for_chunks(lines, {.min = least_, .max = band_}, bands);
  }

 private:
  // Input rows [first, last) of the sample that are in the ring buffer.
  struct Kept {
    i64 sample = -1, first = 0, last = 0;
  };

  // Computes the input rows that `count` outputs from h on see and that are not in the ring buffer.
  template <typename Expand>
  void make(i64 sample, i64 h, i64 count, Kept& kept, Expand&& expand) const {
    const i64 from = std::max(i64{0}, seen(h, 0));
    const i64 to = std::min(height_, seen(h, 0) + (count - 1) * conv_.stride[1] + reach_);
    const auto expand_lines = [&](i64 begin, i64 end) {
      while (begin < end) {
        const i64 at = begin % held_, lines = std::min(end - begin, held_ - at);
        expand(sample, begin, lines, at);
        begin += lines;
      }
    };
    if (kept.sample != sample || to <= kept.first || kept.last <= from) kept = {sample, from, from};
    expand_lines(from, std::min(to, kept.first));
    expand_lines(std::max(from, kept.last), to);
    kept = {sample, from, to};
  }

  // What a band may occupy of a second-level cache of 1 MiB; the rest is for weights, input and output. With 2 MiB, 256
  // to 1024 KiB made no difference beyond the noise.
  static constexpr i64 kBandBytes = i64{384} << 10;
  // With fewer positions at a time, reading the weights does not pay.
  static constexpr i64 kLeastPositions = 28;

  const ConvAttrs& conv_;
  const i64 height_, out_height_, reach_, least_;
  const bool expands_, projects_;
  i64 band_ = 1, held_ = 1;
};

// Divides each of `lines` rows of `columns` positions into tiles of at most `rows`, and calls run(tiles, count) for up
// to kAtOnce tiles. `row`: elements of x between positions, `line`: between rows.
template <typename Tile, int kAtOnce, typename T, typename Run>
void for_tiles(const T* x, std::int64_t row, std::int64_t line, std::int64_t lines, std::int64_t columns,
               std::int64_t rows, Run&& run) {
  using i64 = std::int64_t;
  const i64 parts = ceil_div(columns, rows), least = columns / parts, more = columns % parts;
  std::array<Tile, kAtOnce> tiles;
  i64 at = 0, part = 0, column = 0;
  for (i64 left = lines * parts; left > 0; left -= kAtOnce) {
    const int count = static_cast<int>(std::min<i64>(kAtOnce, left));
    for (int i = 0; i < count; ++i) {
      const i64 of_this = least + (part < more ? 1 : 0);
      tiles[static_cast<std::size_t>(i)] = {x + column * row, at, static_cast<int>(of_this)};
      at += of_this;
      column += of_this;
      if (++part < parts) continue;
      part = column = 0;
      x += line;
    }
    run(tiles.data(), count);
  }
}

}  // namespace graft
