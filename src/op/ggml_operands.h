#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "lowering/lowering.h"

// What the lowerings to ggml's ops share.
namespace graft::device {

using Params = std::array<std::int32_t, 16>;

inline std::int32_t bits(double value) { return std::bit_cast<std::int32_t>(static_cast<float>(value)); }

// Where ggml's Vulkan backend reads the operands of a product, and writes its result: multiples of what the device asks
// for, at most this.
inline constexpr std::int64_t kOffsetAlignment = 256;
inline bool is_aligned(const Tensor& tensor) { return tensor.offset % kOffsetAlignment == 0; }

inline constexpr std::array<int, 4> kSwapMiddle = {0, 2, 1, 3};

// The result of a kernel of the positions, and of the tokens' blocks where they have some: that of an earlier launch,
// where there is one, since all layers use the same.
template <typename Attrs>
Tensor of_positions(Lowering& lowering, const Kernel& kernel, const Tensor& position, DType dtype, const Shape& shape,
                    const Attrs& attrs, const Tensor* blocks = nullptr) {
  for (const Launch& earlier : lowering.sequence().launches)
    if (earlier.kernel == &kernel && same_tensor(earlier.inputs[0], position) && earlier.outputs[0].shape() == shape &&
        std::memcmp(earlier.attrs.data(), &attrs, sizeof(attrs)) == 0)
      return earlier.outputs[0];
  const Tensor out = lowering.allocate(dtype, shape);
  std::vector<Tensor> inputs = {position};
  if (blocks) inputs.push_back(*blocks);
  lowering.launch(kernel, std::move(inputs), {out}, attrs);
  return out;
}

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
