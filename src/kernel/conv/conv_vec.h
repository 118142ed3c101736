#pragma once

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Inner loop of depthwise convolutions (one input channel per output channel).
namespace graft::simd {

struct ConvTable {
  int lanes;  // input is read in whole vectors of this size: up to lanes - 1 elements past the last one needed

  // out[i] = bias + sum over t of weight[t] * x[offsets[t] + i] for i in [0, n). Output: f32, f16 or bf16.
  void (*taps)(const float* x, const std::int64_t* offsets, const float* weight, std::int64_t taps, float bias,
               std::int64_t n, void* out, DType dtype);
};

GRAFT_TABLE("vec", ConvTable, kConv, conv)

}  // namespace graft::simd
