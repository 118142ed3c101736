#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/recurrent/causal_conv_vec.h"

namespace graft {

struct CausalConvAttrs {
  std::int32_t has_bias = 0;
  std::int32_t silu = 0;  // of the results
};

// Causal convolution of each channel along the tokens, over what the cache kept of those before. Inputs: x f32 [B, T,
// C], its last dimension contiguous; weight f32 [K, C] contiguous, the last tap that of the token itself; with has_bias
// bias f32 [C]; position i64 [B, T] as kCachePositions has checked it; half i64 [R]. Outputs: [B, T, C] contiguous,
// zeros for padding; the state [R, 2, K - 1, C]: the last inputs of each row (kernel/recurrent/cached_state.h). Tasks
// divide channels and tokens.
extern const Kernel kCachedCausalConv;

// With the kernels of a given instruction set.
void run_cached_causal_conv(const KernelContext& ctx, const simd::CausalConvTable& table) noexcept;

}  // namespace graft
