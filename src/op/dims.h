#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "op/operator.h"

// Dimension arguments of view, reduction and indexing operators.
namespace graft {

using DimSet = std::bitset<static_cast<std::size_t>(kMaxRank)>;

// `dim` counted from the front. A 0-d tensor takes 0 and -1, as in PyTorch. Throws InvalidArgument when out of range.
int wrap_dim(std::int64_t dim, int rank);
// `index` of `size` entries counted from the front. Throws InvalidArgument naming `dim` when out of range.
std::int64_t wrap_index(std::int64_t index, std::int64_t size, int dim);

// The dimensions that a list names; all of them when the argument is None or, with `empty_is_all`, an empty list.
// Throws InvalidArgument when one is named twice.
DimSet dims_of(const Call& call, std::string_view name, int rank, bool empty_is_all = true);
// Sizes after a reduction over `dims`.
Shape reduced_shape(const Shape& shape, const DimSet& dims, bool keepdim);

// With the dimension taken out, put in, replaced.
Shape without_dim(const Shape& shape, int dim);
Shape with_dim(const Shape& shape, int dim, std::int64_t size);

// A refusal if a tensor of the node has more dimensions than kernels support.
Refusal refuse_rank(const NodeView& node);

}  // namespace graft
