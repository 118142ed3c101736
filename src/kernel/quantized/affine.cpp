#include "kernel/quantized/affine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ir/scalar.h"
#include "kernel/quantized/quantized_vec.h"

namespace graft {
namespace {

using i64 = std::int64_t;

constexpr i64 kMinParallelElements = 8192;

// A tensor as contiguous runs, the elements of which have the same parameters.
class Blocks {
 public:
  Blocks(const TensorDesc& desc, const i64* block) : rank_(desc.rank()) {
    i64 stride = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      size_[i] = desc.shape[d];
      block_[i] = std::max<i64>(block[d], 1);
      stride_[i] = stride;
      stride *= size_[i] / block_[i];
    }
    length_ = rank_ == 0 ? 1 : block_[static_cast<std::size_t>(rank_ - 1)];
    runs_ = desc.numel() / std::max<i64>(length_, 1);
  }
  i64 length() const { return length_; }
  i64 runs() const { return runs_; }
  // Index of the parameters of run i.
  i64 parameter(i64 run) const {
    if (rank_ == 0) return 0;
    const auto last = static_cast<std::size_t>(rank_ - 1);
    const i64 per_row = size_[last] / length_;
    i64 at = run % per_row * stride_[last], rest = run / per_row;
    for (std::size_t d = last; d-- > 0;) {
      at += rest % size_[d] / block_[d] * stride_[d];
      rest /= size_[d];
    }
    return at;
  }
  // Number of blocks, and of runs in each.
  i64 count() const {
    i64 n = 1;
    for (std::size_t d = 0; d < static_cast<std::size_t>(rank_); ++d) n *= size_[d] / block_[d];
    return n;
  }
  i64 runs_per_block() const { return runs_ / std::max<i64>(count(), 1); }
  // The first element of run j of block i.
  i64 start(i64 block, i64 run) const {
    i64 at = 0, stride = 1;
    for (std::size_t d = static_cast<std::size_t>(rank_); d-- > 0;) {
      const i64 blocks = size_[d] / block_[d];
      i64 index = block % blocks * block_[d];
      block /= blocks;
      if (d + 1 < static_cast<std::size_t>(rank_)) {
        index += run % block_[d];
        run /= block_[d];
      }
      at += index * stride;
      stride *= size_[d];
    }
    return at;
  }

 private:
  int rank_;
  std::array<i64, static_cast<std::size_t>(kMaxRank)> size_{}, block_{}, stride_{};
  i64 length_ = 1, runs_ = 1;
};

double number_at(const void* data, DType dtype, i64 i) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(static_cast<const float*>(data)[i]);
    case DType::f64:
      return static_cast<const double*>(data)[i];
    case DType::i8:
      return static_cast<const std::int8_t*>(data)[i];
    case DType::u8:
      return static_cast<const std::uint8_t*>(data)[i];
    case DType::i32:
      return static_cast<const std::int32_t*>(data)[i];
    default:
      return static_cast<double>(static_cast<const i64*>(data)[i]);
  }
}

void put_number(void* data, DType dtype, i64 i, double x) {
  const i64 whole = std::isnan(x) ? 0 : Scalar::of(x).to_integer();
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[i] = static_cast<float>(x);
      return;
    case DType::f64:
      static_cast<double*>(data)[i] = x;
      return;
    case DType::i8:
      static_cast<std::int8_t*>(data)[i] = static_cast<std::int8_t>(whole);
      return;
    case DType::u8:
      static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(whole);
      return;
    case DType::i16:
      static_cast<std::int16_t*>(data)[i] = static_cast<std::int16_t>(whole);
      return;
    case DType::i32:
      static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(whole);
      return;
    default:
      static_cast<i64*>(data)[i] = whole;
  }
}

struct Parameters {
  double scale;
  float zero;
};

Parameters parameters_of(const KernelContext& ctx, const AffineAttrs& attrs, i64 i) {
  Parameters p{attrs.scale, static_cast<float>(attrs.zero)};
  if (attrs.has_scale != 0) p.scale = number_at(ctx.inputs[1], ctx.in(1).dtype, i);
  const int zero = 1 + attrs.has_scale;
  if (attrs.has_zero != 0) p.zero = static_cast<float>(number_at(ctx.inputs[zero], ctx.in(zero).dtype, i));
  return p;
}

// Calls f(element, count, parameters) for this task's runs, or chunks of runs when those are long.
template <typename F>
void for_runs(const KernelContext& ctx, const AffineAttrs& attrs, F f) {
  const Blocks blocks(ctx.in(0), attrs.block);
  if (ctx.in(0).numel() == 0) return;
  constexpr i64 kChunk = 4096;
  const i64 length = blocks.length(), chunks = (length + kChunk - 1) / kChunk;
  const auto [begin, end] = ctx.range(blocks.runs() * chunks);
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 run = unit / chunks, first = unit % chunks * kChunk;
    f(run * length + first, std::min(kChunk, length - first), parameters_of(ctx, attrs, blocks.parameter(run)));
  }
}

void quantize(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<AffineAttrs>();
  const simd::AffineTable& table = simd::affine();
  const float low = static_cast<float>(attrs.low), high = static_cast<float>(attrs.high);
  for_runs(ctx, attrs, [&](i64 at, i64 n, const Parameters& p) {
    const float inverse = static_cast<float>(1.0 / p.scale);
    const float* x = ctx.input<float>(0) + at;
    if (ctx.out().dtype == DType::i8)
      table.quantize_i8(x, n, inverse, p.zero, low, high, ctx.output<std::int8_t>() + at);
    else
      table.quantize_u8(x, n, inverse, p.zero, low, high, ctx.output<std::uint8_t>() + at);
  });
}

void dequantize(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<AffineAttrs>();
  const simd::AffineTable& table = simd::affine();
  for_runs(ctx, attrs, [&](i64 at, i64 n, const Parameters& p) {
    const float scale = static_cast<float>(p.scale);
    float* to = ctx.output<float>() + at;
    if (ctx.in(0).dtype == DType::i8)
      table.dequantize_i8(ctx.input<std::int8_t>(0) + at, n, scale, p.zero, to);
    else
      table.dequantize_u8(ctx.input<std::uint8_t>(0) + at, n, scale, p.zero, to);
  });
}

void choose(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ChooseAffineAttrs>();
  const Blocks blocks(ctx.in(0), attrs.block);
  const auto low = static_cast<float>(attrs.low), high = static_cast<float>(attrs.high);
  const auto least_scale = static_cast<float>(attrs.least_scale);
  const auto [begin, end] = ctx.range(blocks.count());
  for (i64 b = begin; b < end; ++b) {
    float least = 0, largest = 0;
    for (i64 run = 0; run < blocks.runs_per_block(); ++run) {
      float l, h;
      simd::affine().range(ctx.input<float>(0) + blocks.start(b, run), blocks.length(), &l, &h);
      least = std::isnan(l) || l < least ? l : least;
      largest = std::isnan(h) || h > largest ? h : largest;
    }
    float scale, zero = static_cast<float>(std::trunc((attrs.high + attrs.low + 1) / 2));
    if (attrs.mapping == AffineMapping::symmetric) {
      scale = (std::isnan(least) || -least > largest ? -least : largest) / ((high - low) / 2);
    } else if (attrs.mapping == AffineMapping::symmetric_no_clipping) {
      const float of_least = least / low, of_largest = largest / high;
      scale = of_least > of_largest ? of_least : of_largest;
    } else {
      scale = (largest - least) / (high - low);
    }
    if (scale < least_scale) scale = least_scale;
    if (attrs.mapping == AffineMapping::asymmetric) {
      zero = low - std::nearbyint(least / scale);
      zero = zero < low ? low : zero > high ? high : zero;
    }
    put_number(ctx.outputs[0], ctx.out(0).dtype, b, static_cast<double>(scale));
    put_number(ctx.outputs[1], ctx.out(1).dtype, b, static_cast<double>(zero));
  }
}

}  // namespace

const Kernel kQuantizeAffine{"quantize_affine", quantize, kMinParallelElements};
const Kernel kDequantizeAffine{"dequantize_affine", dequantize, kMinParallelElements};
const Kernel kChooseAffine{"choose_affine", choose};

}  // namespace graft
