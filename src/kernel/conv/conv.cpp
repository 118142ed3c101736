#include "kernel/conv/conv.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/ceil_div.h"
#include "kernel/conv/conv_axis.h"
#include "kernel/elementwise/elementwise_vec.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::MatrixView;

// Bytes of im2col columns that a task builds at a time: they stay in its second-level cache.
constexpr i64 kColumnBytes = i64{512} << 10;
constexpr i64 kMaxUnitPanels = 8;
// With at most this many outputs per channel the product is skinny: weights are read row by row instead of in tiles.
constexpr i64 kFewColumns = simd::kMaxDotRows;
// Rows of results that a transposed convolution collects before it scatters them to the output.
constexpr i64 kSpreadRows = 48;

const std::byte* at(const void* base, DType dtype, i64 index) {
  return static_cast<const std::byte*>(base) + index * static_cast<i64>(byte_size(dtype));
}
std::byte* at(void* base, DType dtype, i64 index) {
  return static_cast<std::byte*>(base) + index * static_cast<i64>(byte_size(dtype));
}

// A convolution is a matrix product of the weight, a row per output channel, with the im2col matrix, a column of inputs
// per output; one product for each sample, group and, when transposed, remainder of the output index. im2col builds
// only a few panels at a time, on the thread that multiplies them.
class Convolution {
 public:
  Convolution(const TensorDesc& x, const TensorDesc& weight, const TensorDesc& out, const ConvAttrs& attrs,
              const simd::MatmulTable& table)
      : x_(x), weight_(weight), out_(out), attrs_(attrs), table_(table) {
    batch_ = x.shape[0];
    channels_ = x.shape[1] / attrs.groups;
    rows_ = out.shape[1] / attrs.groups;
    taps_ = weight.shape[2] * weight.shape[3] * weight.shape[4];
    positions_ = out.shape[2] * out.shape[3] * out.shape[4];
    few_ = attrs.transposed == 0 && positions_ <= kFewColumns;
    for (int d = 0; d < 3; ++d) {
      const i64 most = attrs.transposed == 0 ? 1 : std::min(attrs.stride[d], out.shape[2 + d]);
      remainders_[static_cast<std::size_t>(d)] = most;
      remainder_count_ *= most;
    }
    const i64 panel_bytes = depth() * table.panel_width * 4;
    unit_panels_ = std::clamp<i64>(kColumnBytes / std::max<i64>(panel_bytes, 1), 1, kMaxUnitPanels);
    unit_panels_ = std::min(unit_panels_, ceil_div(positions_, table.panel_width));
  }

  i64 scratch_bytes(int threads) const {
    if (out_.numel() == 0) return 0;
    if (few_) return group_items() * positions_ * depth() * 4;
    return weight_floats() * 4 + threads * thread_floats() * 4;
  }

  int phases() const {
    if (few_) return static_cast<int>(2 * ceil_div(items(), group_items()));
    return attrs_.transposed == 0 ? 1 : 2;
  }

  void run(const KernelContext& ctx) const {
    if (out_.numel() == 0) return;
    if (few_) return few(ctx);
    if (attrs_.transposed != 0 && ctx.phase == 0) return reorder_weight(ctx);
    tiles(ctx);
  }

 private:
  using Axes = std::array<ConvAxis, 3>;

  // The largest depth of a sum.
  i64 depth() const { return channels_ * taps_; }
  i64 items() const { return batch_ * attrs_.groups; }
  Axes axes(i64 remainder) const {
    Axes axes;
    for (int d = 2; d >= 0; --d) {
      const i64 count = remainders_[static_cast<std::size_t>(d)];
      axes[static_cast<std::size_t>(d)] = conv_axis(x_, weight_, out_, attrs_, d, remainder % count);
      remainder /= count;
    }
    return axes;
  }
  static i64 columns_of(const Axes& axes) { return axes[0].count * axes[1].count * axes[2].count; }
  i64 depth_of(const Axes& axes) const { return channels_ * axes[0].taps * axes[1].taps * axes[2].taps; }

  const std::byte* input_of(const KernelContext& ctx, i64 item) const {
    const i64 sample = item / attrs_.groups, group = item % attrs_.groups;
    return at(ctx.inputs[0], x_.dtype, sample * x_.strides[0] + group * channels_ * x_.strides[1]);
  }

  simd::Epilogue epilogue(const KernelContext& ctx, i64 item) const {
    simd::Epilogue e;
    e.out_dtype = out_.dtype;
    e.out = at(ctx.outputs[0], out_.dtype, item * rows_ * positions_);
    e.out_r = positions_;
    e.out_j = 1;
    if (attrs_.has_bias != 0) {
      e.bias_dtype = ctx.in(2).dtype;
      e.bias = at(ctx.inputs[2], e.bias_dtype, item % attrs_.groups * rows_);
      e.bias_r = 1;
      e.bias_j = 0;
    }
    return e;
  }

  // --- im2col ---

  void load(const std::byte* from, i64 stride, i64 n, float* to) const {
    if (x_.dtype == DType::f32 && stride == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * 4);
    } else {
      table_.widen(from, x_.dtype, stride, n, to);
    }
  }

  // im2col of columns [column, column + n) of an item: the values of a column are `k_step` floats apart.
  void im2col(const std::byte* x, const Axes& axes, i64 column, i64 n, i64 k_step, float* to) const {
    const auto& [depth_axis, row_axis, line_axis] = axes;
    const i64 per_channel = depth_axis.taps * row_axis.taps * line_axis.taps;
    for (i64 done = 0; done < n;) {
      // A run of outputs in one row.
      const i64 line = (column + done) / line_axis.count, start = (column + done) % line_axis.count;
      const i64 run = std::min(n - done, line_axis.count - start);
      const i64 t_row = line % row_axis.count, t_depth = line / row_axis.count;
      i64 tap = 0;
      for (i64 kd = 0; kd < depth_axis.taps; ++kd) {
        const i64 d = t_depth * depth_axis.step + depth_axis.offset + kd * depth_axis.offset_step;
        for (i64 kh = 0; kh < row_axis.taps; ++kh) {
          const i64 h = t_row * row_axis.step + row_axis.offset + kh * row_axis.offset_step;
          const bool inside = d >= 0 && d < depth_axis.in && h >= 0 && h < row_axis.in;
          for (i64 kw = 0; kw < line_axis.taps; ++kw, ++tap) {
            const i64 w = start * line_axis.step + line_axis.offset + kw * line_axis.offset_step;
            const ConvRange range = inside ? conv_inside(w, line_axis.step, line_axis.in, run) : ConvRange{0, 0};
            float* row = to + done + tap * k_step;
            const std::byte* from = nullptr;
            if (range.low < range.high) {
              from = at(x, x_.dtype,
                        d * x_.strides[2] + h * x_.strides[3] + (w + range.low * line_axis.step) * x_.strides[4]);
            }
            const i64 channel_bytes = x_.strides[1] * static_cast<i64>(byte_size(x_.dtype));
            for (i64 c = 0; c < channels_; ++c, row += per_channel * k_step) {
              for (i64 i = 0; i < range.low; ++i) row[i] = 0;
              if (from != nullptr) {
                load(from + c * channel_bytes, line_axis.step * x_.strides[4], range.high - range.low, row + range.low);
              }
              for (i64 i = range.high; i < run; ++i) row[i] = 0;
            }
          }
        }
      }
      done += run;
    }
  }

  // --- few outputs per channel: a skinny product of im2col columns with the rows of the weight ---

  // Samples and groups whose columns are built together.
  i64 group_items() const {
    return std::clamp<i64>(kColumnBytes / std::max<i64>(positions_ * depth() * 4, 1), 1, items());
  }

  void few(const KernelContext& ctx) const {
    const Axes all = axes(0);
    float* columns = reinterpret_cast<float*>(ctx.scratch_bytes);
    const i64 begin = ctx.phase / 2 * group_items();
    const i64 count = std::min(group_items(), items() - begin);
    if (ctx.phase % 2 == 0) {
      const auto [first, last] = ctx.range(count * positions_);
      for (i64 i = first; i < last; ++i) {
        im2col(input_of(ctx, begin + i / positions_), all, i % positions_, 1, 1, columns + i * depth());
      }
      return;
    }
    constexpr i64 kRowsPerUnit = 12;
    const i64 units = ceil_div(rows_, kRowsPerUnit);
    const auto [first, last] = ctx.range(count * units);
    for (i64 unit = first; unit < last;) {
      const i64 item = unit / units;
      const i64 end = std::min(last, (item + 1) * units);
      const i64 group = (begin + item) % attrs_.groups;
      const MatrixView weight = {at(ctx.inputs[1], weight_.dtype, group * rows_ * depth()), weight_.dtype, depth(), 1};
      table_.dot(columns + item * positions_ * depth(), depth(), static_cast<int>(positions_), weight, depth(),
                 (unit - item * units) * kRowsPerUnit, std::min((end - item * units) * kRowsPerUnit, rows_),
                 epilogue(ctx, begin + item));
      unit = end;
    }
  }

  // --- tiles ---

  // Scratch: the reordered weight when transposed, then for each thread its columns and, when transposed, its results.
  i64 weight_floats() const { return attrs_.transposed == 0 ? 0 : weight_.numel(); }
  i64 column_floats() const { return unit_panels_ * table_.panel_width * depth(); }
  i64 thread_floats() const {
    const i64 spread = attrs_.transposed == 0 ? 0 : kSpreadRows * unit_panels_ * table_.panel_width;
    return ceil_div(column_floats() + spread, 16) * 16;
  }

  // Reorders the weight of a transposed convolution by remainder, group and output channel: each a row of channels x
  // taps.
  void reorder_weight(const KernelContext& ctx) const {
    float* to = reinterpret_cast<float*>(ctx.scratch_bytes);
    const i64 all_rows = out_.shape[1];
    for (i64 remainder = 0; remainder < remainder_count_; ++remainder) {
      const Axes all = axes(remainder);
      const i64 row_depth = depth_of(all);
      const auto [first, last] = ctx.range(all_rows);
      for (i64 row = first; row < last; ++row) {
        const i64 group = row / rows_;
        float* line = to + row * row_depth;
        for (i64 c = 0; c < channels_; ++c) {
          const i64 from = ((group * channels_ + c) * rows_ + row % rows_) * taps_;
          for (i64 kd = 0; kd < all[0].taps; ++kd) {
            for (i64 kh = 0; kh < all[1].taps; ++kh) {
              if (all[2].taps == 0) continue;
              const i64 d = all[0].tap_first + kd * all[0].tap_step, h = all[1].tap_first + kh * all[1].tap_step;
              const i64 index = from + (d * weight_.shape[3] + h) * weight_.shape[4] + all[2].tap_first;
              table_.widen(at(ctx.inputs[1], weight_.dtype, index), weight_.dtype, all[2].tap_step, all[2].taps, line);
              line += all[2].taps;
            }
          }
        }
      }
      to += all_rows * row_depth;
    }
  }

  void tiles(const KernelContext& ctx) const {
    // Fewer panels per work item when there would be too few items for the tasks; as a last resort the rows are split,
    // and several tasks build the same columns.
    const i64 unit_panels =
        std::clamp<i64>(items() * ceil_div(positions_, table_.panel_width) / (4 * ctx.tasks), 1, unit_panels_);
    const i64 unit_columns = unit_panels * table_.panel_width;
    i64 units = 0;
    for (i64 r = 0; r < remainder_count_; ++r) units += items() * ceil_div(columns_of(axes(r)), unit_columns);
    const i64 blocks = ceil_div(rows_, table_.tile_rows);
    const i64 splits = std::clamp<i64>(ceil_div(ctx.tasks, std::max<i64>(units, 1)), 1, blocks);
    const auto [begin, end] = ctx.range(units * splits);
    i64 passed = 0;
    const float* reordered = reinterpret_cast<const float*>(ctx.scratch_bytes);
    for (i64 r = 0; r < remainder_count_ && passed < end; ++r) {
      const Axes all = axes(r);
      const i64 runs = ceil_div(columns_of(all), unit_columns);
      const i64 here = items() * runs * splits;
      for (i64 unit = std::max(begin, passed) - passed; unit < std::min(end - passed, here); ++unit) {
        const i64 item = unit / splits / runs, column = unit / splits % runs * unit_columns;
        const i64 r0 = unit % splits * blocks / splits * table_.tile_rows;
        const i64 r1 = std::min((unit % splits + 1) * blocks / splits * table_.tile_rows, rows_);
        tile_unit(ctx, all, item, column, std::min(unit_columns, columns_of(all) - column), r0, r1, reordered);
      }
      passed += here;
      if (attrs_.transposed != 0) reordered += out_.shape[1] * depth_of(all);
    }
  }

  // Multiplies rows [r0, r1) by columns [column, column + n).
  void tile_unit(const KernelContext& ctx, const Axes& all, i64 item, i64 column, i64 n, i64 r0, i64 r1,
                 const float* reordered) const {
    const i64 k = depth_of(all), width = table_.panel_width, panels = ceil_div(n, width);
    float* mine = reinterpret_cast<float*>(ctx.scratch_bytes) + weight_floats() + ctx.task * thread_floats();
    const std::byte* x = input_of(ctx, item);
    for (i64 p = 0; p < panels; ++p) {
      float* panel = mine + p * width * k;
      const i64 used = std::min(width, n - p * width);
      im2col(x, all, column + p * width, used, width, panel);
      if (used == width) continue;
      for (i64 i = 0; i < k; ++i) std::fill(panel + i * width + used, panel + (i + 1) * width, 0.f);
    }
    simd::Epilogue e = epilogue(ctx, item);
    const i64 group = item % attrs_.groups;
    const MatrixView none = {};
    if (attrs_.transposed == 0) {
      e.out = at(e.out, e.out_dtype, column);
      const MatrixView weight = {at(ctx.inputs[1], weight_.dtype, group * rows_ * k), weight_.dtype, k, 1};
      table_.tiles(weight, none, mine, k, n, r0, r1, 0, panels, e);
      return;
    }
    const MatrixView weight = {reordered + group * rows_ * k, DType::f32, k, 1};
    float* results = mine + column_floats();
    for (i64 row = r0; row < r1; row += kSpreadRows) {
      const i64 rows = std::min(kSpreadRows, r1 - row);
      simd::Epilogue part = e;
      part.out = results - row * n;
      part.out_dtype = DType::f32;
      part.out_r = n;
      if (k > 0) {
        table_.tiles(weight, none, mine, k, n, row, row + rows, 0, panels, part);
      } else {
        bias_only(part, row, rows, n);
      }
      spread(e, all, column, n, row, rows, results);
    }
  }

  // These outputs see no tap: their value is the bias.
  void bias_only(const simd::Epilogue& e, i64 row, i64 rows, i64 n) const {
    for (i64 r = row; r < row + rows; ++r) {
      float value = 0;
      if (e.bias != nullptr) table_.widen(at(e.bias, e.bias_dtype, r), e.bias_dtype, 1, 1, &value);
      float* to = static_cast<float*>(e.out) + r * n;
      std::fill(to, to + n, value);
    }
  }

  // Scatters results [rows, n] to the output.
  void spread(const simd::Epilogue& e, const Axes& all, i64 column, i64 n, i64 row, i64 rows,
              const float* results) const {
    const simd::StoreFn store =
        simd::elementwise().convert->store[static_cast<int>(simd::BlockClass::f32)][static_cast<int>(e.out_dtype)];
    for (i64 done = 0; done < n;) {
      const i64 line = (column + done) / all[2].count, start = (column + done) % all[2].count;
      const i64 run = std::min(n - done, all[2].count - start);
      const i64 d = all[0].first + line / all[1].count * all[0].out_step;
      const i64 h = all[1].first + line % all[1].count * all[1].out_step;
      const i64 index = (d * out_.shape[3] + h) * out_.shape[4] + all[2].first + start * all[2].out_step;
      for (i64 r = 0; r < rows; ++r) {
        const float* from = results + r * n + done;
        const i64 to = (row + r) * e.out_r + index;
        store(from, all[2].out_step * static_cast<i64>(byte_size(e.out_dtype)), run, at(e.out, e.out_dtype, to));
      }
      done += run;
    }
  }

  const TensorDesc &x_, &weight_, &out_;
  const ConvAttrs& attrs_;
  const simd::MatmulTable& table_;
  i64 batch_ = 0, channels_ = 0, rows_ = 0, taps_ = 0, positions_ = 0;
  std::array<i64, 3> remainders_{};
  i64 remainder_count_ = 1, unit_panels_ = 1;
  bool few_ = false;
};

void conv_here(const KernelContext& ctx) noexcept { run_conv(ctx, simd::matmul()); }
int phases_here(const KernelContext& ctx) noexcept { return conv_phases(ctx, simd::matmul()); }

}  // namespace

const Kernel kConv = {"conv", conv_here, 0, phases_here, [](const KernelContext& ctx) {
                        return std::string(name(ctx.in(1).dtype)) + ", im2col per tile, " + isa_name();
                      }};

void run_conv(const KernelContext& ctx, const simd::MatmulTable& table) noexcept {
  const auto attrs = ctx.attrs<ConvAttrs>();
  Convolution(ctx.in(0), ctx.in(1), ctx.out(), attrs, table).run(ctx);
}

int conv_phases(const KernelContext& ctx, const simd::MatmulTable& table) noexcept {
  const auto attrs = ctx.attrs<ConvAttrs>();
  return Convolution(ctx.in(0), ctx.in(1), ctx.out(), attrs, table).phases();
}

std::int64_t conv_scratch_bytes(const TensorDesc& x, const TensorDesc& weight, const TensorDesc& out,
                                const ConvAttrs& attrs, int threads, const simd::MatmulTable& table) {
  return Convolution(x, weight, out, attrs, table).scratch_bytes(threads);
}

std::int64_t conv_scratch_bytes(const TensorDesc& x, const TensorDesc& weight, const TensorDesc& out,
                                const ConvAttrs& attrs, int threads) {
  return conv_scratch_bytes(x, weight, out, attrs, threads, simd::matmul());
}

}  // namespace graft
