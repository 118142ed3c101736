#include <algorithm>

#include "base/check.h"
#include "lowering/lowering.h"

namespace graft {

namespace {

std::size_t index(int dim) { return static_cast<std::size_t>(dim); }

std::int64_t element_size(const Tensor& tensor) { return static_cast<std::int64_t>(byte_size(tensor.dtype())); }

}  // namespace

std::optional<Tensor> try_reshape(const Tensor& tensor, const Shape& shape) {
  const std::int64_t count = tensor.numel();
  GRAFT_CHECK(InvalidArgument, shape.numel() == count, "shape ", shape.str(), " is invalid for a tensor of size ",
              tensor.shape().str());
  Tensor result = tensor;
  result.desc = TensorDesc(tensor.dtype(), shape);
  if (count == 0 || tensor.rank() == 0) return result;  // any strides will do

  // Walk from the innermost dimension: input dimensions contiguous with each other form a chunk, and the output
  // dimensions must divide each chunk exactly (torch's computeStride).
  int out = shape.rank() - 1;
  std::int64_t chunk_stride = tensor.stride(tensor.rank() - 1);
  std::int64_t chunk_count = 1;  // elements of the chunk so far
  std::int64_t out_count = 1;    // elements of the output dimensions placed in it
  for (int dim = tensor.rank() - 1; dim >= 0; --dim) {
    chunk_count *= tensor.size(dim);
    const bool chunk_ends =
        dim == 0 || (tensor.size(dim - 1) != 1 && tensor.stride(dim - 1) != chunk_count * chunk_stride);
    if (!chunk_ends) continue;
    while (out >= 0 && (out_count < chunk_count || shape[out] == 1)) {
      result.desc.strides[index(out)] = out_count * chunk_stride;
      out_count *= shape[out];
      --out;
    }
    if (out_count != chunk_count) return std::nullopt;
    if (dim > 0) {
      chunk_stride = tensor.stride(dim - 1);
      chunk_count = 1;
      out_count = 1;
    }
  }
  if (out != -1) return std::nullopt;
  return result;
}

Tensor as_stored(const Tensor& tensor) {
  Tensor result = tensor;
  if (!tensor.stored) return result;
  GRAFT_ASSERT(tensor.stored->is_plain() && tensor.offset == 0);
  result.desc.dtype = tensor.stored->dtype;
  result.stored.reset();
  return result;
}

Tensor permuted(const Tensor& tensor, std::span<const int> dims) {
  GRAFT_ASSERT(static_cast<int>(dims.size()) == tensor.rank());
  Tensor result = tensor;
  std::array<bool, kMaxRank> seen{};
  for (int d = 0; d < tensor.rank(); ++d) {
    const int from = dims[index(d)];
    GRAFT_ASSERT(from >= 0 && from < tensor.rank() && !seen[index(from)]);
    seen[index(from)] = true;
    result.desc.shape[d] = tensor.size(from);
    result.desc.strides[index(d)] = tensor.stride(from);
  }
  return result;
}

Tensor expanded(const Tensor& tensor, const Shape& shape) {
  const int lead = shape.rank() - tensor.rank();
  GRAFT_CHECK(InvalidArgument, lead >= 0, "a tensor of size ", tensor.shape().str(), " cannot be expanded to ",
              shape.str(), ", which has fewer dimensions");
  Tensor result = tensor;
  result.desc.shape = shape;
  result.desc.strides = {};
  for (int d = lead; d < shape.rank(); ++d) {
    const int from = d - lead;
    if (shape[d] == tensor.size(from)) {
      result.desc.strides[index(d)] = tensor.stride(from);
      continue;
    }
    GRAFT_CHECK(InvalidArgument, tensor.size(from) == 1, "a tensor of size ", tensor.shape().str(),
                " cannot be expanded to ", shape.str(), ": dimension ", d, " has size ", tensor.size(from));
  }
  return result;
}

Tensor sliced(const Tensor& tensor, int dim, std::int64_t start, std::int64_t length, std::int64_t step) {
  GRAFT_ASSERT(dim >= 0 && dim < tensor.rank() && length >= 0);
  Tensor result = tensor;
  result.desc.shape[dim] = length;
  if (length > 1) result.desc.strides[index(dim)] = tensor.stride(dim) * step;  // one element: any stride
  if (length == 0) return result;
  const std::int64_t last = start + (length - 1) * step;
  GRAFT_ASSERT(start >= 0 && start < tensor.size(dim) && last >= 0 && last < tensor.size(dim));
  // An empty tensor may have an empty buffer: the offset stays inside.
  if (tensor.numel() > 0) result.offset += start * tensor.stride(dim) * element_size(tensor);
  return result;
}

void merge_dims(Tensor& a, Tensor& b) {
  GRAFT_ASSERT(a.shape() == b.shape());
  Tensor x = a, y = b;
  Shape shape;
  std::array<std::int64_t, kMaxRank> x_strides{}, y_strides{};
  for (int d = 0; d < a.rank(); ++d) {
    const std::int64_t size = a.size(d);
    if (size == 1) continue;
    const int last = shape.rank() - 1;
    // The dimension before continues this one, in both tensors.
    if (last >= 0 && x_strides[index(last)] == a.stride(d) * size && y_strides[index(last)] == b.stride(d) * size) {
      shape[last] *= size;
      x_strides[index(last)] = a.stride(d);
      y_strides[index(last)] = b.stride(d);
      continue;
    }
    x_strides[index(shape.rank())] = a.stride(d);
    y_strides[index(shape.rank())] = b.stride(d);
    shape.push_back(size);
  }
  if (shape.rank() == 0) {
    shape.push_back(1);
    x_strides[0] = y_strides[0] = 1;
  }
  x.desc.shape = y.desc.shape = shape;
  x.desc.strides = {};
  y.desc.strides = {};
  for (int d = 0; d < shape.rank(); ++d) {
    x.desc.strides[index(d)] = x_strides[index(d)];
    y.desc.strides[index(d)] = y_strides[index(d)];
  }
  a = x;
  b = y;
}

Tensor collapsed(const Tensor& tensor, int keep_last) {
  GRAFT_ASSERT(keep_last >= 0 && keep_last <= tensor.rank() && tensor.desc.contiguous());
  const int lead = tensor.rank() - keep_last;
  std::int64_t rows = 1;
  for (int d = 0; d < lead; ++d) rows *= tensor.size(d);
  Shape shape{rows};
  for (int d = lead; d < tensor.rank(); ++d) shape.push_back(tensor.size(d));
  Tensor result = tensor;
  result.desc = TensorDesc(tensor.dtype(), shape);
  return result;
}

}  // namespace graft
