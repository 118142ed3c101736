#include "op/spatial.h"

#include "base/check.h"

namespace graft {

Tensor with_three_spatial(const Tensor& tensor, int spatial) {
  const TensorDesc& from = tensor.desc;
  const int lead = from.rank() - spatial;
  GRAFT_ASSERT(spatial >= 1 && spatial <= 3 && (lead == 1 || lead == 2));
  TensorDesc to(from.dtype, Shape{1, 1, 1, 1, 1});
  const auto take = [&](int to_dim, int from_dim) {
    to.shape[to_dim] = from.shape[from_dim];
    to.strides[static_cast<std::size_t>(to_dim)] = from.strides[static_cast<std::size_t>(from_dim)];
  };
  for (int d = 0; d < lead; ++d) take(2 - lead + d, d);
  for (int d = 0; d < spatial; ++d) take(5 - spatial + d, lead + d);
  Tensor result = tensor;
  result.desc = to;
  return result;
}

}  // namespace graft
