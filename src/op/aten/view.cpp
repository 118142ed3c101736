// Operators that view the same elements differently: no launch, unless a strided tensor must be reshaped.
#include "op/aten/view.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/dims.h"

namespace graft {
namespace {

using ViewFn = Tensor (*)(const Call&);
using ListFn = std::vector<Tensor> (*)(const Call&);

template <ViewFn view>
std::vector<Shape> view_shape(const Call& call) {
  return {view(call).shape()};
}

template <ViewFn view>
std::vector<Tensor> view_lower(const Call& call, std::span<const Shape>, Lowering&) {
  return {view(call)};
}

// Before that many views are made: a damaged program asks for any number.
void check_count(const Call& call, std::int64_t count) {
  GRAFT_CHECK(InvalidArgument, count == static_cast<std::int64_t>(call.output_count()), "gives ", count,
              " tensors here, but the program takes ", call.output_count());
}

template <ListFn views>
std::vector<Shape> list_shape(const Call& call) {
  std::vector<Shape> shapes;
  for (const Tensor& tensor : views(call)) shapes.push_back(tensor.shape());
  return shapes;
}

template <ListFn views>
std::vector<Tensor> list_lower(const Call& call, std::span<const Shape>, Lowering&) {
  return views(call);
}

template <ViewFn view>
constexpr Operator view_operator(std::string_view target, Refusal (*refuse)(const NodeView&) = refuse_rank) {
  return {target, refuse, view_shape<view>, view_lower<view>, false, true};
}

template <ListFn views>
constexpr Operator list_operator(std::string_view target) {
  return {target, refuse_rank, list_shape<views>, list_lower<views>, false, true};
}

int dim_of(const Call& call, std::string_view name, int rank) { return wrap_dim(call.integer(name), rank); }

// --- reshapes ---

// Replaces the size -1.
Shape inferred(std::vector<std::int64_t> sizes, std::int64_t count) {
  std::int64_t known = 1;
  std::int64_t* unknown = nullptr;
  for (std::int64_t& size : sizes) {
    if (size == -1) {
      GRAFT_CHECK(InvalidArgument, unknown == nullptr, "only one size can be inferred");
      unknown = &size;
      continue;
    }
    GRAFT_CHECK(InvalidArgument, size >= 0, "size ", size, " is negative");
    GRAFT_CHECK(InvalidArgument, !__builtin_mul_overflow(known, size, &known), "the number of elements does not fit ",
                "64 bits");
  }
  if (unknown != nullptr) {
    GRAFT_CHECK(InvalidArgument, known != 0, "a size cannot be inferred: the other sizes multiply to 0");
    GRAFT_CHECK(InvalidArgument, count % known == 0, count, " elements cannot be divided into groups of ", known);
    *unknown = count / known;
    known *= *unknown;
  }
  const Shape shape(sizes);
  GRAFT_CHECK(InvalidArgument, known == count, "shape ", shape.str(), " is invalid for ", count, " elements");
  return shape;
}

Shape flatten_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const int first = dim_of(call, "start_dim", self.rank());
  const int last = dim_of(call, "end_dim", self.rank());
  GRAFT_CHECK(InvalidArgument, first <= last, "start_dim ", first, " is after end_dim ", last);
  if (self.rank() == 0) return {1};
  Shape shape;
  for (int d = 0; d < first; ++d) shape.push_back(self.size(d));
  std::int64_t merged = 1;
  for (int d = first; d <= last; ++d) merged *= self.size(d);
  shape.push_back(merged);
  for (int d = last + 1; d < self.rank(); ++d) shape.push_back(self.size(d));
  return shape;
}

Shape unflatten_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const int dim = dim_of(call, "dim", self.rank());
  const Shape parts = inferred(call.integers("sizes"), self.size(dim));
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < self.rank(); ++d) {
    if (d != dim) {
      sizes.push_back(self.size(d));
    } else {
      sizes.insert(sizes.end(), parts.sizes().begin(), parts.sizes().end());
    }
  }
  return Shape(sizes);
}

Shape size_shape(const Call& call) { return inferred(call.integers("size"), call.tensor("self").numel()); }
Shape shape_shape(const Call& call) { return inferred(call.integers("shape"), call.tensor("self").numel()); }
Shape ravel_shape(const Call& call) { return {call.tensor("self").numel()}; }

Shape other_shape(const Call& call) {
  const Shape shape = call.tensor("other").shape();
  GRAFT_CHECK(InvalidArgument, shape.numel() == call.tensor("self").numel(), "shape ", shape.str(),
              " is invalid for a tensor of size ", call.tensor("self").shape().str());
  return shape;
}

template <Shape (*rule)(const Call&)>
std::vector<Shape> reshape_shape(const Call& call) {
  return {rule(call)};
}

std::vector<Tensor> reshape_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& self = call.tensor("self");
  if (const std::optional<Tensor> view = try_reshape(self, shapes[0])) return {*view};
  // In a functional program a view and a copy are indistinguishable.
  return {*try_reshape(lowering.contiguous(self), shapes[0])};
}

template <Shape (*rule)(const Call&)>
constexpr Operator reshape_operator(std::string_view target) {
  return {target, refuse_rank, reshape_shape<rule>, reshape_lower, false, true};
}

// --- permutations ---

Tensor permute(const Call& call) {
  const Tensor& self = call.tensor("self");
  std::vector<int> dims;
  DimSet seen;
  for (std::int64_t dim : call.integers("dims")) {
    const int d = wrap_dim(dim, self.rank());
    GRAFT_CHECK(InvalidArgument, !seen.test(static_cast<std::size_t>(d)), "dimension ", d, " appears twice");
    seen.set(static_cast<std::size_t>(d));
    dims.push_back(d);
  }
  GRAFT_CHECK(InvalidArgument, static_cast<int>(dims.size()) == self.rank(), "got ", dims.size(),
              " dimensions for a tensor of rank ", self.rank());
  return permuted(self, dims);
}

Tensor swapped(const Tensor& self, int a, int b) {
  if (self.rank() == 0) return self;
  std::array<int, kMaxRank> dims{};
  for (int d = 0; d < self.rank(); ++d) dims[static_cast<std::size_t>(d)] = d;
  std::swap(dims[static_cast<std::size_t>(a)], dims[static_cast<std::size_t>(b)]);
  return permuted(self, std::span(dims.data(), static_cast<std::size_t>(self.rank())));
}

template <char first, char second, bool axis>
Tensor transpose(const Call& call) {
  const Tensor& self = call.tensor("self");
  const std::string stem = axis ? "axis" : "dim";
  return swapped(self, dim_of(call, stem + first, self.rank()), dim_of(call, stem + second, self.rank()));
}

Tensor transpose_matrix(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() <= 2, "takes a tensor of rank 2 at most, got rank ", self.rank());
  return self.rank() < 2 ? self : swapped(self, 0, 1);
}

Tensor movedim(const Call& call) {
  const Tensor& self = call.tensor("self");
  const std::vector<std::int64_t> sources = call.integers("source"), targets = call.integers("destination");
  GRAFT_CHECK(InvalidArgument, sources.size() == targets.size(), "got ", sources.size(), " source dimensions and ",
              targets.size(), " destinations");
  std::vector<int> dims(static_cast<std::size_t>(self.rank()), -1);
  DimSet used;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto from = static_cast<std::size_t>(wrap_dim(sources[i], self.rank()));
    const auto to = static_cast<std::size_t>(wrap_dim(targets[i], self.rank()));
    if (self.rank() == 0) continue;
    GRAFT_CHECK(InvalidArgument, !used.test(from) && dims[to] == -1, "a dimension appears twice");
    used.set(from);
    dims[to] = static_cast<int>(from);
  }
  std::size_t next = 0;
  for (int& dim : dims) {
    if (dim != -1) continue;
    while (used.test(next)) ++next;
    dim = static_cast<int>(next++);
  }
  return permuted(self, dims);
}

// --- sizes of 1 ---

Tensor unsqueeze(const Call& call) {
  const Tensor& self = call.tensor("self");
  const int dim = wrap_dim(call.integer("dim"), self.rank() + 1);
  return *try_reshape(self, with_dim(self.shape(), dim, 1));
}

Tensor squeezed(const Tensor& self, const DimSet& dims) {
  Tensor result = self;
  result.desc.shape = {};
  result.desc.strides = {};
  for (int d = 0; d < self.rank(); ++d) {
    if (self.size(d) == 1 && dims.test(static_cast<std::size_t>(d))) continue;
    result.desc.strides[static_cast<std::size_t>(result.rank())] = self.stride(d);
    result.desc.shape.push_back(self.size(d));
  }
  return result;
}

Tensor squeeze_all(const Call& call) { return squeezed(call.tensor("self"), DimSet().set()); }

Tensor squeeze(const Call& call) {
  const Tensor& self = call.tensor("self");
  return squeezed(self, dims_of(call, "dim", self.rank(), false));
}

// Ranks are fixed by the program, so whether a squeezed dimension has size 1 must not depend on the input.
Refusal refuse_squeeze(const NodeView& node) {
  const int lost = node.tensor("self").rank() - node.output().rank();
  if (lost < 0) return "the output has more dimensions than the input";
  return refuse_rank(node);
}

// --- expansions ---

Shape expanded_shape(const Tensor& self, const std::vector<std::int64_t>& sizes) {
  Shape shape;
  const int lead = static_cast<int>(sizes.size()) - self.rank();
  GRAFT_CHECK(InvalidArgument, lead >= 0, "got ", sizes.size(), " sizes for a tensor of rank ", self.rank());
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    const std::int64_t size = sizes[static_cast<std::size_t>(d)];
    GRAFT_CHECK(InvalidArgument, size != -1 || d >= lead, "size -1 at dimension ", d, ", which the tensor lacks");
    shape.push_back(size == -1 ? self.size(d - lead) : size);
  }
  return shape;
}

Tensor expand(const Call& call) {
  const Tensor& self = call.tensor("self");
  return expanded(self, expanded_shape(self, call.integers("size")));
}

Tensor expand_as(const Call& call) { return expanded(call.tensor("self"), call.tensor("other").shape()); }

// --- parts ---

Tensor select(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot select from a 0-d tensor");
  const int dim = dim_of(call, "dim", self.rank());
  return selected(self, dim, wrap_index(call.integer("index"), self.size(dim), dim));
}

Tensor slice(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot slice a 0-d tensor");
  const int dim = dim_of(call, "dim", self.rank());
  const SliceRange range = slice_range(call, self.size(dim));
  return sliced(self, dim, range.start, range.length, range.step);
}

Tensor narrow(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot narrow a 0-d tensor");
  const int dim = dim_of(call, "dim", self.rank());
  const std::int64_t size = self.size(dim), length = call.integer("length");
  std::int64_t start = call.integer("start");
  GRAFT_CHECK(InvalidArgument, start >= -size && start <= size, "start ", start, " is out of range for dimension ", dim,
              " of size ", size);
  if (start < 0) start += size;
  GRAFT_CHECK(InvalidArgument, length >= 0 && length <= size - start, "start ", start, " and length ", length,
              " exceed dimension ", dim, " of size ", size);
  return sliced(self, dim, start, length);
}

std::vector<Tensor> chunks_of(const Call& call, int dim, std::int64_t size) {
  const Tensor& self = call.tensor("self");
  const std::int64_t whole = self.size(dim), count = std::max<std::int64_t>(whole / size + (whole % size != 0), 1);
  check_count(call, count);
  std::vector<Tensor> result;
  for (std::int64_t i = 0; i < count; ++i)  // a dimension of size 0 gives one empty chunk
    result.push_back(sliced(self, dim, i * size, std::min(size, whole - i * size)));
  return result;
}

std::vector<Tensor> split(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot split a 0-d tensor");
  const int dim = dim_of(call, "dim", self.rank());
  const std::int64_t size = call.integer("split_size");
  GRAFT_CHECK(InvalidArgument, size > 0 || (size == 0 && self.size(dim) == 0), "split_size must be positive, got ",
              size);
  return chunks_of(call, dim, std::max<std::int64_t>(size, 1));
}

std::vector<Tensor> split_with_sizes(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot split a 0-d tensor");
  const int dim = dim_of(call, "dim", self.rank());
  std::vector<Tensor> result;
  std::int64_t start = 0;
  for (std::int64_t length : call.integers(call.has("split_sizes") ? "split_sizes" : "split_size")) {
    GRAFT_CHECK(InvalidArgument, length >= 0 && length <= self.size(dim) - start, "sizes do not add up to ",
                self.size(dim), ", the size of dimension ", dim);
    result.push_back(sliced(self, dim, start, length));
    start += length;
  }
  GRAFT_CHECK(InvalidArgument, start == self.size(dim), "sizes add up to ", start, ", but dimension ", dim,
              " has size ", self.size(dim));
  check_count(call, static_cast<std::int64_t>(result.size()));
  return result;
}

std::vector<Tensor> chunk(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot chunk a 0-d tensor");
  const int dim = dim_of(call, "dim", self.rank());
  const std::int64_t chunks = call.integer("chunks");
  GRAFT_CHECK(InvalidArgument, chunks > 0, "chunks must be positive, got ", chunks);
  const std::int64_t size = self.size(dim) / chunks + (self.size(dim) % chunks != 0);
  if (size > 0) return chunks_of(call, dim, size);
  check_count(call, chunks);
  return std::vector<Tensor>(static_cast<std::size_t>(chunks), self);  // PyTorch keeps the count for size 0
}

std::vector<Tensor> unbind(const Call& call) {
  const Tensor& self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot unbind a 0-d tensor");
  const int dim = dim_of(call, "dim", self.rank());
  check_count(call, self.size(dim));
  std::vector<Tensor> result;
  for (std::int64_t i = 0; i < self.size(dim); ++i) result.push_back(selected(self, dim, i));
  return result;
}

Tensor diagonal(const Call& call) {
  const Tensor& self = call.tensor("self");
  return diagonal_of(self, call.integer("offset"), dim_of(call, "dim1", self.rank()),
                     dim_of(call, "dim2", self.rank()));
}

Tensor unfold(const Call& call) {
  const Tensor& self = call.tensor("self");
  const int dim = dim_of(call, "dimension", self.rank());
  const std::int64_t size = call.integer("size"), step = call.integer("step");
  const std::int64_t whole = self.rank() > 0 ? self.size(dim) : 1;
  GRAFT_CHECK(InvalidArgument, size >= 0 && size <= whole, "size ", size, " exceeds dimension ", dim, " of size ",
              whole);
  GRAFT_CHECK(InvalidArgument, step > 0, "step must be positive, got ", step);
  Tensor result = self;
  if (self.rank() > 0) {
    result.desc.shape[dim] = (whole - size) / step + 1;
    if (result.size(dim) > 1) result.desc.strides[static_cast<std::size_t>(dim)] = self.stride(dim) * step;
  }
  result.desc.shape.push_back(size);  // throws beyond the largest rank
  result.desc.strides[static_cast<std::size_t>(self.rank())] = self.rank() > 0 ? self.stride(dim) : 1;
  return result;
}

Tensor flip(const Call& call) {
  Tensor result = call.tensor("self");
  const DimSet dims = dims_of(call, "dims", result.rank(), false);
  for (int d = 0; d < result.rank(); ++d)
    if (dims.test(static_cast<std::size_t>(d)) && result.size(d) > 0)
      result = sliced(result, d, result.size(d) - 1, result.size(d), -1);
  return result;
}

Tensor as_strided(const Call& call) {
  const Tensor& self = call.tensor("self");
  // Only a tensor that owns its memory has a known layout: PyTorch's storage then equals graft's.
  GRAFT_CHECK(Unsupported, self.desc.contiguous() && self.offset == 0,
              "aten.as_strided.default of a tensor that is itself a view (node ", call.node().name, ")");
  Tensor result = self;
  result.desc.shape = Shape(call.integers("size"));
  result.desc.strides = {};
  const std::vector<std::int64_t> strides = call.integers("stride");
  GRAFT_CHECK(InvalidArgument, static_cast<int>(strides.size()) == result.rank(), "got ", result.rank(), " sizes and ",
              strides.size(), " strides");
  const std::int64_t start = call.has("storage_offset") ? call.integer("storage_offset") : 0;
  std::int64_t last = start;
  bool fits = start >= 0;
  for (int d = 0; d < result.rank(); ++d) {
    const std::int64_t stride = strides[static_cast<std::size_t>(d)];
    std::int64_t reach = 0;
    fits = fits && stride >= 0 &&
           !__builtin_mul_overflow(std::max<std::int64_t>(result.size(d) - 1, 0), stride, &reach) &&
           !__builtin_add_overflow(last, reach, &last);
    result.desc.strides[static_cast<std::size_t>(d)] = stride;
  }
  if (result.numel() == 0) return result;
  GRAFT_CHECK(InvalidArgument, fits && last < self.numel(), "sizes ", result.shape().str(),
              " with these strides leave the tensor's ", self.numel(), " elements");
  result.offset += start * static_cast<std::int64_t>(byte_size(self.dtype()));
  return result;
}

Tensor identity(const Call& call) { return call.tensor("self"); }

Tensor view_dtype(const Call& call) {
  Tensor result = call.tensor("self");
  result.desc.dtype = call.output_dtype();
  return result;
}

Refusal refuse_view_dtype(const NodeView& node) {
  const DType from = node.tensor("self").dtype, to = node.output().dtype;
  if (byte_size(from) != byte_size(to)) return "elements of another size";
  if (to == DType::b8 && from != DType::b8) return "bytes that need not be 0 or 1 as bool";
  return refuse_rank(node);
}

}  // namespace

Tensor selected(const Tensor& self, int dim, std::int64_t index) {
  const Tensor part = sliced(self, dim, index, 1);
  DimSet only;
  only.set(static_cast<std::size_t>(dim));
  return squeezed(part, only);
}

Tensor diagonal_of(const Tensor& self, std::int64_t offset, int dim1, int dim2) {
  GRAFT_CHECK(InvalidArgument, dim1 != dim2, "diagonal dimensions must differ, got ", dim1, " twice");
  const std::int64_t rows = self.size(dim1), columns = self.size(dim2);
  // Compared, not added, to avoid overflow of offsets.
  const std::int64_t length = offset >= 0 ? (offset >= columns ? 0 : std::min(rows, columns - offset))
                                          : (offset <= -rows ? 0 : std::min(rows + offset, columns));
  Tensor start = self;
  if (length > 0) start = offset >= 0 ? sliced(self, dim2, offset, 1) : sliced(self, dim1, -offset, 1);
  Tensor result = start;
  result.desc.shape = {};
  result.desc.strides = {};
  for (int d = 0; d < self.rank(); ++d) {
    if (d == dim1 || d == dim2) continue;
    result.desc.strides[static_cast<std::size_t>(result.rank())] = self.stride(d);
    result.desc.shape.push_back(self.size(d));
  }
  result.desc.strides[static_cast<std::size_t>(result.rank())] = self.stride(dim1) + self.stride(dim2);
  result.desc.shape.push_back(length);
  return result;
}

SliceRange slice_range(const Call& call, std::int64_t size) {
  SliceRange range;
  range.step = call.integer("step");
  GRAFT_CHECK(InvalidArgument, range.step > 0, "step must be positive, got ", range.step);
  auto bound = [&](std::string_view name, std::int64_t missing) {
    std::int64_t at = call.has(name) ? call.integer(name) : missing;
    if (at < 0) at += size;
    return std::clamp<std::int64_t>(at, 0, size);
  };
  range.start = bound("start", 0);
  const std::int64_t end = bound("end", size);
  range.length = end > range.start ? (end - range.start - 1) / range.step + 1 : 0;
  return range;
}

namespace {

// Whether it transposes a matrix, which may be a weight stored in another type.
StoredUse stored_use_of_transpose(const NodeView& node, std::string_view argument) {
  if (argument != "self" || node.tensor("self").rank() != 2) return StoredUse::none;
  const auto is = [](const ir::Arg& arg, std::int64_t dim) {
    return arg.kind == ir::Arg::Kind::integer && (arg.i == dim || arg.i == dim - 2);
  };
  if (node.target() == "aten.permute.default") {
    const std::vector<ir::Arg>& dims = node.arg("dims").items;
    return dims.size() == 2 && is(dims[0], 1) && is(dims[1], 0) ? StoredUse::transposes : StoredUse::none;
  }
  if (node.target() == "aten.transpose.int") {
    const ir::Arg &a = node.arg("dim0"), &b = node.arg("dim1");
    return (is(a, 0) && is(b, 1)) || (is(a, 1) && is(b, 0)) ? StoredUse::transposes : StoredUse::none;
  }
  return StoredUse::transposes;
}

template <Tensor (*rule)(const Call&)>
constexpr Operator transposing_operator(std::string_view target) {
  Operator result = view_operator<rule>(target);
  result.stored_use = stored_use_of_transpose;
  return result;
}

}  // namespace

std::span<const Operator> view_operators() {
  static constexpr Operator operators[] = {
      reshape_operator<size_shape>("aten.view.default"),
      view_operator<view_dtype>("aten.view.dtype", refuse_view_dtype),
      reshape_operator<shape_shape>("aten.reshape.default"),
      reshape_operator<size_shape>("aten._unsafe_view.default"),
      reshape_operator<flatten_shape>("aten.flatten.using_ints"),
      reshape_operator<unflatten_shape>("aten.unflatten.int"),
      reshape_operator<ravel_shape>("aten.ravel.default"),
      reshape_operator<other_shape>("aten.view_as.default"),
      transposing_operator<permute>("aten.permute.default"),
      transposing_operator<transpose<'0', '1', false>>("aten.transpose.int"),
      view_operator<transpose<'0', '1', false>>("aten.swapdims.default"),
      view_operator<transpose<'0', '1', true>>("aten.swapaxes.default"),
      transposing_operator<transpose_matrix>("aten.t.default"),
      view_operator<movedim>("aten.movedim.int"),
      view_operator<movedim>("aten.movedim.intlist"),
      view_operator<unsqueeze>("aten.unsqueeze.default"),
      view_operator<squeeze_all>("aten.squeeze.default", refuse_squeeze),
      view_operator<squeeze>("aten.squeeze.dim", refuse_squeeze),
      view_operator<squeeze>("aten.squeeze.dims", refuse_squeeze),
      view_operator<expand>("aten.expand.default"),
      view_operator<expand>("aten.broadcast_to.default"),
      view_operator<expand_as>("aten.expand_as.default"),
      view_operator<select>("aten.select.int"),
      view_operator<slice>("aten.slice.Tensor"),
      view_operator<narrow>("aten.narrow.default"),
      list_operator<split>("aten.split.Tensor"),
      list_operator<split>("aten.unsafe_split.Tensor"),
      list_operator<split_with_sizes>("aten.split.sizes"),
      list_operator<split_with_sizes>("aten.split_with_sizes.default"),
      list_operator<chunk>("aten.chunk.default"),
      list_operator<unbind>("aten.unbind.int"),
      view_operator<diagonal>("aten.diagonal.default"),
      view_operator<unfold>("aten.unfold.default"),
      view_operator<flip>("aten.flip.default"),
      view_operator<as_strided>("aten.as_strided.default"),
      view_operator<identity>("aten.alias.default"),
      view_operator<identity>("aten.detach.default"),
  };
  return operators;
}

}  // namespace graft
