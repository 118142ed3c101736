#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/ceil_div.h"
#include "kernel/conv/conv.h"
#include "kernel/conv/packed_conv_vec.h"

// How convolutions with packed weights read their input: channels last, either in place or, when there is padding or
// another layout, from a padded copy of some samples. Strides and offsets are in elements.
namespace graft {

// Converts signed bytes to unsigned ones offset by 128, and back; `to` may be `from`.
inline void flip_bytes(const std::uint8_t* from, std::uint8_t* to, std::int64_t n) {
  typedef std::uint8_t Block __attribute__((vector_size(16)));
  constexpr std::int64_t kBlock = sizeof(Block);
  std::int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    Block block;
    std::memcpy(&block, from + i, sizeof(block));
    block ^= 0x80;
    std::memcpy(to + i, &block, sizeof(block));
  }
  for (; i < n; ++i) to[i] = from[i] ^ 0x80;
}

template <typename T>
class ConvInput {
  using i64 = std::int64_t;

 public:
  // `whole_lines`: the taps of a kernel row must be one contiguous run, so there are no gaps between channels or
  // columns.
  ConvInput(const TensorDesc& x, const ConvAttrs& conv, bool whole_lines = false) : x_(x), conv_(conv) {
    bool padded = false;
    for (int d = 0; d < 3; ++d) {
      padded_[d] = x.shape[2 + d] + 2 * conv.padding[d];
      padded = padded || conv.padding[d] != 0;
    }
    copies_input_ = padded || (x.strides[1] != 1 && x.shape[1] != 1) ||
                    (whole_lines && x.strides[4] != x.shape[1] && x.shape[4] != 1);
    if (copies_input_) {
      column = x.shape[1];
      line = padded_[2] * column;
      plane = padded_[1] * line;
      sample = padded_[0] * plane;
      constexpr auto size = static_cast<i64>(sizeof(T));
      group_ = std::clamp<i64>(kColumnBytes / std::max<i64>(size * sample, 1), 1, std::max<i64>(x.shape[0], 1));
    } else {
      sample = x.strides[0];
      plane = x.strides[2];
      line = x.strides[3];
      column = whole_lines ? x.shape[1] : x.strides[4];
      group_ = std::max<i64>(x.shape[0], 1);
    }
  }

  i64 sample = 0, plane = 0, line = 0, column = 0;  // strides of what is read

  bool copies_input() const { return copies_input_; }
  i64 scratch_bytes() const { return copies_input_ ? group_ * sample * static_cast<i64>(sizeof(T)) : 0; }
  // For each group of samples a phase that copies and one that multiplies; without copies one phase.
  int phases() const { return static_cast<int>(copies_input_ ? 2 * ceil_div(x_.shape[0], group_) : 1); }

  // This task's part of the phase: copies, or calls multiply(x, first sample, samples). `flips`: copied bytes, padding
  // included, are flipped.
  template <typename Multiply>
  void run(const KernelContext& ctx, std::byte* scratch, T padding, Multiply&& multiply, bool flips = false) const {
    if (!copies_input_) return multiply(ctx.input<T>(0), i64{0}, x_.shape[0]);
    const i64 first = ctx.phase / 2 * group_, count = std::min(group_, x_.shape[0] - first);
    T* copy = reinterpret_cast<T*>(scratch);
    if (ctx.phase % 2 == 0) return copy_samples(ctx, copy, padding, flips, first, count);
    multiply(static_cast<const T*>(copy), first, count);
  }

  // Copies rows [first, first + count) of a planar sample with its padding.
  void copy_rows(const T* x, i64 sample_index, i64 first, i64 count, T padding, bool flips, T* to) const {
    for (i64 h = first; h < first + count; ++h, to += line) copy_row(x, sample_index, 0, h, padding, flips, to);
  }

  // Rows of outputs whose inputs are evenly spaced; a single row where all positions are. Each is divided into parts.
  struct Lines {
    i64 count[3] = {1, 1, 1};  // samples, planes, rows of each
    i64 outputs = 0;           // of a row
    i64 step = 0;              // elements of input from one output to the next
    i64 all = 1;               // number of rows
    i64 parts = 0;             // of a row: the first `more` of them have least + 1 outputs, the others `least`
    i64 least = 0, more = 0;
  };

  // Parts of at most `rows` outputs. `join`: evenly spaced rows are joined into one.
  Lines lines_of(const Shape& out, i64 samples, i64 rows, bool join = true) const {
    Lines lines{{samples, out[2], out[3]}, out[4], conv_.stride[2] * column};
    // A dimension joins those within it when its stride continues theirs.
    const i64 strides[3] = {sample, conv_.stride[0] * plane, conv_.stride[1] * line};
    for (int d = 2; join && d >= 0; --d) {
      if (lines.count[d] != 1 && strides[d] != lines.outputs * lines.step) break;
      lines.outputs *= lines.count[d];
      lines.count[d] = 1;
    }
    lines.all = lines.count[0] * lines.count[1] * lines.count[2];
    lines.parts = ceil_div(lines.outputs, rows);
    lines.least = lines.outputs / lines.parts;
    lines.more = lines.outputs % lines.parts;
    return lines;
  }

  // Offset of the inputs of a row's first output.
  i64 offset_of(const Lines& lines, i64 index) const {
    const i64 h = index % lines.count[2], d = index / lines.count[2] % lines.count[1],
              n = index / lines.count[2] / lines.count[1];
    return n * sample + d * conv_.stride[0] * plane + h * conv_.stride[1] * line;
  }

  // Part i, counted over all rows.
  struct Part {
    i64 offset = 0;  // of its first output's inputs
    i64 first = 0;   // output
    int rows = 0;
  };
  Part part_of(const Lines& lines, i64 i) const {
    // Divisions take as long as a small tile; most inputs are a single row and need none.
    const i64 at = lines.all == 1 ? 0 : i / lines.parts, part = i - at * lines.parts;
    const i64 first = part * lines.least + std::min(part, lines.more);
    const i64 offset = (lines.all == 1 ? 0 : offset_of(lines, at)) + first * lines.step;
    return {offset, at * lines.outputs + first, static_cast<int>(lines.least + (part < lines.more ? 1 : 0))};
  }

  // Calls add(offset, depth) for each contiguous run of an output's inputs, in the order of the packed weight; `whole`:
  // the taps of a kernel row are one run.
  template <typename Add>
  void for_each_run(const i64 (&kernel)[3], bool whole, Add&& add) const {
    const i64 channels = x_.shape[1] / conv_.groups;
    for (i64 d = 0; d < kernel[0]; ++d) {
      for (i64 h = 0; h < kernel[1]; ++h) {
        const i64 from = d * conv_.dilation[0] * plane + h * conv_.dilation[1] * line;
        if (whole) {
          add(from, kernel[2] * channels);
          continue;
        }
        for (i64 w = 0; w < kernel[2]; ++w) add(from + w * conv_.dilation[2] * column, channels);
      }
    }
  }

 private:
  // As many samples are copied together as fit into this size, so that they stay in the caches.
  static constexpr i64 kColumnBytes = i64{4} << 20;

  void copy_samples(const KernelContext& ctx, T* to, T padding, bool flips, i64 first, i64 count) const {
    const i64 lines = padded_[0] * padded_[1];
    const auto [begin, end] = ctx.range(count * lines);
    for (i64 unit = begin; unit < end; ++unit)
      copy_row(ctx.input<T>(0), first + unit / lines, unit % lines / padded_[1], unit % padded_[1], padding, flips,
               to + unit * line);
  }

  // Copies row h of plane d of a sample with its padding.
  void copy_row(const T* x, i64 n, i64 d, i64 h, T padding, bool flips, T* to) const {
    d -= conv_.padding[0];
    h -= conv_.padding[1];
    if (d < 0 || d >= x_.shape[2] || h < 0 || h >= x_.shape[3]) {
      std::fill_n(to, line, padding);
    } else {
      const i64 pad = conv_.padding[2] * column;
      std::fill_n(to, pad, padding);
      copy_line(x + n * x_.strides[0] + d * x_.strides[2] + h * x_.strides[3], to + pad);
      std::fill_n(to + line - pad, pad, padding);
    }
    if constexpr (std::is_same_v<T, std::uint8_t>)
      if (flips) flip_bytes(to, to, line);
  }

  void copy_line(const T* from, T* to) const {
    const i64 channels = x_.shape[1], width = x_.shape[4];
    if ((x_.strides[1] == 1 || channels == 1) && (x_.strides[4] == channels || width == 1)) {
      std::memcpy(to, from, static_cast<std::size_t>(width * channels) * sizeof(T));
      return;
    }
    constexpr i64 kFew = 4;  // channels, of an image
    if (channels <= kFew && x_.strides[4] == 1) {
      if constexpr (std::is_same_v<T, float>)
        return simd::packed_conv().interleave(from, x_.strides[1], channels, width, to);
      for (i64 c = 0; c < channels; ++c)
        for (i64 w = 0; w < width; ++w) to[w * channels + c] = from[w + c * x_.strides[1]];
      return;
    }
    for (i64 w = 0; w < width; ++w)
      for (i64 c = 0; c < channels; ++c) to[w * channels + c] = from[w * x_.strides[4] + c * x_.strides[1]];
  }

  const TensorDesc& x_;
  const ConvAttrs& conv_;
  i64 padded_[3] = {};
  bool copies_input_ = false;
  i64 group_ = 1;  // samples that are copied at a time
};

// Whether for_tiles() divides only the tiles among the threads, as there are enough for each, else tiles and panels.
inline bool all_panels_by_tiles(const KernelContext& ctx, std::int64_t tiles) {
  constexpr std::int64_t kManyTiles = 32;
  return tiles >= kManyTiles * ctx.tasks;
}

// Divides `tiles` tiles of `panels` panels among the threads by two-ended work stealing. Calls run(panel, next panel,
// first tile, last tile + 1). The tiles read `input_bytes` in all.
template <typename Run>
void for_tiles(const KernelContext& ctx, std::int64_t tiles, std::int64_t panels, std::int64_t at_once,
               std::int64_t input_bytes, Run&& run) {
  if (all_panels_by_tiles(ctx, tiles)) {
    // All panels for a group of tiles at a time, whose inputs stay in the first-level cache.
    const std::int64_t groups = ceil_div(tiles, at_once);
    ctx.for_chunks(groups, {}, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group)
        for (std::int64_t panel = 0; panel < panels; ++panel)
          run(panel, panel + 1 < panels ? panel + 1 : 0, tiles * group / groups, tiles * (group + 1) / groups);
    });
    return;
  }
  // Inputs that fill most of a second-level cache, partly written by other cores, should be read once: one half of the
  // tiles goes through the panels upwards, the other half downwards, so that tasks from both ends start with the same
  // panels and end at the same last ones.
  constexpr std::int64_t kCacheBytes = std::int64_t{3} << 18, kManyPanels = 4;
  const bool by_halves = input_bytes >= kCacheBytes && ctx.tasks > 1 && panels >= kManyPanels * ctx.tasks;
  const std::int64_t part = by_halves ? ceil_div(tiles, 2) : tiles, units = (by_halves ? 2 : 1) * panels * part;
  // At least a fourth of a panel's tiles per chunk: fewer do not repay reading the panel.
  ctx.for_chunks(units, {.min = ceil_div(tiles, 4), .multiple = part}, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end;) {
      const std::int64_t index = unit / part, first = unit - index * part, last = std::min(end - index * part, part);
      const auto panel_of = [panels](std::int64_t i) { return i < panels ? i : 2 * panels - 1 - i; };
      const std::int64_t panel = panel_of(index), next = panel_of(std::min(index + 1, units / part - 1));
      const std::int64_t base = index < panels ? 0 : part;
      if (base + first < tiles) run(panel, next, base + first, std::min(base + last, tiles));
      unit = index * part + last;
    }
  });
}

}  // namespace graft
