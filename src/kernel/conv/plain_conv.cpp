#include <array>
#include <type_traits>

#include "kernel/conv/conv.h"
#include "kernel/conv/conv_axis.h"

namespace graft {
namespace {

using i64 = std::int64_t;

template <typename T>
void plain(const KernelContext& ctx) {
  // Integers wrap as unsigned numbers do; 8 and 16 bits are computed wider and truncated.
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;
  const auto attrs = ctx.attrs<ConvAttrs>();
  const TensorDesc &x = ctx.in(0), &weight = ctx.in(1), &out = ctx.out();
  const i64 channels = x.shape[1] / attrs.groups, rows = out.shape[1] / attrs.groups;
  const i64 kernel = weight.shape[2] * weight.shape[3] * weight.shape[4];
  const i64 positions = out.shape[2] * out.shape[3] * out.shape[4];
  const auto [begin, end] = ctx.range(out.shape[0] * out.shape[1]);
  for (i64 plane = begin; plane < end; ++plane) {
    const i64 sample = plane / out.shape[1], row = plane % out.shape[1], group = row / rows;
    const T* from = ctx.input<T>(0) + sample * x.strides[0] + group * channels * x.strides[1];
    T* to = ctx.output<T>() + plane * positions;
    const Wide bias = attrs.has_bias != 0 ? static_cast<Wide>(ctx.input<T>(2)[row]) : Wide{0};
    // The weight's stride between input channels, and its offset for this output channel.
    const i64 channel_step = attrs.transposed != 0 ? rows * kernel : kernel;
    const T* w = ctx.input<T>(1) +
                 (attrs.transposed != 0 ? (group * channels * rows + row % rows) * kernel : row * channels * kernel);
    for (i64 p = 0; p < positions; ++p) {
      const i64 o[3] = {p / (out.shape[3] * out.shape[4]), p / out.shape[4] % out.shape[3], p % out.shape[4]};
      std::array<ConvAxis, 3> axes;
      i64 t[3];
      for (int d = 0; d < 3; ++d) {
        const i64 remainder = attrs.transposed != 0 ? o[d] % attrs.stride[d] : 0;
        axes[static_cast<std::size_t>(d)] = conv_axis(x, weight, out, attrs, d, remainder);
        t[d] = attrs.transposed != 0 ? o[d] / attrs.stride[d] : o[d];
      }
      Wide sum = bias;
      const auto input = [&](int d, i64 tap) {
        const ConvAxis& a = axes[static_cast<std::size_t>(d)];
        return t[d] * a.step + a.offset + tap * a.offset_step;
      };
      const auto element = [&](int d, i64 tap) {
        const ConvAxis& a = axes[static_cast<std::size_t>(d)];
        return a.tap_first + tap * a.tap_step;
      };
      for (i64 kd = 0; kd < axes[0].taps; ++kd) {
        const i64 id = input(0, kd);
        if (id < 0 || id >= x.shape[2]) continue;
        for (i64 kh = 0; kh < axes[1].taps; ++kh) {
          const i64 ih = input(1, kh);
          if (ih < 0 || ih >= x.shape[3]) continue;
          for (i64 kw = 0; kw < axes[2].taps; ++kw) {
            const i64 iw = input(2, kw);
            if (iw < 0 || iw >= x.shape[4]) continue;
            const T* xp = from + id * x.strides[2] + ih * x.strides[3] + iw * x.strides[4];
            const T* wp = w + (element(0, kd) * weight.shape[3] + element(1, kh)) * weight.shape[4] + element(2, kw);
            for (i64 c = 0; c < channels; ++c) {
              sum += static_cast<Wide>(xp[c * x.strides[1]]) * static_cast<Wide>(wp[c * channel_step]);
            }
          }
        }
      }
      to[p] = static_cast<T>(sum);
    }
  }
}

void run_plain_conv(const KernelContext& ctx) noexcept {
  switch (ctx.out().dtype) {
    case DType::f64:
      return plain<double>(ctx);
    case DType::i8:
      return plain<std::int8_t>(ctx);
    case DType::u8:
      return plain<std::uint8_t>(ctx);
    case DType::i16:
      return plain<std::int16_t>(ctx);
    case DType::i32:
      return plain<std::int32_t>(ctx);
    case DType::i64:
      return plain<std::int64_t>(ctx);
    default:
      return ctx.fail("convolution: no kernel for this dtype");
  }
}

}  // namespace

const Kernel kPlainConv = {"plain_conv", run_plain_conv, 0, nullptr, [](const KernelContext& ctx) {
                             return std::string(name(ctx.out().dtype)) + " has no vector products";
                           }};

}  // namespace graft
