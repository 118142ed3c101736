#pragma once

#include <cstdint>

#include "kernel/simd/dispatch.h"

// Causal convolution of some channels. f32; strides are in elements, channels are contiguous.
namespace graft::simd {

struct ConvChannels {
  const float *x = nullptr, *weight = nullptr, *bias = nullptr;  // bias: may be null
  const float* first = nullptr;           // the taps - 1 inputs before the first step, rows `row` apart; null: zeros
  float *out = nullptr, *last = nullptr;  // last: likewise after the last step
  std::int64_t steps = 0, channels = 0, taps = 0;
  std::int64_t begin = 0, end = 0;   // of the steps, those to compute; who computes the last one writes `last`
  std::int64_t x_step = 0, row = 0;  // `row`: of weight, first, last and out
  bool silu = false;
};

struct CausalConvTable {
  void (*conv)(const ConvChannels&);
};

GRAFT_TABLE("vec", CausalConvTable, kCausalConv, causal_conv)

}  // namespace graft::simd
