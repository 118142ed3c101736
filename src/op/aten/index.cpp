// Reads and writes at positions that index tensors name.
#include "kernel/index/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "kernel/matmul/block_rows.h"
#include "lowering/lowering.h"
#include "op/common.h"
#include "op/dims.h"
#include "op/ggml_ops.h"

namespace graft {
namespace {

std::size_t at(int dim) { return static_cast<std::size_t>(dim); }

// One iteration space: see kernel/index/index.h.
struct Positions {
  Shape shape;
  std::array<int, kMaxRank> own_dim{};  // dimension of the indexed tensor; -1: a dimension of the index tensors
  std::vector<Tensor> indices;          // each expanded to `shape`
  IndexAttrs attrs;

  void add_index(const Tensor& index, int dim) {
    attrs.dim[attrs.count] = dim;
    indices.push_back(expanded(index, shape));
    ++attrs.count;
  }

  // The window of a tensor; sets the attributes' sizes and strides to its own.
  Tensor window(const Tensor& tensor) {
    Tensor result = tensor;
    result.desc.shape = shape;
    result.desc.strides = {};
    for (int d = 0; d < shape.rank(); ++d) {
      const int own = own_dim[at(d)];
      if (own >= 0) result.desc.strides[at(d)] = tensor.stride(own);
    }
    for (int k = 0; k < attrs.count; ++k) {
      const int dim = attrs.dim[k];
      attrs.size[k] = tensor.rank() > 0 ? tensor.size(dim) : 1;
      attrs.stride[k] =
          tensor.rank() > 0 ? tensor.stride(dim) * static_cast<std::int64_t>(byte_size(tensor.dtype())) : 0;
      GRAFT_CHECK(InvalidArgument, shape.numel() == 0 || attrs.size[k] > 0, "dimension ", dim,
                  " has size 0, and no index is in range");
    }
    return result;
  }

  std::vector<Tensor> operands(const Tensor& first) const {
    std::vector<Tensor> result{first};
    result.insert(result.end(), indices.begin(), indices.end());
    return result;
  }
};

// One index tensor that names whole rows: those of [outer, N, elements], the same in all outer ones.
bool gather_rows_on_device(const Positions& positions, const Tensor& from, const Tensor& out, Lowering& lowering) {
  if (!lowering.has_device() || positions.attrs.count != 1 || from.rank() == 0 || !from.desc.contiguous()) return false;
  const int dim = positions.attrs.dim[0];
  Tensor index = positions.indices[0];
  std::int64_t row = 1, outer = 1;
  for (int d = 0; d < positions.shape.rank(); ++d) {
    const int own = positions.own_dim[at(d)];
    if (own < 0) continue;
    const bool whole = positions.shape[d] == from.size(own) && (index.size(d) == 1 || index.stride(d) == 0);
    if (!whole) return false;
    (own < dim ? outer : row) *= from.size(own);
    index.desc.shape[d] = 1;
  }
  return device::gather_rows(lowering, *try_reshape(from, Shape{outer, from.size(dim), row}), index, dim,
                             positions.attrs.wrap, out);
}

Tensor gathered(Positions& positions, const Tensor& from, Lowering& lowering) {
  const Tensor out = lowering.allocate(from.dtype(), positions.shape);
  if (out.numel() == 0 || gather_rows_on_device(positions, from, out, lowering)) return out;
  const Tensor window = positions.window(from);
  lowering.launch(kGather, positions.operands(window), {out}, positions.attrs);
  return out;
}

// `self` with the values written at the positions.
Tensor scattered(Positions& positions, const Tensor& self, const Tensor& values, ScatterMode mode, Lowering& lowering) {
  const Tensor out = lowering.writable(self);
  if (positions.shape.numel() == 0) return out;
  if (lowering.in_state(out)) {
    const Tensor kept = gathered(positions, self, lowering);
    lowering.undo(kScatter, positions.operands(kept), {positions.window(out)},
                  ScatterAttrs{positions.attrs, ScatterMode::assign});
  }
  const Tensor window = positions.window(out);
  ScatterAttrs attrs{positions.attrs, mode};
  lowering.launch(kScatter, positions.operands(expanded(lowering.cast(values, self.dtype()), positions.shape)),
                  {window}, attrs);
  return out;
}

Refusal refuse_index_dtype(const ir::Value& index) {
  if (index.dtype == DType::i64 || index.dtype == DType::i32) return {};
  if (is_mask(index.dtype)) return "a mask as index: the output's size depends on data";
  return str("indices of dtype ", name(index.dtype));
}

template <typename... Reasons>
Refusal first_of(const Reasons&... reasons) {
  Refusal result;
  ((result = result.empty() ? reasons : result), ...);
  return result;
}

// --- embedding, index_select ---

Shape embedding_shape(const Call& call) {
  const Tensor &weight = call.tensor("weight"), &indices = call.tensor("indices");
  GRAFT_CHECK(InvalidArgument, weight.rank() == 2, "weight must have rank 2, got ", weight.shape().str());
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  return shape;
}

// Rows of a weight that is stored in another type than its dtype.
Tensor stored_rows(const Tensor& weight, const Tensor& indices, const Shape& shape, Lowering& lowering) {
  const Tensor out = lowering.allocate(weight.dtype(), shape);
  BlockRowsAttrs attrs;
  attrs.type = weight.stored->block;
  attrs.panels = weight.stored->kind == Stored::Kind::panels ? 1 : 0;
  attrs.rows = weight.size(0);
  lowering.launch(kBlockRows, {lowering.bytes_of(weight), lowering.contiguous(indices)}, {out}, attrs);
  return out;
}

std::vector<Tensor> embedding_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& weight = call.tensor("weight");
  const bool blocks = weight.stored && !weight.stored->is_plain();
  if (lowering.has_device()) {
    const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
    if (device::gather_rows(lowering, blocks ? weight : as_stored(weight), call.tensor("indices"), 0, false, out))
      return {out};
  }
  if (blocks) return {stored_rows(weight, call.tensor("indices"), shapes[0], lowering)};
  Positions positions;
  positions.shape = shapes[0];
  positions.own_dim.fill(-1);
  positions.own_dim[at(positions.shape.rank() - 1)] = 1;
  const Tensor& indices = call.tensor("indices");
  positions.add_index(*try_reshape(indices, with_dim(indices.shape(), indices.rank(), 1)), 0);
  return {lowering.cast(gathered(positions, as_stored(weight), lowering), weight.dtype())};
}

Refusal refuse_embedding(const NodeView& node) {
  return first_of(refuse_index_dtype(node.tensor("indices")), refuse_rank(node));
}

Shape index_select_shape(const Call& call) {
  const Tensor &self = call.tensor("self"), &index = call.tensor("index");
  GRAFT_CHECK(InvalidArgument, index.rank() <= 1, "index must have rank 1, got ", index.shape().str());
  const int dim = wrap_dim(call.integer("dim"), self.rank());
  Shape shape = self.shape();
  if (self.rank() > 0) {
    shape[dim] = index.numel();
  } else {
    GRAFT_CHECK(InvalidArgument, index.numel() == 1, "one index selects from a 0-d tensor, got ", index.numel());
  }
  return shape;
}

std::vector<Tensor> index_select_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor &self = call.tensor("self"), &index = call.tensor("index");
  const int dim = wrap_dim(call.integer("dim"), self.rank());
  if (self.stored && !self.stored->is_plain()) return {stored_rows(self, index, shapes[0], lowering)};
  Positions positions;
  positions.shape = shapes[0];
  Shape along;
  for (int d = 0; d < self.rank(); ++d) {
    positions.own_dim[at(d)] = d == dim ? -1 : d;
    along.push_back(d == dim ? index.numel() : 1);
  }
  positions.add_index(*try_reshape(index, along), dim);
  return {lowering.cast(gathered(positions, as_stored(self), lowering), self.dtype())};
}

Refusal refuse_index(const NodeView& node) {
  return first_of(refuse_index_dtype(node.tensor("index")), refuse_rank(node));
}

// --- gather, scatter: index tensors with the rank of the tensor they index ---

// The index must fit in `tensor` in every dimension but `dim`; 0-d counts as [1].
void check_gather_index(const Tensor& index, const Tensor& tensor, std::string_view what, int dim) {
  GRAFT_CHECK(InvalidArgument, std::max(index.rank(), 1) == std::max(tensor.rank(), 1), "index has rank ", index.rank(),
              ", but ", what, " has rank ", tensor.rank());
  for (int d = 0; d < std::min(index.rank(), tensor.rank()); ++d)
    GRAFT_CHECK(InvalidArgument, d == dim || index.size(d) <= tensor.size(d), "index of size ", index.shape().str(),
                " exceeds ", what, " of size ", tensor.shape().str(), " in dimension ", d);
}

Positions positions_along(const Tensor& self, const Tensor& index, int dim) {
  Positions positions;
  positions.shape = index.shape();
  for (int d = 0; d < index.rank(); ++d) positions.own_dim[at(d)] = d == dim || self.rank() == 0 ? -1 : d;
  positions.add_index(index, dim);
  return positions;
}

Shape gather_shape(const Call& call) {
  const Tensor &self = call.tensor("self"), &index = call.tensor("index");
  const int dim = wrap_dim(call.integer("dim"), self.rank());
  if (index.numel() > 0) check_gather_index(index, self, "self", dim);
  return index.shape();
}

std::vector<Tensor> gather_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  const Tensor& self = call.tensor("self");
  Positions positions = positions_along(self, call.tensor("index"), wrap_dim(call.integer("dim"), self.rank()));
  return {gathered(positions, self, lowering)};
}

Shape scatter_shape(const Call& call) {
  const Tensor &self = call.tensor("self"), &index = call.tensor("index");
  const int dim = wrap_dim(call.integer("dim"), self.rank());
  if (index.numel() == 0) return self.shape();
  check_gather_index(index, self, "self", dim);
  if (call.is_tensor("src")) {
    const Tensor& src = call.tensor("src");
    GRAFT_CHECK(InvalidArgument, src.dtype() == self.dtype(), "src has dtype ", name(src.dtype()), ", self ",
                name(self.dtype()));
    check_gather_index(index, src, "src", -1);
  }
  return self.shape();
}

std::optional<ScatterMode> mode_named(std::string_view name) {
  if (name == "add" || name == "sum") return ScatterMode::add;
  if (name == "multiply" || name == "prod") return ScatterMode::multiply;
  if (name == "amax") return ScatterMode::amax;
  if (name == "amin") return ScatterMode::amin;
  return std::nullopt;
}

// Into `self`, which is argument "self" or has its shape.
Tensor scatter(const Call& call, const Tensor& self, ScatterMode mode, Lowering& lowering) {
  const Tensor& index = call.tensor("index");
  Positions positions = positions_along(self, index, wrap_dim(call.integer("dim"), self.rank()));
  if (!call.is_tensor("src")) {
    const Tensor value =
        call.is_tensor("value") ? call.tensor("value") : lowering.full(self.dtype(), {}, call.scalar("value"));
    return scattered(positions, self, value, mode, lowering);
  }
  Tensor src = call.tensor("src");
  if (index.numel() == 0)
    return scattered(positions, self, lowering.full(self.dtype(), {}, Scalar::of(false)), mode, lowering);
  if (src.rank() != index.rank()) {
    src = *try_reshape(src.rank() == 0 ? src : sliced(src, 0, 0, 1), index.shape());  // 0-d counts as [1]
  } else {
    for (int d = 0; d < index.rank(); ++d) src = sliced(src, d, 0, index.size(d));
  }
  return scattered(positions, self, src, mode, lowering);
}

std::vector<Tensor> scatter_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  return {scatter(call, call.tensor("self"), ScatterMode::assign, lowering)};
}

std::vector<Tensor> scatter_add_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  return {scatter(call, call.tensor("self"), ScatterMode::add, lowering)};
}

// The neutral element of the mode.
Scalar neutral(ScatterMode mode, DType dtype) {
  const bool largest = mode == ScatterMode::amin;
  if (mode == ScatterMode::add) return Scalar::of(std::int64_t{0});
  if (mode == ScatterMode::multiply) return Scalar::of(std::int64_t{1});
  if (is_float(dtype)) return Scalar::of(largest ? HUGE_VAL : -HUGE_VAL);
  if (dtype == DType::b8) return Scalar::of(largest);
  const int bits = static_cast<int>(byte_size(dtype)) * 8;
  if (dtype == DType::u8) return Scalar::of(std::int64_t{largest ? 255 : 0});
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() >> (64 - bits);
  return Scalar::of(largest ? most : -most - 1);
}

// The sums divided by their numbers of elements.
Tensor divided(const Call& call, const Tensor& sums, bool with_self, Lowering& lowering) {
  const DType dtype = sums.dtype();
  const auto number = [](int v) { return Scalar::of(std::int64_t{v}); };
  Positions positions = positions_along(sums, call.tensor("index"), wrap_dim(call.integer("dim"), sums.rank()));
  const Tensor ones = lowering.full(dtype, {}, number(1));
  const Tensor counts = scattered(positions, lowering.full(dtype, sums.shape(), number(with_self ? 1 : 0)), ones,
                                  ScatterMode::add, lowering);
  const auto run = [&](simd::ElementwiseOp op, DType output, std::vector<Binding> operands) {
    Elementwise what;
    what.op = op;
    what.compute = dtype;
    what.output = output;
    return emit(lowering, what, operands, sums.shape());
  };
  const Tensor none = run(simd::ElementwiseOp::eq, DType::b8, {{counts, {}}, {{}, number(0)}});
  const Tensor divisors = run(simd::ElementwiseOp::where, dtype, {{none, {}}, {{}, number(1)}, {counts, {}}});
  return run(is_float(dtype) ? simd::ElementwiseOp::div : simd::ElementwiseOp::div_floor, dtype,
             {{sums, {}}, {divisors, {}}});
}

std::vector<Tensor> scatter_reduce_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  const bool mean = call.text("reduce") == "mean",
             with_self = !call.has("include_self") || call.boolean("include_self");
  const ScatterMode mode = mean ? ScatterMode::add : *mode_named(call.text("reduce"));
  Tensor self = call.tensor("self");
  if (!with_self) {
    Positions positions = positions_along(self, call.tensor("index"), wrap_dim(call.integer("dim"), self.rank()));
    self = scattered(positions, self, lowering.full(self.dtype(), {}, neutral(mode, self.dtype())), ScatterMode::assign,
                     lowering);
  }
  const Tensor reduced = scatter(call, self, mode, lowering);
  return {mean ? divided(call, reduced, with_self, lowering) : reduced};
}

Refusal refuse_scatter_reduce(const NodeView& node) {
  const std::string_view reduce = node.arg("reduce").s;
  const bool mean = node.target() == "aten.scatter_reduce.two" && reduce == "mean";
  if (!mode_named(reduce) && !mean) return str("reduce='", reduce, "'");
  if (mean && node.tensor("self").dtype == DType::b8) return "reduce='mean' of bool";
  if (node.has("include_self") && !node.constant("include_self")) return "include_self is not a constant";
  return refuse_index(node);
}

// --- index, index_put: tensors for some dimensions, broadcast against each other ---

Positions index_positions(const Tensor& self, const std::vector<std::optional<Tensor>>& given) {
  GRAFT_CHECK(InvalidArgument, static_cast<int>(given.size()) <= self.rank(), "got ", given.size(),
              " indices for a tensor of rank ", self.rank());
  // The broadcast shape of all index tensors.
  Shape common;
  int count = 0, first = -1, last = -1;
  for (int d = 0; d < static_cast<int>(given.size()); ++d) {
    if (!given[at(d)]) continue;
    if (count++ == 0) first = d;
    last = d;
    common = broadcast_shapes(common, given[at(d)]->shape());
  }
  GRAFT_CHECK(InvalidArgument, count > 0, "needs at least one index tensor");
  // Adjacent index tensors keep their position; otherwise their common shape comes first.
  const int position = last - first + 1 == count ? first : 0;

  Positions positions;
  positions.attrs.wrap = true;
  positions.own_dim.fill(-1);
  std::vector<int> free;
  for (int d = 0; d < self.rank(); ++d)
    if (d >= static_cast<int>(given.size()) || !given[at(d)]) free.push_back(d);
  const int rank = static_cast<int>(free.size()) + common.rank();
  for (int d = 0; d < rank; ++d) {
    if (d >= position && d < position + common.rank()) {
      positions.shape.push_back(common[d - position]);
    } else {
      const int own = free[at(d < position ? d : d - common.rank())];
      positions.shape.push_back(self.size(own));
      positions.own_dim[at(d)] = own;
    }
  }
  for (int d = 0; d < static_cast<int>(given.size()); ++d) {
    if (!given[at(d)]) continue;
    // Appends a size of 1 for each free dimension that follows, to align the index with its part of the space.
    Tensor index = expanded(*given[at(d)], common);
    for (int k = position + common.rank(); k < rank; ++k)
      index = *try_reshape(index, with_dim(index.shape(), index.rank(), 1));
    positions.add_index(index, d);
  }
  return positions;
}

std::vector<Shape> index_shape(const Call& call) {
  return {index_positions(call.tensor("self"), call.optional_tensors("indices")).shape};
}

std::vector<Tensor> index_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  Positions positions = index_positions(call.tensor("self"), call.optional_tensors("indices"));
  return {gathered(positions, call.tensor("self"), lowering)};
}

// self[mask] = values: the mask is the only index and covers the first dimensions of self.
bool by_mask(const Call& call) {
  const std::vector<std::optional<Tensor>> indices = call.optional_tensors("indices");
  return !indices.empty() && indices[0] && is_masked_put(indices.size(), indices[0]->dtype());
}

// The mask broadcast over self; throws unless it covers whole leading dimensions.
Tensor whole_mask(const Tensor& self, const Tensor& mask) {
  Shape shape = mask.shape();
  for (int d = 0; d < mask.rank(); ++d)
    GRAFT_CHECK(InvalidArgument, d < self.rank() && mask.size(d) == self.size(d), "the shape of the mask ",
                mask.shape().str(), " at index ", d, " does not match the shape of the indexed tensor ",
                self.shape().str());
  for (int d = mask.rank(); d < self.rank(); ++d) shape.push_back(1);
  return *try_reshape(mask, shape);
}

// Whether every position that the mask selects gets the same values, however many there are.
bool same_for_all(const Tensor& self, const Tensor& mask, const Tensor& values) {
  const int rest = self.rank() - mask.rank();
  return values.rank() <= rest || (values.rank() == rest + 1 && values.size(0) == 1);
}

std::vector<Shape> masked_put_shape(const Call& call) {
  const Tensor &self = call.tensor("self"), &values = call.tensor("values");
  const Tensor mask = *call.optional_tensors("indices")[0];
  whole_mask(self, mask);
  GRAFT_CHECK(InvalidArgument, values.dtype() == self.dtype(), "values have dtype ", name(values.dtype()), ", self ",
              name(self.dtype()));
  Shape wanted;
  if (!same_for_all(self, mask, values))
    wanted.push_back(values.size(0));
  else if (values.rank() > self.rank() - mask.rank())
    wanted.push_back(1);
  for (int d = mask.rank(); d < self.rank(); ++d) wanted.push_back(self.size(d));
  expanded(values, wanted);  // throws if the values do not fit
  return {self.shape()};
}

std::vector<Tensor> masked_put_lower(const Call& call, Lowering& lowering) {
  const Tensor& self = call.tensor("self");
  const Tensor given = *call.optional_tensors("indices")[0], mask = whole_mask(self, given);
  Tensor values = call.tensor("values");
  if (self.numel() == 0) return {self};
  if (!same_for_all(self, given, values)) {
    Shape wanted{values.size(0)};
    for (int d = given.rank(); d < self.rank(); ++d) wanted.push_back(self.size(d));
    const Tensor out = lowering.allocate(self.dtype(), self.shape());
    lowering.launch(kMaskedScatter,
                    {lowering.contiguous(self), lowering.contiguous(expanded(mask, self.shape())),
                     lowering.contiguous(expanded(values, wanted))},
                    {out}, MaskedScatterAttrs{true}, masked_scatter_scratch_bytes(lowering.max_tasks()));
    return {out};
  }
  if (values.rank() > self.rank() - given.rank()) values = sliced(values, 0, 0, 1);
  if (values.rank() > self.rank() - given.rank()) values = *try_reshape(values, without_dim(values.shape(), 0));
  Elementwise where;
  where.op = simd::ElementwiseOp::where;
  where.compute = where.output = self.dtype();
  return {emit(lowering, where, std::vector<Binding>{{mask, {}}, {values, {}}, {self, {}}}, self.shape())};
}

std::vector<Shape> index_put_shape(const Call& call) {
  if (by_mask(call)) return masked_put_shape(call);
  const Tensor& self = call.tensor("self");
  const Positions positions = index_positions(self, call.optional_tensors("indices"));
  const Tensor& values = call.tensor("values");
  GRAFT_CHECK(InvalidArgument, values.dtype() == self.dtype(), "values have dtype ", name(values.dtype()), ", self ",
              name(self.dtype()));
  expanded(values, positions.shape);  // throws if the values do not fit
  return {self.shape()};
}

std::vector<Tensor> index_put_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  if (by_mask(call)) return masked_put_lower(call, lowering);
  const Tensor& self = call.tensor("self");
  std::vector<std::optional<Tensor>> indices = call.optional_tensors("indices");
  Positions positions = index_positions(self, indices);
  const ScatterMode mode = call.boolean("accumulate") ? ScatterMode::add : ScatterMode::assign;
  return {scattered(positions, self, call.tensor("values"), mode, lowering)};
}

Refusal refuse_index_list(const NodeView& node) {
  int count = 0, rank = 0;
  for (const ir::Value* index : node.tensors("indices")) {
    if (!index) continue;
    // A mask means its true positions: src/pass/graph/masks.cpp inserts these.
    const bool mask = is_mask(index->dtype);
    count += mask ? index->rank() : 1;
    rank = std::max(rank, mask ? 1 : index->rank());
    if (mask && index->rank() == 0) return "a mask without dimensions";
    if (mask) continue;
    if (Refusal reason = refuse_index_dtype(*index); !reason.empty()) return reason;
  }
  if (count == 0) return "no index tensor";
  if (count > kMaxIndexTensors) return str("more than ", kMaxIndexTensors, " index tensors");
  // The rank of the space does not follow from index_put's output.
  if (node.tensor("self").rank() - count + rank > kMaxRank) return str("more than ", kMaxRank, " dimensions");
  return refuse_rank(node);
}

Refusal refuse_index_put(const NodeView& node) {
  const std::vector<const ir::Value*> indices = node.tensors("indices");
  if (!indices.empty() && indices[0] && is_masked_put(indices.size(), indices[0]->dtype)) {
    if (node.constant("accumulate") != 0) return "accumulate=True with a mask";
    if (indices[0]->rank() == 0) return "a mask without dimensions";
    return first_of(refuse_rank_of(*indices[0]), refuse_rank(node));
  }
  return refuse_index_list(node);
}

// --- masked_scatter ---

Refusal refuse_masked_scatter(const NodeView& node) {
  if (node.tensor("mask").dtype != DType::b8) return str("mask is ", name(node.tensor("mask").dtype));
  if (node.tensor("source").dtype != node.tensor("self").dtype)
    return str("source is ", name(node.tensor("source").dtype), ", self ", name(node.tensor("self").dtype));
  return first_of(refuse_rank_of(node.tensor("mask")), refuse_rank_of(node.tensor("source")), refuse_rank(node));
}

Shape masked_scatter_shape(const Call& call) {
  return broadcast_shapes(call.tensor("self").shape(), call.tensor("mask").shape());
}

std::vector<Tensor> masked_scatter_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.tensor("self").dtype(), shapes[0]);
  if (out.numel() == 0) return {out};
  const auto whole = [&](std::string_view name) { return lowering.contiguous(expanded(call.tensor(name), shapes[0])); };
  lowering.launch(kMaskedScatter, {whole("self"), whole("mask"), lowering.contiguous(call.tensor("source"))}, {out},
                  MaskedScatterAttrs{}, masked_scatter_scratch_bytes(lowering.max_tasks()));
  return {out};
}

template <Shape (*rule)(const Call&)>
std::vector<Shape> one_shape(const Call& call) {
  return {rule(call)};
}

StoredUse stored_use_of_embedding(const NodeView&, std::string_view argument) {
  return argument == "weight" ? StoredUse::rows : StoredUse::none;
}

StoredUse stored_use_of_index_select(const NodeView& node, std::string_view argument) {
  const std::optional<std::int64_t> dim = node.constant("dim");
  return argument == "self" && (dim == 0 || dim == -2) ? StoredUse::rows : StoredUse::none;
}

}  // namespace

std::span<const Operator> index_operators() {
  static constexpr Operator operators[] = {
      {"aten.embedding.default", refuse_embedding, one_shape<embedding_shape>, embedding_lower, false, false, false,
       stored_use_of_embedding},
      {"aten.index_select.default", refuse_index, one_shape<index_select_shape>, index_select_lower, false, false,
       false, stored_use_of_index_select},
      {"aten.gather.default", refuse_index, one_shape<gather_shape>, gather_lower, false},
      {"aten.scatter.src", refuse_index, one_shape<scatter_shape>, scatter_lower, false, false, true},
      {"aten.scatter.value", refuse_index, one_shape<scatter_shape>, scatter_lower, false, false, true},
      {"aten.scatter.reduce", refuse_scatter_reduce, one_shape<scatter_shape>, scatter_reduce_lower, false, false,
       true},
      {"aten.scatter.value_reduce", refuse_scatter_reduce, one_shape<scatter_shape>, scatter_reduce_lower, false, false,
       true},
      {"aten.scatter_add.default", refuse_index, one_shape<scatter_shape>, scatter_add_lower, false, false, true},
      {"aten.scatter_reduce.two", refuse_scatter_reduce, one_shape<scatter_shape>, scatter_reduce_lower, false, false,
       true},
      {"aten.masked_scatter.default", refuse_masked_scatter, one_shape<masked_scatter_shape>, masked_scatter_lower},
      {"aten.index.Tensor", refuse_index_list, index_shape, index_lower, false},
      {"aten.index_put.default", refuse_index_put, index_put_shape, index_put_lower, false, false, true},
  };
  return operators;
}

}  // namespace graft
