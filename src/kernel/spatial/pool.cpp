#include "kernel/spatial/pool.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// The part of a window inside the input: first, first + step, ... below end. `size` includes its padding.
struct Window {
  i64 first, end, step, size;
  i64 count() const { return end > first ? (end - first + step - 1) / step : 0; }
};

Window window_of(const PoolAttrs& attrs, const TensorDesc& x, const TensorDesc& out, int d, i64 o) {
  const i64 in = x.shape[2 + d];
  if (attrs.adaptive != 0) {
    const i64 n = out.shape[2 + d];
    const i64 first = o / n * in + o % n * in / n;
    const i64 end = (o + 1) / n * in + ((o + 1) % n * in + n - 1) / n;
    return {first, end, 1, end - first};
  }
  const i64 start = o * attrs.stride[d] - attrs.padding[d], step = attrs.dilation[d];
  const i64 first = start >= 0 ? start : start + (-start + step - 1) / step * step;
  const i64 end = start + (attrs.kernel[d] - 1) * step + 1;
  return {first, std::min(end, in), step, std::min(end, in + attrs.padding[d]) - start};
}

// The maximum of no elements.
template <typename T>
T lowest(DType dtype) {
  if constexpr (std::is_floating_point_v<T>) {
    return -std::numeric_limits<T>::infinity();
  } else {
    return dtype == DType::u8 ? 0 : static_cast<T>(~std::uint64_t{0} << (8 * byte_size(dtype) - 1));
  }
}

// Scratch of a thread: the windows along a row, a row of the input, results and indices of a row of the output.
i64 thread_bytes(const TensorDesc& x, const TensorDesc& out) {
  const i64 width = out.shape[4];
  return width * static_cast<i64>(sizeof(Window)) + (x.shape[4] + 2 * width) * 8;
}

// T: the type a row of the input is read as. Sum: the type of the arithmetic.
template <typename T, typename Sum>
class Pool {
 public:
  Pool(const KernelContext& ctx, simd::BlockClass type)
      : ctx_(ctx), attrs_(ctx.attrs<PoolAttrs>()), x_(ctx.in(0)), out_(ctx.out()) {
    std::byte* mine = ctx.scratch_bytes + ctx.task * thread_bytes(x_, out_);
    windows_ = reinterpret_cast<Window*>(mine);
    places_ = reinterpret_cast<i64*>(windows_ + out_.shape[4]);
    results_ = reinterpret_cast<Sum*>(places_ + out_.shape[4]);
    line_ = reinterpret_cast<T*>(places_ + 2 * out_.shape[4]);
    const simd::ConvertFns& convert = *simd::elementwise().convert;
    load_ = convert.load[static_cast<int>(type)][static_cast<int>(x_.dtype)];
    const auto sums = std::is_same_v<Sum, double> ? simd::BlockClass::f64 : type;
    store_ = convert.store[static_cast<int>(sums)][static_cast<int>(out_.dtype)];
    in_place_ = block_class(x_.dtype) == type && byte_size(x_.dtype) == sizeof(T) && x_.strides[4] == 1;
  }

  void run() const {
    const i64 width = out_.shape[4];
    const i64 lines = out_.shape[0] * out_.shape[1] * out_.shape[2] * out_.shape[3];
    for (i64 o = 0; o < width; ++o) windows_[o] = window_of(attrs_, x_, out_, 2, o);
    const auto [begin, end] = ctx_.range(lines);
    const i64 size = static_cast<i64>(byte_size(out_.dtype));
    for (i64 line = begin; line < end; ++line) {
      const i64 row = line % out_.shape[3], depth = line / out_.shape[3] % out_.shape[2];
      const i64 plane = line / out_.shape[3] / out_.shape[2];
      const Window d = window_of(attrs_, x_, out_, 0, depth), h = window_of(attrs_, x_, out_, 1, row);
      const i64 from = plane / out_.shape[1] * x_.strides[0] + plane % out_.shape[1] * x_.strides[1];
      if (attrs_.average != 0) {
        average(from, d, h);
      } else {
        largest(from, d, h);
      }
      store_(results_, size, width, ctx_.output<std::byte>() + line * width * size);
      if (ctx_.output_descs.size() > 1) std::copy(places_, places_ + width, ctx_.output<i64>(1) + line * width);
    }
  }

 private:
  const T* line_at(i64 from, i64 d, i64 h) const {
    const i64 index = from + d * x_.strides[2] + h * x_.strides[3];
    const i64 size = static_cast<i64>(byte_size(x_.dtype));
    const std::byte* start = ctx_.input<std::byte>(0) + index * size;
    if (in_place_) return reinterpret_cast<const T*>(start);
    load_(start, x_.strides[4] * size, x_.shape[4], line_);
    return line_;
  }

  void largest(i64 from, const Window& d, const Window& h) const {
    const i64 width = out_.shape[4];
    const bool places = ctx_.output_descs.size() > 1;
    const Sum none = lowest<Sum>(x_.dtype);
    for (i64 o = 0; o < width; ++o) {
      results_[o] = none;
      places_[o] = (d.first * x_.shape[3] + h.first) * x_.shape[4] + windows_[o].first;
    }
    for (i64 id = d.first; id < d.end; id += d.step) {
      for (i64 ih = h.first; ih < h.end; ih += h.step) {
        const T* line = line_at(from, id, ih);
        const i64 start = (id * x_.shape[3] + ih) * x_.shape[4];
        for (i64 o = 0; o < width; ++o) {
          const Window w = windows_[o];
          Sum best = results_[o];
          if (places) {
            for (i64 iw = w.first; iw < w.end; iw += w.step) {
              if (!(line[iw] > best) && line[iw] == line[iw]) continue;
              best = line[iw];
              places_[o] = start + iw;
            }
          } else {
            for (i64 iw = w.first; iw < w.end; iw += w.step)
              best = line[iw] > best || line[iw] != line[iw] ? line[iw] : best;
          }
          results_[o] = best;
        }
      }
    }
  }

  void average(i64 from, const Window& d, const Window& h) const {
    const i64 width = out_.shape[4];
    std::fill(results_, results_ + width, Sum{0});
    for (i64 id = d.first; id < d.end; id += d.step) {
      for (i64 ih = h.first; ih < h.end; ih += h.step) {
        const T* line = line_at(from, id, ih);
        for (i64 o = 0; o < width; ++o) {
          const Window w = windows_[o];
          Sum sum = 0;
          for (i64 iw = w.first; iw < w.end; ++iw) sum = add(sum, line[iw]);
          results_[o] = add(results_[o], sum);
        }
      }
    }
    for (i64 o = 0; o < width; ++o) {
      const Window& w = windows_[o];
      const i64 count = d.count() * h.count() * w.count();
      if (count == 0) continue;
      const i64 divisor = attrs_.divisor != 0       ? attrs_.divisor
                          : attrs_.include_pad != 0 ? d.size * h.size * w.size
                                                    : count;
      if (std::is_same_v<Sum, i64> && divisor == -1) {
        results_[o] = static_cast<Sum>(0 - static_cast<std::uint64_t>(results_[o]));
      } else {
        results_[o] /= static_cast<Sum>(divisor);
      }
    }
  }

  static Sum add(Sum a, T b) {
    if constexpr (std::is_same_v<Sum, i64>) {
      return static_cast<Sum>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + static_cast<Sum>(b);
    }
  }
  static Sum add(Sum a, Sum b) requires(!std::is_same_v<Sum, T>) { return a + b; }

  const KernelContext& ctx_;
  const PoolAttrs attrs_;
  const TensorDesc &x_, &out_;
  Window* windows_;
  i64* places_;
  Sum* results_;
  T* line_;
  simd::LoadFn load_;
  simd::StoreFn store_;
  bool in_place_;
};

void pool(const KernelContext& ctx) noexcept {
  const bool average = ctx.attrs<PoolAttrs>().average != 0;
  switch (block_class(ctx.in(0).dtype)) {
    case simd::BlockClass::f32:
      if (average) return Pool<float, double>(ctx, simd::BlockClass::f32).run();
      return Pool<float, float>(ctx, simd::BlockClass::f32).run();
    case simd::BlockClass::f64:
      return Pool<double, double>(ctx, simd::BlockClass::f64).run();
    default:
      return Pool<i64, i64>(ctx, simd::BlockClass::i64).run();
  }
}

// The most elements of a window.
i64 most_in_window(const PoolAttrs& attrs, const TensorDesc& x) {
  if (attrs.adaptive != 0) return x.shape[2] * x.shape[3] * x.shape[4];
  i64 most = 1;
  for (int d = 0; d < 3; ++d) most *= std::min(attrs.kernel[d], x.shape[2 + d]);
  return most;
}

void channels_last_here(const KernelContext& ctx) noexcept { run_channels_last_pool(ctx, simd::packed_conv()); }

}  // namespace

const Kernel kPool = {"pool", pool, 2048};
const Kernel kChannelsLastMaxPool = {"channels_last_max_pool", channels_last_here, 2048};

std::int64_t channels_last_pool_scratch_bytes(const PoolAttrs& attrs, const TensorDesc& x, int threads) {
  return threads * most_in_window(attrs, x) * static_cast<i64>(sizeof(const float*));
}

void run_channels_last_pool(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept {
  const auto attrs = ctx.attrs<PoolAttrs>();
  const TensorDesc &x = ctx.in(0), &out = ctx.out();
  const i64 channels = out.shape[1];
  const float** inputs = reinterpret_cast<const float**>(ctx.scratch_bytes) + ctx.task * most_in_window(attrs, x);
  const auto [begin, end] = ctx.range(out.shape[0] * out.shape[2] * out.shape[3]);
  for (i64 line = begin; line < end; ++line) {
    const Window d = window_of(attrs, x, out, 0, line / out.shape[3] % out.shape[2]);
    const Window h = window_of(attrs, x, out, 1, line % out.shape[3]);
    const float* sample = ctx.input<float>(0) + line / out.shape[3] / out.shape[2] * x.strides[0];
    for (i64 o = 0; o < out.shape[4]; ++o) {
      const Window w = window_of(attrs, x, out, 2, o);
      i64 count = 0;
      for (i64 id = d.first; id < d.end; id += d.step)
        for (i64 ih = h.first; ih < h.end; ih += h.step)
          for (i64 iw = w.first; iw < w.end; iw += w.step)
            inputs[count++] = sample + id * x.strides[2] + ih * x.strides[3] + iw * x.strides[4];
      float* to = ctx.output<float>() + (line * out.shape[4] + o) * channels;
      if (count == 0) {
        std::fill_n(to, channels, lowest<float>(DType::f32));
      } else {
        table.largest(inputs, count, channels, to);
      }
    }
  }
}

std::int64_t pool_scratch_bytes(const TensorDesc& x, const TensorDesc& out, int threads) {
  return threads * thread_bytes(x, out);
}

}  // namespace graft
