#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "lowering/lowering.h"

// What the lowerings to ggml's ops share.
namespace graft::device {

using Params = std::array<std::int32_t, 16>;

inline std::int32_t bits(double value) { return std::bit_cast<std::int32_t>(static_cast<float>(value)); }

// Where ggml's Vulkan backend reads the operands of a product, and writes its result: multiples of what the device asks
// for, at most this.
inline constexpr std::int64_t kOffsetAlignment = 256;
inline bool is_aligned(const Tensor& tensor) { return tensor.offset % kOffsetAlignment == 0; }

// The same elements at the beginning of a buffer.
inline Tensor moved(Lowering& lowering, const Tensor& tensor) {
  const Tensor out = lowering.allocate(tensor.dtype(), tensor.shape());
  lowering.copy(tensor, out);
  return out;
}

// The tensor that an f32 op writes for a result of `out`'s dtype.
inline Tensor f32_target(Lowering& lowering, const Tensor& out) {
  return out.dtype() == DType::f32 ? out : lowering.allocate(DType::f32, out.shape());
}
inline void finish(Lowering& lowering, const Tensor& target, const Tensor& out) {
  if (target.dtype() != out.dtype()) lowering.copy(target, out);
}

}  // namespace graft::device
