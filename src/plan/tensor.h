#pragma once

#include <cstdint>

#include "graft/tensor.h"

namespace graft {

using BufferId = std::uint32_t;

// A tensor of a plan: a strided window into one buffer. Views of a buffer share its id and cost nothing.
struct Tensor {
  BufferId buffer = 0;
  std::int64_t offset = 0;  // bytes from the start of the buffer to element [0, 0, ...]
  TensorDesc desc;

  DType dtype() const { return desc.dtype; }
  const Shape& shape() const { return desc.shape; }
  int rank() const { return desc.rank(); }
  std::int64_t size(int dim) const { return desc.shape[dim]; }
  std::int64_t stride(int dim) const { return desc.strides[static_cast<std::size_t>(dim)]; }
  std::int64_t numel() const { return desc.numel(); }
};

}  // namespace graft
