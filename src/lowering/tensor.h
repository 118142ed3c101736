#pragma once

#include <cstdint>
#include <optional>

#include "graft/tensor.h"
#include "weight/stored.h"

namespace graft {

using BufferId = std::uint32_t;

// A tensor of a plan: a strided window into one buffer. Views of a buffer share its id and cost nothing.
struct Tensor {
  BufferId buffer = 0;
  std::int64_t offset = 0;  // bytes from the start of the buffer to element [0, 0, ...]
  TensorDesc desc;
  // A weight whose stored type is not its dtype: `desc` describes its values, and only operators that declare it
  // (Operator::stored_use) get such a tensor. Launches read the stored form: as_stored(), Lowering::bytes_of().
  std::optional<Stored> stored = std::nullopt;

  DType dtype() const { return desc.dtype; }
  const Shape& shape() const { return desc.shape; }
  int rank() const { return desc.rank(); }
  std::int64_t size(int dim) const { return desc.shape[dim]; }
  std::int64_t stride(int dim) const { return desc.strides[static_cast<std::size_t>(dim)]; }
  std::int64_t numel() const { return desc.numel(); }
};

// Whether both are the same elements of memory in the same order.
inline bool same_tensor(const Tensor& a, const Tensor& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.dtype() == b.dtype() && a.shape() == b.shape() &&
         a.desc.strides == b.desc.strides;
}

}  // namespace graft
