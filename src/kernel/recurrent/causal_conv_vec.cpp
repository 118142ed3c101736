#include "kernel/recurrent/causal_conv_vec.h"

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

GRAFT_VEC vf load_part(const float* p, i64 n) { return load_some<F32>(p, n); }
GRAFT_VEC void store_part(float* p, vf v, i64 n) { store_some<F32>(p, v, n); }

// The inputs of channel `c` and up at step t, which is negative before the first one.
GRAFT_VEC vf input_at(const ConvChannels& p, i64 t, i64 c, i64 n) {
  if (t >= 0) return load_part(p.x + t * p.x_step + c, n);
  return p.first != nullptr ? load_part(p.first + (p.taps - 1 + t) * p.row + c, n) : zero();
}

// Channels [c, c + n). `taps`: as many, with the inputs of the steps before in registers; 0: any number.
template <int taps>
GRAFT_VEC void conv_lanes(const ConvChannels& p, i64 c, i64 n) {
  constexpr int kKept = taps > 0 ? taps : 1;
  vf weight[kKept], x[kKept];
  if constexpr (taps > 0)
    for (int k = 0; k < taps; ++k) {
      weight[k] = load_part(p.weight + k * p.row + c, n);
      x[k] = input_at(p, p.begin + k - taps, c, n);
    }
  const vf bias = p.bias != nullptr ? load_part(p.bias + c, n) : zero();
  for (i64 t = p.begin; t < p.end; ++t) {
    vf sum = bias;
    if constexpr (taps > 0) {
      for (int k = 0; k + 1 < taps; ++k) x[k] = x[k + 1];
      x[taps - 1] = load_part(p.x + t * p.x_step + c, n);
      for (int k = 0; k < taps; ++k) sum = fma(weight[k], x[k], sum);
    } else {
      for (i64 k = 0; k < p.taps; ++k)
        sum = fma(load_part(p.weight + k * p.row + c, n), input_at(p, t - p.taps + 1 + k, c, n), sum);
    }
    store_part(p.out + t * p.row + c, p.silu ? silu(sum) : sum, n);
  }
  for (i64 k = 0; p.end == p.steps && k + 1 < p.taps; ++k)
    store_part(p.last + k * p.row + c, input_at(p, p.steps - p.taps + 1 + k, c, n), n);
}

void conv(const ConvChannels& p) {
  for (i64 c = 0; c < p.channels; c += kLanes) {
    const i64 n = p.channels - c < kLanes ? p.channels - c : i64{kLanes};
    if (p.taps == 4) {
      conv_lanes<4>(p, c, n);
    } else if (p.taps == 3) {
      conv_lanes<3>(p, c, n);
    } else {
      conv_lanes<0>(p, c, n);
    }
  }
}

}  // namespace

const CausalConvTable kCausalConv = {conv};

}  // namespace graft::simd::GRAFT_ISA
