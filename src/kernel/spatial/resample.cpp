#include "kernel/spatial/resample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernel/spatial/cubic.h"

namespace graft {
namespace {

using i64 = std::int64_t;

constexpr i64 kMinParallelElements = 4096;

// The input index for an output index along one dimension.
i64 padded_source(i64 out, i64 before, i64 size, PadMode mode) {
  const i64 last = size - 1, at = out - before;
  if (mode == PadMode::replicate) return std::clamp<i64>(at, 0, last);
  return at < 0 ? -at : at > last ? 2 * last - at : at;
}

void mapped_pad(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<MappedPadAttrs>();
  const Shape &in = ctx.in(0).shape, &out = ctx.out().shape;
  const auto size = static_cast<i64>(byte_size(ctx.in(0).dtype));
  const auto [begin, end] = ctx.range(out[0] * out[1] * out[2] * out[3]);
  // Columns copied unchanged.
  const i64 first = std::clamp<i64>(attrs.before[2], 0, out[4]);
  const i64 past = std::clamp<i64>(in[4] + attrs.before[2], first, out[4]);
  for (i64 row = begin; row < end; ++row) {
    const i64 y = padded_source(row % out[3], attrs.before[1], in[3], attrs.mode);
    const i64 z = padded_source(row / out[3] % out[2], attrs.before[0], in[2], attrs.mode);
    const i64 plane = row / out[3] / out[2];
    const std::byte* from = ctx.input<std::byte>(0) + ((plane * in[2] + z) * in[3] + y) * in[4] * size;
    std::byte* to = ctx.output<std::byte>() + row * out[4] * size;
    const auto border = [&](i64 x0, i64 x1) {
      for (i64 x = x0; x < x1; ++x)
        std::memcpy(to + x * size, from + padded_source(x, attrs.before[2], in[4], attrs.mode) * size,
                    static_cast<std::size_t>(size));
    };
    border(0, first);
    std::memcpy(to + first * size, from + (first - attrs.before[2]) * size,
                static_cast<std::size_t>((past - first) * size));
    border(past, out[4]);
  }
}

i64 nearest_source(i64 out, double scale, i64 in_size, i64 out_size) {
  if (in_size == out_size) return out;
  if (out_size == 2 * in_size) return out / 2;
  return std::min(static_cast<i64>(std::floor(static_cast<float>(out) * static_cast<float>(scale))), in_size - 1);
}

void nearest(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ResampleAttrs>();
  const Shape &in = ctx.in(0).shape, &out = ctx.out().shape;
  const auto size = static_cast<std::size_t>(byte_size(ctx.in(0).dtype));
  const auto [begin, end] = ctx.range(out[0] * out[1] * out[3]);
  for (i64 row = begin; row < end; ++row) {
    const i64 y = nearest_source(row % out[3], attrs.scale[0], in[3], out[3]);
    const std::byte* from = ctx.input<std::byte>(0) + (row / out[3] * in[3] + y) * in[4] * static_cast<i64>(size);
    std::byte* to = ctx.output<std::byte>() + row * out[4] * static_cast<i64>(size);
    for (i64 x = 0; x < out[4]; ++x)
      std::memcpy(to + x * static_cast<i64>(size),
                  from + nearest_source(x, attrs.scale[1], in[4], out[4]) * static_cast<i64>(size), size);
  }
}

// Two input indices and the weight of the second.
template <typename T>
struct Between {
  i64 low, high;
  T part;
};

template <typename T>
Between<T> between(i64 out, double scale, bool align_corners, i64 in_size) {
  const T factor = static_cast<T>(scale);
  T at = align_corners ? factor * static_cast<T>(out) : factor * (static_cast<T>(out) + T(0.5)) - T(0.5);
  at = std::max(at, T(0));
  const i64 low = std::min(static_cast<i64>(std::floor(at)), in_size - 1);
  return {low, std::min(low + 1, in_size - 1), std::clamp(at - static_cast<T>(low), T(0), T(1))};
}

template <typename T>
void bilinear_rows(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<ResampleAttrs>();
  const Shape &in = ctx.in(0).shape, &out = ctx.out().shape;
  const bool corners = attrs.align_corners != 0;
  constexpr i64 kColumns = 128;  // whose positions are computed at once
  std::array<Between<T>, kColumns> columns;
  const auto [begin, end] = ctx.range(out[0] * out[1] * out[3]);
  for (i64 x0 = 0; x0 < out[4]; x0 += kColumns) {
    const i64 count = std::min(kColumns, out[4] - x0);
    for (i64 x = 0; x < count; ++x)
      columns[static_cast<std::size_t>(x)] = between<T>(x0 + x, attrs.scale[1], corners, in[4]);
    for (i64 row = begin; row < end; ++row) {
      const Between<T> y = between<T>(row % out[3], attrs.scale[0], corners, in[3]);
      const T* plane = ctx.input<T>(0) + row / out[3] * in[3] * in[4];
      const T *upper = plane + y.low * in[4], *lower = plane + y.high * in[4];
      T* to = ctx.output<T>() + row * out[4] + x0;
      for (i64 x = 0; x < count; ++x) {
        const Between<T>& p = columns[static_cast<std::size_t>(x)];
        const T above = (T(1) - p.part) * upper[p.low] + p.part * upper[p.high];
        const T below = (T(1) - p.part) * lower[p.low] + p.part * lower[p.high];
        to[x] = (T(1) - y.part) * above + y.part * below;
      }
    }
  }
}

void bilinear(const KernelContext& ctx) noexcept {
  ctx.in(0).dtype == DType::f64 ? bilinear_rows<double>(ctx) : bilinear_rows<float>(ctx);
}

template <typename T>
void bicubic_rows(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<ResampleAttrs>();
  const Shape &in = ctx.in(0).shape, &out = ctx.out().shape;
  struct Position {
    std::array<i64, 4> index;
    std::array<T, 4> weight;
  };
  const auto position_of = [&](i64 at, int d, i64 size) {
    const T factor = static_cast<T>(attrs.scale[d]), step = static_cast<T>(at);
    const T place = attrs.align_corners != 0 ? factor * step : factor * (step + T(0.5)) - T(0.5);
    const T low = std::floor(place);
    Position result{{}, cubic_weights(place - low)};
    for (i64 k = 0; k < 4; ++k)
      result.index[static_cast<std::size_t>(k)] = std::clamp<i64>(static_cast<i64>(low) + k - 1, 0, size - 1);
    return result;
  };
  constexpr i64 kColumns = 64;  // whose positions are computed at once
  std::array<Position, kColumns> columns;
  const auto [begin, end] = ctx.range(out[0] * out[1] * out[3]);
  for (i64 x0 = 0; x0 < out[4]; x0 += kColumns) {
    const i64 count = std::min(kColumns, out[4] - x0);
    for (i64 x = 0; x < count; ++x) columns[static_cast<std::size_t>(x)] = position_of(x0 + x, 1, in[4]);
    for (i64 row = begin; row < end; ++row) {
      const Position y = position_of(row % out[3], 0, in[3]);
      const T* plane = ctx.input<T>(0) + row / out[3] * in[3] * in[4];
      T* to = ctx.output<T>() + row * out[4] + x0;
      for (i64 x = 0; x < count; ++x) {
        const Position& p = columns[static_cast<std::size_t>(x)];
        T sum = 0;
        for (std::size_t j = 0; j < 4; ++j) {
          const T* from = plane + y.index[j] * in[4];
          T line = 0;
          for (std::size_t i = 0; i < 4; ++i) line += p.weight[i] * from[p.index[i]];
          sum += y.weight[j] * line;
        }
        to[x] = sum;
      }
    }
  }
}

void bicubic(const KernelContext& ctx) noexcept {
  ctx.in(0).dtype == DType::f64 ? bicubic_rows<double>(ctx) : bicubic_rows<float>(ctx);
}

template <typename T>
void col2im_rows(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<Col2ImAttrs>();
  const Shape& out = ctx.out().shape;
  const i64 height = out[2], width = out[3], windows = attrs.windows[0] * attrs.windows[1];
  const auto [begin, end] = ctx.range(out[0] * out[1] * height);
  for (i64 row = begin; row < end; ++row) {
    const i64 y = row % height, plane = row / height;
    T* to = ctx.output<T>() + row * width;
    std::fill_n(to, width, T(0));
    for (i64 ky = 0; ky < attrs.kernel[0]; ++ky) {
      const i64 top = y + attrs.padding[0] - ky * attrs.dilation[0];
      if (top < 0 || top % attrs.stride[0] != 0 || top / attrs.stride[0] >= attrs.windows[0]) continue;
      for (i64 kx = 0; kx < attrs.kernel[1]; ++kx) {
        const T* from = ctx.input<T>(0) + ((plane * attrs.kernel[0] + ky) * attrs.kernel[1] + kx) * windows +
                        top / attrs.stride[0] * attrs.windows[1];
        const i64 shift = kx * attrs.dilation[1] - attrs.padding[1];
        for (i64 w = 0; w < attrs.windows[1]; ++w) {
          const i64 x = w * attrs.stride[1] + shift;
          if (x >= 0 && x < width) to[x] += from[w];
        }
      }
    }
  }
}

void col2im(const KernelContext& ctx) noexcept {
  ctx.in(0).dtype == DType::f64 ? col2im_rows<double>(ctx) : col2im_rows<float>(ctx);
}

}  // namespace

const Kernel kMappedPad{"mapped_pad", mapped_pad, kMinParallelElements};
const Kernel kNearest{"nearest", nearest, kMinParallelElements};
const Kernel kBilinear{"bilinear", bilinear, kMinParallelElements};
const Kernel kBicubic{"bicubic", bicubic, kMinParallelElements / 4};
const Kernel kCol2Im{"col2im", col2im, kMinParallelElements};

}  // namespace graft
