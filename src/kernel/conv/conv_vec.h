#pragma once

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Inner loop of convolutions that have one input channel per output channel.
namespace graft::simd {

struct ConvTable {
  int lanes;  // input is read in whole vectors of so many elements: up to lanes - 1 beyond the last one needed

  // out[i] = bias + sum over t of weight[t] * x[offsets[t] + i] for i in [0, n). Output: f32, f16 or bf16.
  void (*taps)(const float* x, const std::int64_t* offsets, const float* weight, std::int64_t taps, float bias,
               std::int64_t n, void* out, DType dtype);
};

// The table of a level that is available here.
const ConvTable& conv(Isa isa);
inline const ConvTable& conv() { return conv(active_isa()); }

namespace baseline {
extern const ConvTable kConv;
}
namespace avx2 {
extern const ConvTable kConv;
}
namespace avx512 {
extern const ConvTable kConv;
}

}  // namespace graft::simd
