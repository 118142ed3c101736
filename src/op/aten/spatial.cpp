#include "op/aten/spatial.h"

#include <array>
#include <vector>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/operator.h"

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

Shape with_three_spatial(const Shape& weight) {
  Shape out = {weight[0], weight[1]};
  for (int d = weight.rank(); d < 5; ++d) out.push_back(1);
  for (int d = 2; d < weight.rank(); ++d) out.push_back(weight[d]);
  return out;
}

Tensor allocate_channels_last(DType dtype, const Shape& shape, Lowering& lowering) {
  Shape last = {shape[0]};
  std::vector<int> dims = {0, shape.rank() - 1};
  for (int d = 2; d < shape.rank(); ++d) {
    last.push_back(shape[d]);
    dims.push_back(d - 1);
  }
  last.push_back(shape[1]);
  return permuted(lowering.allocate(dtype, last), dims);
}

Shape weight_size(const Call& call) {
  Shape shape;
  for (const std::int64_t size : call.integers("weight_size")) {
    GRAFT_CHECK(InvalidArgument, size > 0, "weight_size holds ", size, ", expected at least 1 each");
    shape.push_back(size);
  }
  return shape;
}

Tensor dense_channels_last(const Tensor& x, Lowering& lowering) {
  return permuted(lowering.contiguous(permuted(x, std::array{0, 2, 3, 4, 1})), std::array{0, 4, 1, 2, 3});
}

Tensor channels_last(const Tensor& x, Lowering& lowering) {
  return x.stride(1) == 1 || x.size(1) == 1 ? x : dense_channels_last(x, lowering);
}

bool has_channels_last(const Tensor& x) {
  constexpr std::int64_t kLeast = 8;
  return x.rank() > 2 && x.stride(1) == 1 && x.size(1) >= kLeast && !x.desc.contiguous();
}

}  // namespace graft
