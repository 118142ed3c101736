#include "kernel/conv/conv_vec.h"

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// V vectors of results at once, whose sums are independent.
template <typename T, int V>
GRAFT_VEC void block(const float* x, const i64* offsets, const float* weight, i64 taps, float bias, i64 n,
                     typename T::Stored* out) {
  vf sums[V];
  for (int v = 0; v < V; ++v) sums[v] = splat(bias);
  for (i64 t = 0; t < taps; ++t) {
    const vf w = splat(weight[t]);
    const float* from = x + offsets[t];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[v] = fma(w, load(from + v * kLanes), sums[v]);
  }
  for (int v = 0; v < V; ++v) store_some<T>(out + v * kLanes, sums[v], n - v * kLanes);
}

template <typename T>
void taps_as(const float* x, const i64* offsets, const float* weight, i64 taps, float bias, i64 n,
             typename T::Stored* out) {
  i64 i = 0;
  for (; i + 3 * kLanes < n; i += 4 * kLanes) block<T, 4>(x + i, offsets, weight, taps, bias, n - i, out + i);
  if (i + kLanes < n) {
    block<T, 2>(x + i, offsets, weight, taps, bias, n - i, out + i);
    i += 2 * kLanes;
  }
  if (i < n) block<T, 1>(x + i, offsets, weight, taps, bias, n - i, out + i);
}

void taps(const float* x, const i64* offsets, const float* weight, i64 count, float bias, i64 n, void* out,
          DType dtype) {
  if (dtype == DType::f32) {
    taps_as<F32>(x, offsets, weight, count, bias, n, static_cast<float*>(out));
  } else if (dtype == DType::bf16) {
    taps_as<BF16>(x, offsets, weight, count, bias, n, static_cast<std::uint16_t*>(out));
  } else {
    taps_as<F16>(x, offsets, weight, count, bias, n, static_cast<std::uint16_t*>(out));
  }
}

}  // namespace

const ConvTable kConv = {kLanes, taps};

}  // namespace graft::simd::GRAFT_ISA
