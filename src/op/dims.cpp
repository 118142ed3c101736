#include "op/dims.h"

#include "base/check.h"

namespace graft {

int wrap_dim(std::int64_t dim, int rank) {
  const int bound = rank > 0 ? rank : 1;
  GRAFT_CHECK(InvalidArgument, dim >= -bound && dim < bound, "dimension ", dim,
              " is out of range for a tensor of rank ", rank);
  return static_cast<int>(dim < 0 ? dim + bound : dim);
}

std::int64_t wrap_index(std::int64_t index, std::int64_t size, int dim) {
  GRAFT_CHECK(InvalidArgument, index >= -size && index < size, "index ", index, " is out of range for dimension ", dim,
              " of size ", size);
  return index < 0 ? index + size : index;
}

DimSet dims_of(const Call& call, std::string_view name, int rank, bool empty_is_all) {
  DimSet set;
  std::vector<std::int64_t> dims;
  const bool given = call.has(name);
  if (given) dims = call.integers(name);
  if (!given || (empty_is_all && dims.empty())) {
    for (int d = 0; d < rank; ++d) set.set(static_cast<std::size_t>(d));
    return set;
  }
  for (std::int64_t dim : dims) {
    const auto d = static_cast<std::size_t>(wrap_dim(dim, rank));
    GRAFT_CHECK(InvalidArgument, !set.test(d), "dimension ", d, " appears more than once in the list of dimensions");
    set.set(d);
  }
  return set;
}

Shape reduced_shape(const Shape& shape, const DimSet& dims, bool keepdim) {
  Shape out;
  for (int d = 0; d < shape.rank(); ++d) {
    if (!dims.test(static_cast<std::size_t>(d))) {
      out.push_back(shape[d]);
    } else if (keepdim) {
      out.push_back(1);
    }
  }
  return out;
}

Shape without_dim(const Shape& shape, int dim) {
  Shape out;
  for (int d = 0; d < shape.rank(); ++d)
    if (d != dim) out.push_back(shape[d]);
  return out;
}

Shape with_dim(const Shape& shape, int dim, std::int64_t size) {
  Shape out;
  for (int d = 0; d <= shape.rank(); ++d) {
    if (d == dim) out.push_back(size);
    if (d < shape.rank()) out.push_back(shape[d]);
  }
  return out;
}

namespace {

void check_rank(const ir::Value& value, Refusal& refusal) {
  if (value.kind == ir::ValueKind::tensor && value.rank() > kMaxRank)
    refusal = str("a tensor has at most ", kMaxRank, " dimensions here, '", value.name, "' has ", value.rank());
}

}  // namespace

Refusal refuse_rank(const NodeView& node) {
  Refusal refusal;
  for (std::string_view name : {"self", "src", "tensors", "index", "indices", "weight", "values"}) {
    if (node.is_tensor(name)) check_rank(node.tensor(name), refusal);
    if (node.arg(name).kind != ir::Arg::Kind::list) continue;
    for (const ir::Value* value : node.tensors(name))
      if (value) check_rank(*value, refusal);
  }
  for (std::size_t i = 0; i < node.output_count(); ++i) check_rank(node.output(i), refusal);
  return refusal;
}

}  // namespace graft
