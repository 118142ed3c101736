#include <algorithm>
#include <string>

#include "kernel/matmul/matmul_vec.h"
#include "kernel/quantized/quantized.h"
#include "kernel/quantized/quantized_weight.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Output positions whose inputs are gathered at once.
constexpr i64 kPositions = 64;

i64 taps_of(const TensorDesc& weight) { return weight.shape[1] * weight.shape[2] * weight.shape[3] * weight.shape[4]; }

struct Scratch {
  i64 stride, zero, sum, total;
  explicit Scratch(const TensorDesc& weight) {
    stride = simd::quantized_stride(taps_of(weight));
    zero = kPositions * stride;
    sum = zero + align_64(kPositions * 4);
    total = sum + align_64(kPositions * 4);
  }
};

class QuantizedConv {
 public:
  explicit QuantizedConv(const KernelContext& ctx)
      : ctx_(ctx),
        conv_(ctx.attrs<QuantizedConvAttrs>().conv),
        operands_(ctx, ctx.attrs<QuantizedConvAttrs>().quantized, taps_of(ctx.in(1))),
        scratch_(ctx.in(1)),
        positions_(ctx.out().shape[2] * ctx.out().shape[3] * ctx.out().shape[4]) {}

  void run() const {
    const std::int32_t zero = operands_.input_zero(0);
    if (zero < 0 || zero > 255)
      return ctx_.fail("the input's zero point ", zero, " as an unsigned byte is not 0 to 255");
    std::byte* mine = ctx_.scratch_bytes + ctx_.task * scratch_.total;
    auto* q = reinterpret_cast<std::uint8_t*>(mine);
    auto* zeros = reinterpret_cast<std::int32_t*>(mine + scratch_.zero);
    auto* sums = reinterpret_cast<std::int32_t*>(mine + scratch_.sum);
    std::memset(mine, 0, static_cast<std::size_t>(scratch_.zero));
    std::fill_n(zeros, kPositions, zero);
    const simd::QuantizedInput x{q, scratch_.stride, zeros, operands_.weight().zero != nullptr ? sums : nullptr};
    const i64 blocks = (positions_ + kPositions - 1) / kPositions, groups = conv_.groups;
    const auto [begin, end] = ctx_.range(ctx_.out().shape[0] * groups * blocks);
    for (i64 unit = begin; unit < end; ++unit) {
      const i64 first = unit % blocks * kPositions, group = unit / blocks % groups, sample = unit / blocks / groups;
      const int count = static_cast<int>(std::min(kPositions, positions_ - first));
      for (int p = 0; p < count; ++p) {
        gather(sample, group, first + p, static_cast<std::uint8_t>(zero), q + p * scratch_.stride);
        if (x.sum != nullptr) sum_groups(q + p * scratch_.stride, taps_of(ctx_.in(1)), taps_of(ctx_.in(1)), sums + p);
      }
      multiply(x, sample, group, first, count);
    }
  }

 private:
  // Gathers the inputs that an output position sees, in the order of the weight's row.
  void gather(i64 sample, i64 group, i64 position, std::uint8_t zero, std::uint8_t* to) const {
    const Shape &x = ctx_.in(0).shape, &w = ctx_.in(1).shape, &out = ctx_.out().shape;
    const std::uint8_t flip = ctx_.in(0).dtype == DType::i8 ? 0x80 : 0;
    const i64 oz = position / (out[3] * out[4]), oy = position / out[4] % out[3], ox = position % out[4];
    const i64 z0 = oz * conv_.stride[0] - conv_.padding[0], y0 = oy * conv_.stride[1] - conv_.padding[1],
              x0 = ox * conv_.stride[2] - conv_.padding[2];
    const std::uint8_t* channel = ctx_.input<std::uint8_t>(0) + (sample * x[1] + group * w[1]) * x[2] * x[3] * x[4];
    for (i64 c = 0; c < w[1]; ++c, channel += x[2] * x[3] * x[4]) {
      for (i64 kz = 0; kz < w[2]; ++kz) {
        const i64 z = z0 + kz * conv_.dilation[0];
        for (i64 ky = 0; ky < w[3]; ++ky) {
          const i64 y = y0 + ky * conv_.dilation[1];
          const bool inside = z >= 0 && z < x[2] && y >= 0 && y < x[3];
          const std::uint8_t* row = channel + (inside ? (z * x[3] + y) * x[4] : 0);
          for (i64 kx = 0; kx < w[4]; ++kx) {
            const i64 at = x0 + kx * conv_.dilation[2];
            *to++ = inside && at >= 0 && at < x[4] ? row[at] ^ flip : zero;
          }
        }
      }
    }
  }

  void multiply(const simd::QuantizedInput& x, i64 sample, i64 group, i64 first, int count) const {
    alignas(64) float sums[kQuantizedRows * kMostPanelColumns];
    const simd::MatmulTable& table = simd::matmul();
    const i64 channels = ctx_.out().shape[1], per_group = channels / conv_.groups, width = table.panel_width;
    const float scale = operands_.input_scale(0);
    simd::Epilogue e;
    e.out = ctx_.output<float>() + (sample * channels + group * per_group) * positions_ + first;
    e.out_r = 1;
    e.out_j = positions_;
    if (operands_.bias() >= 0) {
      e.bias = ctx_.input<float>(operands_.bias()) + group * per_group;
      e.bias_j = 1;
    }
    for (i64 j = 0; j < per_group; j += width) {
      const int columns = static_cast<int>(std::min(width, per_group - j));
      for (int r = 0; r < count; r += kQuantizedRows) {
        const int rows = std::min(kQuantizedRows, count - r);
        simd::quantized_products().product(x, operands_.weight(), r, rows, group * per_group + j, columns, sums, width);
        for (int i = 0; i < rows; ++i)
          for (int c = 0; c < columns; ++c) sums[i * width + c] *= scale;
        table.finish(e, sums, r, rows, j, columns);
      }
    }
  }

  const KernelContext& ctx_;
  const ConvAttrs conv_;
  const QuantizedOperands operands_;
  const Scratch scratch_;
  const i64 positions_;
};

void run_conv(const KernelContext& ctx) noexcept { QuantizedConv(ctx).run(); }

}  // namespace

const Kernel kQuantizedConv = {"quantized_conv", run_conv, 0, nullptr, [](const KernelContext&) {
                                 return std::string("8-bit affine weight and input: products of integers");
                               }};

i64 quantized_conv_scratch_bytes(const TensorDesc& weight, int threads) { return threads * Scratch(weight).total; }

}  // namespace graft
