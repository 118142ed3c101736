#include <algorithm>
#include <cstring>

#include "base/ceil_div.h"
#include "kernel/conv/conv.h"
#include "kernel/conv/conv_axis.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Bytes of input rows copied at once: they stay in the second-level cache.
constexpr i64 kLineBytes = i64{96} << 10;
constexpr i64 kMinParallel = 4096;

const std::byte* at(const void* base, DType dtype, i64 index) {
  return static_cast<const std::byte*>(base) + index * static_cast<i64>(byte_size(dtype));
}

// One output channel of one sample at a time, in bands of rows. The input rows that a band needs are copied as f32 with
// their padding, split by the remainder of the column modulo the stride, so that a tap reads consecutive elements for
// consecutive outputs.
class Depthwise {
 public:
  Depthwise(const TensorDesc& weight, const TensorDesc& out, const ConvAttrs& attrs, const simd::ConvTable& table)
      : out_(out), attrs_(attrs), table_(table) {
    for (int d = 0; d < 3; ++d) kernel_[d] = weight.shape[2 + d];
    taps_ = kernel_[0] * kernel_[1] * kernel_[2];
    const i64 extent = (kernel_[2] - 1) * attrs.dilation[2];
    // Floats of one remainder of a row: those of the outputs, and those that the last vector may read past them.
    part_ = out.shape[4] + extent / attrs.stride[2] + 2 * table.lanes;
    line_ = part_ * std::min(attrs.stride[2], extent + 1);
    const i64 lines_of_one = attrs.dilation[1] == 1 ? attrs.stride[1] : kernel_[1];
    const i64 fitting = kLineBytes / std::max<i64>(4 * line_ * kernel_[0], 1);
    band_ = attrs.dilation[1] == 1 ? (fitting - kernel_[1] + lines_of_one) / lines_of_one : 1;
    band_ = std::clamp<i64>(band_, 1, std::max<i64>(out.shape[3], 1));
    lines_ = attrs.dilation[1] == 1 ? (band_ - 1) * attrs.stride[1] + kernel_[1] : kernel_[1];
  }

  i64 scratch_bytes(int threads) const { return threads * thread_bytes(); }

  void run(const KernelContext& ctx) const {
    const i64 bands = ceil_div(out_.shape[3], band_);
    const i64 planes = out_.shape[0] * out_.shape[1] * out_.shape[2];
    const auto [begin, end] = ctx.range(planes * bands);
    std::byte* mine = ctx.scratch_bytes + ctx.task * thread_bytes();
    i64* offsets = reinterpret_cast<i64*>(mine);
    float* taps = reinterpret_cast<float*>(mine + taps_ * 8);
    float* lines = taps + taps_;
    set_offsets(offsets);
    const simd::MatmulTable& convert = simd::matmul();
    for (i64 unit = begin; unit < end; ++unit) {
      const i64 plane = unit / bands, row = unit % bands * band_;
      const i64 depth = plane % out_.shape[2], channel = plane / out_.shape[2] % out_.shape[1];
      const i64 sample = plane / out_.shape[2] / out_.shape[1];
      const i64 rows = std::min(band_, out_.shape[3] - row);
      const DType dtype = out_.dtype;
      convert.widen(at(ctx.inputs[1], dtype, channel * taps_), dtype, 1, taps_, taps);
      float bias = 0;
      if (attrs_.has_bias != 0) convert.widen(at(ctx.inputs[2], dtype, channel), dtype, 1, 1, &bias);
      const TensorDesc& x = ctx.in(0);
      const i64 per_channel = out_.shape[1] / attrs_.groups;
      copy_rows(x, at(ctx.inputs[0], dtype, sample * x.strides[0] + channel / per_channel * x.strides[1]), depth, row,
                rows, lines, convert);
      for (i64 r = 0; r < rows; ++r) {
        const i64 to = (plane * out_.shape[3] + row + r) * out_.shape[4];
        table_.taps(lines + r * attrs_.stride[1] * line_, offsets, taps, taps_, bias, out_.shape[4],
                    const_cast<std::byte*>(at(ctx.outputs[0], dtype, to)), dtype);
      }
    }
  }

 private:
  i64 thread_bytes() const { return ceil_div(taps_ * 12 + kernel_[0] * lines_ * line_ * 4, 64) * 64; }

  // Offsets of each tap for the first output of a band.
  void set_offsets(i64* offsets) const {
    for (i64 kd = 0; kd < kernel_[0]; ++kd) {
      for (i64 kh = 0; kh < kernel_[1]; ++kh) {
        for (i64 kw = 0; kw < kernel_[2]; ++kw) {
          const i64 place = kw * attrs_.dilation[2];
          *offsets++ = (kd * lines_ + kh) * line_ + place % attrs_.stride[2] * part_ + place / attrs_.stride[2];
        }
      }
    }
  }

  void copy_rows(const TensorDesc& x, const std::byte* from, i64 depth, i64 row, i64 rows, float* to,
                 const simd::MatmulTable& convert) const {
    const i64 count = attrs_.dilation[1] == 1 ? (rows - 1) * attrs_.stride[1] + kernel_[1] : kernel_[1];
    const i64 step = attrs_.dilation[1] == 1 ? 1 : attrs_.dilation[1];
    const i64 size = static_cast<i64>(byte_size(x.dtype));
    for (i64 kd = 0; kd < kernel_[0]; ++kd) {
      const i64 d = depth * attrs_.stride[0] - attrs_.padding[0] + kd * attrs_.dilation[0];
      for (i64 i = 0; i < count; ++i) {
        const i64 h = row * attrs_.stride[1] - attrs_.padding[1] + i * step;
        float* line = to + (kd * lines_ + i) * line_;
        if (d < 0 || d >= x.shape[2] || h < 0 || h >= x.shape[3]) {
          std::fill(line, line + line_, 0.f);
          continue;
        }
        const std::byte* start = from + (d * x.strides[2] + h * x.strides[3]) * size;
        for (i64 place = 0; place * part_ < line_; ++place) {
          copy_part(x, start, place, line + place * part_, convert);
        }
      }
    }
  }

  void copy_part(const TensorDesc& x, const std::byte* start, i64 place, float* part,
                 const simd::MatmulTable& convert) const {
    const i64 w = place - attrs_.padding[2], stride = attrs_.stride[2];
    const ConvRange range = conv_inside(w, stride, x.shape[4], part_);
    std::fill(part, part + range.low, 0.f);
    if (range.low < range.high) {
      const std::byte* first = start + (w + range.low * stride) * x.strides[4] * static_cast<i64>(byte_size(x.dtype));
      const i64 n = range.high - range.low;
      if (x.dtype == DType::f32 && stride * x.strides[4] == 1) {
        std::memcpy(part + range.low, first, static_cast<std::size_t>(n) * 4);
      } else {
        convert.widen(first, x.dtype, stride * x.strides[4], n, part + range.low);
      }
    }
    std::fill(part + range.high, part + part_, 0.f);
  }

  const TensorDesc& out_;
  const ConvAttrs& attrs_;
  const simd::ConvTable& table_;
  i64 kernel_[3] = {}, taps_ = 0;
  i64 part_ = 0, line_ = 0;   // floats of one remainder of a row, of a row
  i64 band_ = 1, lines_ = 1;  // output rows of a band, input rows that it needs
};

void depthwise_here(const KernelContext& ctx) noexcept { run_depthwise_conv(ctx, simd::conv()); }

}  // namespace

const Kernel kDepthwiseConv = {"depthwise_conv", depthwise_here, kMinParallel, nullptr, [](const KernelContext& ctx) {
                                 return std::string(name(ctx.in(1).dtype)) + ", one input channel per group, " +
                                        isa_name();
                               }};

void run_depthwise_conv(const KernelContext& ctx, const simd::ConvTable& table) noexcept {
  const auto attrs = ctx.attrs<ConvAttrs>();
  Depthwise(ctx.in(1), ctx.out(), attrs, table).run(ctx);
}

std::int64_t depthwise_scratch_bytes(const TensorDesc& weight, const TensorDesc& out, const ConvAttrs& attrs,
                                     int threads, const simd::ConvTable& table) {
  return Depthwise(weight, out, attrs, table).scratch_bytes(threads);
}

std::int64_t depthwise_scratch_bytes(const TensorDesc& weight, const TensorDesc& out, const ConvAttrs& attrs,
                                     int threads) {
  return depthwise_scratch_bytes(weight, out, attrs, threads, simd::conv());
}

}  // namespace graft
