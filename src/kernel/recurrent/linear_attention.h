#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/recurrent/linear_attention_vec.h"

// Linear attention: a state per head that each step decays, adds to and reads. f32. Any number of steps, any strides of
// dimensions but the last, which is contiguous.
namespace graft {

// The gated delta rule. Inputs: query and key [B, T, Hk, K], value [B, T, H, V], decay [B, T, H] or [B, T, H, K] in
// [0, 1], beta [B, T, H], state [B, H, K, V], contiguous. Hk divides H: head h has query and key of head h / (H / Hk).
// Outputs, contiguous: y [B, T, H, V] and the state after the last step. Per step S = diag(decay) S,
// S += k (beta (v - k' S))', y = q' S. Tasks divide heads and columns of the state.
extern const Kernel kGatedDelta;
std::int64_t gated_delta_scratch_bytes(std::int64_t keys, int tasks);

// The selective scan of state-space models. Inputs: x [B, T, H, P], dt [B, T, H], a [H, N] or [H, 1], b and c
// [B, T, G, N], state [B, H, P, N], contiguous. G divides H likewise. Outputs, contiguous: y [B, T, H, P] and the state
// after the last step. Per step S = exp(dt a) S + dt x b', y = S c. Tasks divide heads.
extern const Kernel kSelectiveScan;
std::int64_t selective_scan_scratch_bytes(std::int64_t steps, int tasks);

// The same with the states of a cache (kernel/recurrent/cached_state.h): instead of the input `state` position i64
// [B, T] and half i64 [R]; as second output the state, [R, 2, H, K, V] or [R, 2, H, P, N]. Results of padding are
// zeros.
extern const Kernel kCachedGatedDelta;
extern const Kernel kCachedSelectiveScan;

// With the kernels of a given instruction set. `cached`: of these two.
void run_gated_delta(const KernelContext& ctx, const simd::LinearAttentionTable& table, bool cached) noexcept;
void run_selective_scan(const KernelContext& ctx, const simd::LinearAttentionTable& table, bool cached) noexcept;

}  // namespace graft
