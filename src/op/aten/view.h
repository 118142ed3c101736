#pragma once

#include <span>

#include "lowering/tensor.h"
#include "op/operator.h"

namespace graft {

// view, reshape, permute, transpose, squeeze, expand, slice, select, split, diagonal, unfold, flip, ...
std::span<const Operator> view_operators();

// View arithmetic shared with the scatter twins of these operators.
Tensor selected(const Tensor& self, int dim, std::int64_t index);  // without the dimension; index in [0, size)
Tensor diagonal_of(const Tensor& self, std::int64_t offset, int dim1, int dim2);

struct SliceRange {
  std::int64_t start = 0;
  std::int64_t length = 0;
  std::int64_t step = 1;
};
// The arguments start, end and step of a slice of a dimension of that size, clamped as Python does.
SliceRange slice_range(const Call& call, std::int64_t size);

}  // namespace graft
