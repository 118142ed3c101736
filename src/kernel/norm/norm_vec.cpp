#include "kernel/norm/norm_vec.h"

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// Independent vector sums: hides the latency of the addition and shortens the chain of roundings.
constexpr int kChains = 4;
constexpr i64 kStep = kChains * kLanes;

template <typename T>
using Stored = typename T::Stored;

// Sum of f(x, lanes) over the row; f must return 0 in the lanes past the end.
template <typename T, typename F>
GRAFT_VEC float sum(const Stored<T>* x, i64 n, F f) {
  vf s[kChains];
  for (int c = 0; c < kChains; ++c) s[c] = zero();
  i64 i = 0;
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) s[c] += f(T::load(x + i + c * kLanes), i64{kLanes});
  }
  for (; i < n; i += kLanes) s[0] += f(load_some<T>(x + i, n - i), n - i);
  return sum_lanes((s[0] + s[1]) + (s[2] + s[3]));
}

template <typename T>
void moments_of(const Stored<T>* x, i64 n, float* mean, float* variance) {
  const float count = static_cast<float>(n);
  const float first = sum<T>(x, n, [](vf v, i64) { return v; }) / count;
  const vf middle = splat(first);
  // The second pass also sums the plain differences, which correct the rounding of the mean.
  vf d[2] = {zero(), zero()}, q[2] = {zero(), zero()};
  i64 i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      const vf v = T::load(x + i + c * kLanes) - middle;
      d[c] += v;
      q[c] = fma(v, v, q[c]);
    }
  }
  for (; i < n; i += kLanes) {
    const vf v = keep_n(load_some<T>(x + i, n - i) - middle, n - i, 0.f);
    d[0] += v;
    q[0] = fma(v, v, q[0]);
  }
  const float rest = sum_lanes(d[0] + d[1]) / count;
  const float squares = sum_lanes(q[0] + q[1]);
  *mean = first + rest;
  *variance = squares / count - rest * rest;
  if (*variance < 0) *variance = 0;
}

void moments(const void* x, DType dtype, i64 n, float* mean, float* variance) {
  if (dtype == DType::f32) {
    moments_of<F32>(static_cast<const float*>(x), n, mean, variance);
  } else if (dtype == DType::bf16) {
    moments_of<BF16>(static_cast<const std::uint16_t*>(x), n, mean, variance);
  } else {
    moments_of<F16>(static_cast<const std::uint16_t*>(x), n, mean, variance);
  }
}

GRAFT_VEC vf load_any(const void* p, DType dtype, i64 index, i64 n) {
  if (dtype == DType::f32) return load_some<F32>(static_cast<const float*>(p) + index, n);
  if (dtype == DType::bf16) return load_some<BF16>(static_cast<const std::uint16_t*>(p) + index, n);
  return load_some<F16>(static_cast<const std::uint16_t*>(p) + index, n);
}

template <typename T>
void normalize_as(const Stored<T>* x, Stored<T>* y, i64 n, float shift, float scale, const void* weight,
                  DType weight_dtype, const void* bias, DType bias_dtype) {
  const vf a = splat(shift), b = splat(scale);
  for (i64 i = 0; i < n; i += kLanes) {
    vf v = (load_some<T>(x + i, n - i) - a) * b;
    if (weight != nullptr) v *= load_any(weight, weight_dtype, i, n - i);
    if (bias != nullptr) v += load_any(bias, bias_dtype, i, n - i);
    store_some<T>(y + i, v, n - i);
  }
}

void normalize(const void* x, void* y, DType dtype, i64 n, float shift, float scale, const void* weight,
               DType weight_dtype, const void* bias, DType bias_dtype) {
  if (dtype == DType::f32) {
    normalize_as<F32>(static_cast<const float*>(x), static_cast<float*>(y), n, shift, scale, weight, weight_dtype, bias,
                      bias_dtype);
  } else if (dtype == DType::bf16) {
    normalize_as<BF16>(static_cast<const std::uint16_t*>(x), static_cast<std::uint16_t*>(y), n, shift, scale, weight,
                       weight_dtype, bias, bias_dtype);
  } else {
    normalize_as<F16>(static_cast<const std::uint16_t*>(x), static_cast<std::uint16_t*>(y), n, shift, scale, weight,
                      weight_dtype, bias, bias_dtype);
  }
}

template <typename T>
GRAFT_VEC void channel_as(const Stored<T>* x, Stored<T>* y, i64 n, vf shift, vf scale, vf offset) {
  for (i64 i = 0; i < n; i += kLanes) {
    store_some<T>(y + i, fma(load_some<T>(x + i, n - i) - shift, scale, offset), n - i);
  }
}

void normalize_channel(const void* x, void* y, DType dtype, i64 n, float shift, float scale, float offset) {
  const vf a = splat(shift), b = splat(scale), c = splat(offset);
  if (dtype == DType::f32) {
    channel_as<F32>(static_cast<const float*>(x), static_cast<float*>(y), n, a, b, c);
  } else if (dtype == DType::bf16) {
    channel_as<BF16>(static_cast<const std::uint16_t*>(x), static_cast<std::uint16_t*>(y), n, a, b, c);
  } else {
    channel_as<F16>(static_cast<const std::uint16_t*>(x), static_cast<std::uint16_t*>(y), n, a, b, c);
  }
}

float mean_square(const void* x, DType dtype, i64 n) {
  const auto square = [](vf v, i64) { return v * v; };  // lanes past the end are 0
  const float count = static_cast<float>(n);
  if (dtype == DType::f32) return sum<F32>(static_cast<const float*>(x), n, square) / count;
  if (dtype == DType::bf16) return sum<BF16>(static_cast<const std::uint16_t*>(x), n, square) / count;
  return sum<F16>(static_cast<const std::uint16_t*>(x), n, square) / count;
}

template <typename T>
GRAFT_VEC float largest(const Stored<T>* x, i64 n) {
  const float low = -__builtin_inff();
  vf m[kChains];
  for (int c = 0; c < kChains; ++c) m[c] = splat(low);
  i64 i = 0;
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) m[c] = max_nan(T::load(x + i + c * kLanes), m[c]);
  }
  for (; i < n; i += kLanes) m[0] = max_nan(keep_n(load_some<T>(x + i, n - i), n - i, low), m[0]);
  return max_lanes_nan(max_nan(max_nan(m[0], m[1]), max_nan(m[2], m[3])));
}

void rotate(const float* x, const float* cos, const float* sin, i64 n, float* y) {
  const i64 half = n / 2;
  i64 i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const vf a = load(x + i), b = load(x + half + i);
    store(y + i, a * load(cos + i) - b * load(sin + i));
    store(y + half + i, fma(b, load(cos + half + i), a * load(sin + half + i)));
  }
  for (; i < half; ++i) {
    y[i] = x[i] * cos[i] - x[half + i] * sin[i];
    y[half + i] = x[half + i] * cos[half + i] + x[i] * sin[half + i];
  }
}

template <typename T, typename U>
void softmax_as(const Stored<T>* x, Stored<U>* y, i64 n, bool logarithm) {
  if (n == 0) return;
  const vf top = splat(largest<T>(x, n));
  const float total = sum<T>(x, n, [top](vf v, i64 left) { return keep_n(exp(v - top), left, 0.f); });
  if (logarithm) {
    const vf shift = splat(__builtin_logf(total));
    for (i64 i = 0; i < n; i += kLanes) store_some<U>(y + i, load_some<T>(x + i, n - i) - top - shift, n - i);
    return;
  }
  // The exponentials are recomputed rather than kept: the output may be narrower than f32.
  const vf scale = splat(1.f / total);
  for (i64 i = 0; i < n; i += kLanes) store_some<U>(y + i, exp(load_some<T>(x + i, n - i) - top) * scale, n - i);
}

// In f32 rows the exponentials are kept in the output.
template <>
void softmax_as<F32, F32>(const float* x, float* y, i64 n, bool logarithm) {
  if (n == 0) return;
  const vf top = splat(largest<F32>(x, n));
  if (logarithm) {
    const float total = sum<F32>(x, n, [top](vf v, i64 left) { return keep_n(exp(v - top), left, 0.f); });
    const vf shift = splat(__builtin_logf(total));
    for (i64 i = 0; i < n; i += kLanes) store_some<F32>(y + i, load_some<F32>(x + i, n - i) - top - shift, n - i);
    return;
  }
  vf s[kChains];
  for (int c = 0; c < kChains; ++c) s[c] = zero();
  i64 i = 0;
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) {
      const vf e = exp(load(x + i + c * kLanes) - top);
      store(y + i + c * kLanes, e);
      s[c] += e;
    }
  }
  for (; i < n; i += kLanes) {
    const vf e = keep_n(exp(load_some<F32>(x + i, n - i) - top), n - i, 0.f);
    store_some<F32>(y + i, e, n - i);
    s[0] += e;
  }
  const vf scale = splat(1.f / sum_lanes((s[0] + s[1]) + (s[2] + s[3])));
  for (i = 0; i < n; i += kLanes) store_some<F32>(y + i, load_some<F32>(y + i, n - i) * scale, n - i);
}

void softmax(const void* x, DType x_dtype, void* y, DType y_dtype, i64 n, bool logarithm) {
  const float* x32 = static_cast<const float*>(x);
  const std::uint16_t* x16 = static_cast<const std::uint16_t*>(x);
  float* y32 = static_cast<float*>(y);
  std::uint16_t* y16 = static_cast<std::uint16_t*>(y);
  if (x_dtype == DType::f32) return softmax_as<F32, F32>(x32, y32, n, logarithm);
  if (x_dtype == DType::bf16) {
    if (y_dtype == DType::f32) return softmax_as<BF16, F32>(x16, y32, n, logarithm);
    return softmax_as<BF16, BF16>(x16, y16, n, logarithm);
  }
  if (y_dtype == DType::f32) return softmax_as<F16, F32>(x16, y32, n, logarithm);
  softmax_as<F16, F16>(x16, y16, n, logarithm);
}

}  // namespace

const RowsTable kRows = {moments, normalize, normalize_channel, mean_square, rotate, softmax};

}  // namespace graft::simd::GRAFT_ISA
