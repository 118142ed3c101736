#include "kernel/norm/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace graft {
namespace {

using i64 = std::int64_t;

const std::byte* at(const void* p, DType dtype, i64 index) {
  return static_cast<const std::byte*>(p) + index * static_cast<i64>(byte_size(dtype));
}
std::byte* at(void* p, DType dtype, i64 index) {
  return static_cast<std::byte*>(p) + index * static_cast<i64>(byte_size(dtype));
}

i64 element_count(const TensorDesc& desc) {
  i64 count = 1;
  for (const i64 size : desc.shape.sizes()) count *= size;
  return count;
}

// Weight and bias of a norm kernel: null when absent.
struct Affine {
  const void* weight = nullptr;
  const void* bias = nullptr;
  DType weight_dtype = DType::f32, bias_dtype = DType::f32;

  // Input `i` is the weight if there is one, else the bias.
  Affine(const KernelContext& ctx, const NormAttrs& attrs, int i = 1) {
    if (attrs.has_weight != 0) {
      weight = ctx.inputs[i];
      weight_dtype = ctx.in(i++).dtype;
    }
    if (attrs.has_bias != 0) {
      bias = ctx.inputs[i];
      bias_dtype = ctx.in(i).dtype;
    }
  }
};

double value_at(const void* p, DType dtype, i64 index, const simd::RowsTable& table) {
  if (dtype == DType::f64) return static_cast<const double*>(p)[index];
  if (dtype == DType::f32) return static_cast<double>(static_cast<const float*>(p)[index]);
  // The mean of one element is its value.
  float mean = 0, variance = 0;
  table.moments(at(p, dtype, index), dtype, 1, &mean, &variance);
  return static_cast<double>(mean);
}

// Writes a statistic of a row to output `i`, if there is one.
void put_statistic(const KernelContext& ctx, int i, i64 row, double value, const simd::RowsTable& table) {
  if (i >= static_cast<int>(ctx.output_descs.size())) return;
  const DType dtype = ctx.out(i).dtype;
  if (dtype == DType::f64) {
    ctx.output<double>(i)[row] = value;
  } else if (dtype == DType::f32) {
    ctx.output<float>(i)[row] = static_cast<float>(value);
  } else {
    // Narrowed by the row kernel: (0 - shift) * 1 of a zero of that dtype.
    const std::uint16_t zero = 0;
    table.normalize(&zero, at(ctx.outputs[i], dtype, row), dtype, 1, static_cast<float>(-value), 1.f, nullptr,
                    DType::f32, nullptr, DType::f32);
  }
}

struct Moments {
  double mean = 0, variance = 0;
};

Moments moments_f64(const double* x, i64 n) {
  Moments m;
  for (i64 i = 0; i < n; ++i) m.mean += x[i];
  m.mean /= static_cast<double>(n);
  for (i64 i = 0; i < n; ++i) m.variance += (x[i] - m.mean) * (x[i] - m.mean);
  m.variance /= static_cast<double>(n);
  return m;
}

Moments moments_of(const void* x, DType dtype, i64 n, const simd::RowsTable& table) {
  if (dtype == DType::f64) return moments_f64(static_cast<const double*>(x), n);
  float mean = 0, variance = 0;
  table.moments(x, dtype, n, &mean, &variance);
  return {static_cast<double>(mean), static_cast<double>(variance)};
}

// 1 / sqrt(x + eps) in the precision of the dtype's arithmetic.
double inverse_root(double x, double eps, DType dtype) {
  if (dtype == DType::f64) return 1 / std::sqrt(x + eps);
  return static_cast<double>(1.f / std::sqrt(static_cast<float>(x) + static_cast<float>(eps)));
}

void normalize_row(const void* x, void* y, DType dtype, i64 n, double shift, double scale, const Affine& affine,
                   const simd::RowsTable& table) {
  if (dtype != DType::f64) {
    table.normalize(x, y, dtype, n, static_cast<float>(shift), static_cast<float>(scale), affine.weight,
                    affine.weight_dtype, affine.bias, affine.bias_dtype);
    return;
  }
  const double* from = static_cast<const double*>(x);
  double* to = static_cast<double*>(y);
  for (i64 i = 0; i < n; ++i) {
    double v = (from[i] - shift) * scale;
    if (affine.weight != nullptr) v *= value_at(affine.weight, affine.weight_dtype, i, table);
    if (affine.bias != nullptr) v += value_at(affine.bias, affine.bias_dtype, i, table);
    to[i] = v;
  }
}

// Statistics of empty rows are NaN, like the mean of nothing.
void put_empty_statistics(const KernelContext& ctx, const simd::RowsTable& table) {
  if (ctx.task != 0) return;
  for (int i = 1; i < static_cast<int>(ctx.output_descs.size()); ++i) {
    const i64 count = element_count(ctx.out(i));
    for (i64 r = 0; r < count; ++r) {
      put_statistic(ctx, i, r, std::numeric_limits<double>::quiet_NaN(), table);
    }
  }
}

// Reading rows that another core wrote is slower than processing them, so they are prefetched; of long rows the
// hardware prefetcher follows the rest. Inlined: a compiler may drop a call to a function that only prefetches.
constexpr i64 kRowsAhead = 2, kMostAsked = 4096;  // bytes
__attribute__((always_inline)) inline void prefetch_row(const KernelContext& ctx, i64 row, i64 end, i64 elements) {
  if (row >= end) return;
  const i64 bytes = elements * static_cast<i64>(byte_size(ctx.in(0).dtype));
  const std::byte* from = at(ctx.inputs[0], ctx.in(0).dtype, row * elements);
  for (i64 i = 0; i < std::min(bytes, kMostAsked); i += 64) __builtin_prefetch(from + i);
}

void layer_norm_here(const KernelContext& ctx) noexcept { run_layer_norm(ctx, simd::rows()); }
void rms_norm_here(const KernelContext& ctx) noexcept { run_rms_norm(ctx, simd::rows()); }
void group_norm_here(const KernelContext& ctx) noexcept { run_group_norm(ctx, simd::rows()); }
void batch_norm_here(const KernelContext& ctx) noexcept { run_batch_norm(ctx, simd::rows()); }

}  // namespace

void run_layer_norm(const KernelContext& ctx, const simd::RowsTable& table) noexcept {
  const auto attrs = ctx.attrs<NormAttrs>();
  if (attrs.row == 0) return put_empty_statistics(ctx, table);
  const DType dtype = ctx.in(0).dtype;
  const Affine affine(ctx, attrs);
  const auto [begin, end] = ctx.range(element_count(ctx.in(0)) / attrs.row);
  for (i64 r = begin; r < end; ++r) {
    const void* x = at(ctx.inputs[0], dtype, r * attrs.row);
    prefetch_row(ctx, r + kRowsAhead, end, attrs.row);
    const Moments m = moments_of(x, dtype, attrs.row, table);
    const double scale = inverse_root(m.variance, attrs.eps, dtype);
    put_statistic(ctx, 1, r, m.mean, table);
    put_statistic(ctx, 2, r, scale, table);
    normalize_row(x, at(ctx.outputs[0], dtype, r * attrs.row), dtype, attrs.row, m.mean, scale, affine, table);
  }
}

void run_rms_norm(const KernelContext& ctx, const simd::RowsTable& table) noexcept {
  const auto attrs = ctx.attrs<NormAttrs>();
  if (attrs.row == 0) return put_empty_statistics(ctx, table);
  const DType dtype = ctx.in(0).dtype;
  const Affine affine(ctx, attrs);
  const auto [begin, end] = ctx.range(element_count(ctx.in(0)) / attrs.row);
  for (i64 r = begin; r < end; ++r) {
    const void* x = at(ctx.inputs[0], dtype, r * attrs.row);
    prefetch_row(ctx, r + kRowsAhead, end, attrs.row);
    double square = 0;
    if (dtype == DType::f64) {
      for (i64 i = 0; i < attrs.row; ++i) square += static_cast<const double*>(x)[i] * static_cast<const double*>(x)[i];
      square /= static_cast<double>(attrs.row);
    } else {
      square = static_cast<double>(table.mean_square(x, dtype, attrs.row));
    }
    const double scale = inverse_root(square, attrs.eps, dtype);
    put_statistic(ctx, 1, r, scale, table);
    normalize_row(x, at(ctx.outputs[0], dtype, r * attrs.row), dtype, attrs.row, 0, scale, affine, table);
  }
}

void run_group_norm(const KernelContext& ctx, const simd::RowsTable& table) noexcept {
  const auto attrs = ctx.attrs<NormAttrs>();
  if (attrs.row == 0) return put_empty_statistics(ctx, table);
  const DType dtype = ctx.in(0).dtype;
  const Affine affine(ctx, attrs);
  const i64 group_channels = attrs.row / attrs.inner;
  const i64 groups = attrs.channels / group_channels;
  const auto [begin, end] = ctx.range(element_count(ctx.in(0)) / attrs.row);
  for (i64 r = begin; r < end; ++r) {
    const Moments m = moments_of(at(ctx.inputs[0], dtype, r * attrs.row), dtype, attrs.row, table);
    const double scale = inverse_root(m.variance, attrs.eps, dtype);
    put_statistic(ctx, 1, r, m.mean, table);
    put_statistic(ctx, 2, r, scale, table);
    for (i64 c = 0; c < group_channels; ++c) {
      const i64 channel = r % groups * group_channels + c;
      const i64 start = r * attrs.row + c * attrs.inner;
      const void* x = at(ctx.inputs[0], dtype, start);
      void* y = at(ctx.outputs[0], dtype, start);
      const double weight = affine.weight == nullptr ? 1 : value_at(affine.weight, affine.weight_dtype, channel, table);
      const double bias = affine.bias == nullptr ? 0 : value_at(affine.bias, affine.bias_dtype, channel, table);
      if (dtype == DType::f64) {
        for (i64 i = 0; i < attrs.inner; ++i) {
          static_cast<double*>(y)[i] = (static_cast<const double*>(x)[i] - m.mean) * scale * weight + bias;
        }
        continue;
      }
      table.normalize_channel(x, y, dtype, attrs.inner, static_cast<float>(m.mean), static_cast<float>(scale * weight),
                              static_cast<float>(bias));
    }
  }
}

void run_batch_norm(const KernelContext& ctx, const simd::RowsTable& table) noexcept {
  const auto attrs = ctx.attrs<NormAttrs>();
  const DType dtype = ctx.in(0).dtype;
  const Affine affine(ctx, attrs, 3);
  const auto [begin, end] = ctx.range(element_count(ctx.in(0)) / attrs.inner);
  for (i64 plane = begin; plane < end; ++plane) {
    const i64 channel = plane % attrs.channels;
    const double mean = value_at(ctx.inputs[1], ctx.in(1).dtype, channel, table);
    double scale = inverse_root(value_at(ctx.inputs[2], ctx.in(2).dtype, channel, table), attrs.eps, dtype);
    if (affine.weight != nullptr) scale *= value_at(affine.weight, affine.weight_dtype, channel, table);
    const double bias = affine.bias == nullptr ? 0 : value_at(affine.bias, affine.bias_dtype, channel, table);
    const void* x = at(ctx.inputs[0], dtype, plane * attrs.inner);
    void* y = at(ctx.outputs[0], dtype, plane * attrs.inner);
    if (dtype == DType::f64) {
      for (i64 i = 0; i < attrs.inner; ++i) {
        static_cast<double*>(y)[i] = (static_cast<const double*>(x)[i] - mean) * scale + bias;
      }
    } else {
      table.normalize_channel(x, y, dtype, attrs.inner, static_cast<float>(mean), static_cast<float>(scale),
                              static_cast<float>(bias));
    }
  }
}

// Elements; some 2 microseconds of one thread.
constexpr i64 kMinParallel = 4096;

const Kernel kLayerNorm = {"layer_norm", layer_norm_here, kMinParallel};
const Kernel kRmsNorm = {"rms_norm", rms_norm_here, kMinParallel};
const Kernel kGroupNorm = {"group_norm", group_norm_here, kMinParallel};
const Kernel kBatchNorm = {"batch_norm", batch_norm_here, kMinParallel};

}  // namespace graft
