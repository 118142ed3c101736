#pragma once

#include "kernel/kernel.h"
#include "kernel/recurrent/channel_scan_vec.h"

// Recurrences of single channels (kernel/recurrent/channel_scan_vec.h). f32. Any number of steps, any strides of
// dimensions but the last, which is contiguous. Tasks divide rows of the batch and channels.
namespace graft {

// Inputs: x and decay [B, T, C], state [B, C], contiguous. Outputs, contiguous: y [B, T, C], and the state after the
// last step.
extern const Kernel kDiagonalScan;

// Inputs: log_decay and bonus [C], key and value [B, T, C], state [B, 3, C]: numerator, denominator and maximum; those
// of one dimension and the state contiguous. Outputs, contiguous: y [B, T, C], and the state after the last step.
extern const Kernel kWkv;

// The same with the states of a cache (kernel/recurrent/cached_state.h): instead of the input `state` position i64
// [B, T] and half i64 [R]; as second output the state, [R, 2, C] or [R, 2, 3 C]. Results of padding are zeros.
extern const Kernel kCachedDiagonalScan;
extern const Kernel kCachedWkv;

// With the kernels of a given instruction set. `cached`: of these two.
void run_diagonal_scan(const KernelContext& ctx, const simd::ChannelScanTable& table, bool cached) noexcept;
void run_wkv(const KernelContext& ctx, const simd::ChannelScanTable& table, bool cached) noexcept;

}  // namespace graft
