#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv_vec.h"
#include "kernel/kernel.h"

namespace graft {

struct PoolAttrs {
  std::int64_t kernel[3] = {1, 1, 1};  // of D, H, W
  std::int64_t stride[3] = {1, 1, 1};
  std::int64_t padding[3] = {0, 0, 0};
  std::int64_t dilation[3] = {1, 1, 1};
  std::int32_t adaptive = 0;     // windows divide the input evenly; the four above are not used
  std::int32_t average = 0;      // instead of the largest; not with dilation
  std::int32_t include_pad = 0;  // padding counts in the divisor of an average
  std::int64_t divisor = 0;      // divides an average instead of the count, unless 0
};

// Input x [N, C, D, H, W] of any strides; output 0, contiguous, [N, C, D', H', W'] of the same dtype; output 1, when
// present, i64 of that shape: the index of each largest element in the input's D * H * W. NaN is the largest, and of
// several the last. Averages: f32, f16, bf16 and f64 with f64 sums, i64 rounded towards zero. Largest: integers too.
extern const Kernel kPool;
std::int64_t pool_scratch_bytes(const TensorDesc& x, const TensorDesc& out, int threads);

// Max pooling of f32 alone, without indices: x channels last, output [N, C, D', H', W'] as a contiguous [N, D', H', W',
// C].
extern const Kernel kChannelsLastMaxPool;
std::int64_t channels_last_pool_scratch_bytes(const PoolAttrs& attrs, const TensorDesc& x, int threads);
void run_channels_last_pool(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;

}  // namespace graft
