#pragma once

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Kernels on one contiguous row of n elements; f32, f16 and bf16 in memory, f32 arithmetic. Output may be the input.
namespace graft::simd {

struct RowsTable {
  // Mean and biased variance, both exact to a few ulp even when the mean is large against the deviation. n > 0.
  void (*moments)(const void* x, DType dtype, std::int64_t n, float* mean, float* variance);

  // y[i] = (x[i] - shift) * scale * weight[i] + bias[i]; weight and bias may be null.
  void (*normalize)(const void* x, void* y, DType dtype, std::int64_t n, float shift, float scale, const void* weight,
                    DType weight_dtype, const void* bias, DType bias_dtype);

  // y[i] = (x[i] - shift) * scale + offset.
  void (*normalize_channel)(const void* x, void* y, DType dtype, std::int64_t n, float shift, float scale,
                            float offset);

  // Mean of squares. n > 0.
  float (*mean_square)(const void* x, DType dtype, std::int64_t n);

  // y[i] = x[i] * cos[i] - x[i + n / 2] * sin[i] in the first half, x[i] * cos[i] + x[i - n / 2] * sin[i] in the
  // second: rotary position embedding. n is even; y is not x.
  void (*rotate)(const float* x, const float* cos, const float* sin, std::int64_t n, float* y);

  // Softmax, or its logarithm, of a row. A row whose largest value is -inf gives NaN, as in PyTorch. y has x's dtype or
  // f32.
  void (*softmax)(const void* x, DType x_dtype, void* y, DType y_dtype, std::int64_t n, bool logarithm);
};

GRAFT_TABLE("vec", RowsTable, kRows, rows)

}  // namespace graft::simd
