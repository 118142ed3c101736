#include "op/host.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/number_at.h"
#include "op/common.h"

namespace graft {
namespace {

using Int = std::int64_t;

std::size_t at(Int index) { return static_cast<std::size_t>(index); }

// An element as a Python number.
Scalar element(const TensorView& tensor, Int index) {
  const std::byte* from = static_cast<const std::byte*>(tensor.data) + at(index) * byte_size(tensor.dtype);
  if (tensor.dtype == DType::i64) return Scalar::of(load_as<Int>(from));
  const double value = number_at(from, tensor.dtype);  // exact for all others
  if (tensor.dtype == DType::b8) return Scalar::of(value != 0);
  return is_float(tensor.dtype) ? Scalar::of(value) : Scalar::of(static_cast<Int>(value));
}

bool is_true(const TensorView& tensor, Int index) {
  const Scalar s = element(tensor, index);
  return s.is_real() ? s.f != 0 : s.i != 0;
}

// Numbers in ascending order, NaN last.
bool less(const Scalar& a, const Scalar& b) {
  if (!a.is_real()) return a.i < b.i;
  return a.f < b.f || (b.f != b.f && a.f == a.f);
}

// NaN equals nothing, as in torch.unique.
bool same(const Scalar& a, const Scalar& b) { return a.is_real() ? a.f == b.f : a.i == b.i; }

void nonzero(HostCall& call) {
  const TensorView self = call.tensor("self");
  const int rank = self.shape.rank();
  const Int count = self.shape.numel();
  Int found = 0;
  for (Int i = 0; i < count; ++i) found += is_true(self, i);
  std::byte* out = call.make(0, DType::i64, Shape{found, rank});
  for (Int i = 0; i < count && rank > 0; ++i) {
    if (!is_true(self, i)) continue;
    Int rest = i;
    for (int d = rank - 1; d >= 0; --d) {
      const Int place = rest % self.shape[d];
      rest /= self.shape[d];
      std::memcpy(out + at(d) * sizeof(Int), &place, sizeof(Int));
    }
    out += at(rank) * sizeof(Int);
  }
}

// The offset of an element of a broadcast space in a contiguous tensor that is broadcast to it.
Int place_in(const Shape& shape, const Shape& space, Int index) {
  Int place = 0, step = 1;
  for (int d = space.rank() - 1, own = shape.rank() - 1; d >= 0; --d, --own) {
    const Int along = index % space[d];
    index /= space[d];
    if (own < 0) continue;
    if (shape[own] > 1) place += along * step;
    step *= shape[own];
  }
  return place;
}

void masked_select(HostCall& call) {
  const TensorView self = call.tensor("self"), mask = call.tensor("mask");
  const Shape space = broadcast_shapes(self.shape, mask.shape);
  const Int count = space.numel();
  Int found = 0;
  for (Int i = 0; i < count; ++i) found += is_true(mask, place_in(mask.shape, space, i));
  std::byte* out = call.make(0, self.dtype, Shape{found});
  const std::size_t size = byte_size(self.dtype);
  for (Int i = 0; i < count; ++i) {
    if (!is_true(mask, place_in(mask.shape, space, i))) continue;
    std::memcpy(out, static_cast<const std::byte*>(self.data) + at(place_in(self.shape, space, i)) * size, size);
    out += size;
  }
}

void item(HostCall& call) {
  const TensorView self = call.tensor("self");
  GRAFT_CHECK(InvalidArgument, self.shape.numel() == 1, "a tensor of one element becomes a number, got one of shape ",
              self.shape.str());
  call.set(0, element(self, 0));
}

void repeat_interleave(HostCall& call) {
  const TensorView repeats = call.tensor("repeats");
  const Int count = repeats.shape.numel();
  Int total = 0;
  for (Int i = 0; i < count; ++i) {
    const Int n = element(repeats, i).i;
    GRAFT_CHECK(InvalidArgument, n >= 0, "repeats must not be negative, got ", n);
    GRAFT_CHECK(InvalidArgument, !__builtin_add_overflow(total, n, &total), "the sum of repeats does not fit 64 bits");
  }
  std::byte* out = call.make(0, DType::i64, Shape{total});
  for (Int i = 0; i < count; ++i) {
    for (Int n = element(repeats, i).i; n > 0; --n) {
      std::memcpy(out, &i, sizeof(i));
      out += sizeof(i);
    }
  }
}

// Groups of equal items: the group of each item, one member of each group, and their counts.
struct Groups {
  std::vector<Int> of, member, count;

  void open(Int index) {
    member.push_back(index);
    count.push_back(0);
  }
  void add(Int index) {
    of[at(index)] = static_cast<Int>(member.size()) - 1;
    ++count.back();
  }
};

// Groups adjacent equal items of a given order.
template <typename Same>
Groups grouped(const std::vector<Int>& order, Same&& equal) {
  Groups groups;
  groups.of.resize(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || !equal(order[i - 1], order[i])) groups.open(order[i]);
    groups.add(order[i]);
  }
  return groups;
}

// Results 1 and 2: the group of each item, and the counts.
void make_inverse_and_counts(HostCall& call, const Groups& groups, const Shape& things, bool inverse, bool counts) {
  const auto write = [&](std::size_t output, const std::vector<Int>& numbers, const Shape& shape, bool wanted) {
    std::byte* out = call.make(output, DType::i64, wanted ? shape : Shape{0});
    if (wanted && !numbers.empty()) std::memcpy(out, numbers.data(), numbers.size() * sizeof(Int));
  };
  write(1, groups.of, things, inverse);
  write(2, groups.count, Shape{static_cast<Int>(groups.count.size())}, counts);
}

void unique_elements(HostCall& call, bool sorted) {
  const TensorView self = call.tensor("self");
  std::vector<Int> order(at(self.shape.numel()));
  std::iota(order.begin(), order.end(), 0);
  if (sorted) std::ranges::stable_sort(order, [&](Int a, Int b) { return less(element(self, a), element(self, b)); });
  const Groups groups = grouped(order, [&](Int a, Int b) { return same(element(self, a), element(self, b)); });
  std::byte* out = call.make(0, self.dtype, Shape{static_cast<Int>(groups.member.size())});
  const std::size_t size = byte_size(self.dtype);
  for (const Int member : groups.member) {
    std::memcpy(out, static_cast<const std::byte*>(self.data) + at(member) * size, size);
    out += size;
  }
  make_inverse_and_counts(call, groups, self.shape, call.boolean("return_inverse"), call.boolean("return_counts"));
}

void unique2(HostCall& call) { unique_elements(call, true); }
void unique_consecutive(HostCall& call) { unique_elements(call, false); }

// Unique slices along a dimension, sorted by their elements. ATen's kernel makes all three results whatever is
// requested.
void unique_dim(HostCall& call) {
  const TensorView self = call.tensor("self");
  const int rank = self.shape.rank();
  Int dim = call.integer("dim");
  GRAFT_CHECK(InvalidArgument, dim >= -rank && dim < rank, "dim must be in ", -rank, "..", rank - 1, ", got ", dim);
  if (dim < 0) dim += rank;
  Int outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= self.shape[d];
  for (int d = static_cast<int>(dim) + 1; d < rank; ++d) inner *= self.shape[d];
  const Int slices = self.shape[static_cast<int>(dim)];
  const auto place = [&](Int slice, Int k) { return (k / inner * slices + slice) * inner + k % inner; };
  const Int elements = outer * inner;
  std::vector<Int> order(at(slices));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](Int a, Int b) {
    for (Int k = 0; k < elements; ++k) {
      const Scalar x = element(self, place(a, k)), y = element(self, place(b, k));
      if (less(x, y)) return true;
      if (less(y, x)) return false;
    }
    return false;
  });
  const Groups groups = grouped(order, [&](Int a, Int b) {
    for (Int k = 0; k < elements; ++k)
      if (!same(element(self, place(a, k)), element(self, place(b, k)))) return false;
    return true;
  });
  Shape shape = self.shape;
  shape[static_cast<int>(dim)] = static_cast<Int>(groups.member.size());
  std::byte* out = call.make(0, self.dtype, shape);
  const std::size_t bytes = at(inner) * byte_size(self.dtype);
  for (Int o = 0; o < outer; ++o) {
    for (const Int member : groups.member) {
      std::memcpy(out, static_cast<const std::byte*>(self.data) + at(o * slices + member) * bytes, bytes);
      out += bytes;
    }
  }
  make_inverse_and_counts(call, groups, Shape{slices}, true, true);
}

Refusal refuse_dim(const NodeView& node) { return node.has("dim") ? "unique_consecutive along a dimension" : ""; }

constexpr HostOperator kOperators[] = {
    {"aten.nonzero.default", nullptr, nonzero},
    {"aten.masked_select.default", nullptr, masked_select},
    {"aten._local_scalar_dense.default", nullptr, item},
    {"aten.item.default", nullptr, item},
    {"aten.repeat_interleave.Tensor", nullptr, repeat_interleave},
    {"aten._unique2.default", nullptr, unique2},
    {"aten.unique_dim.default", nullptr, unique_dim},
    {"aten.unique_consecutive.default", refuse_dim, unique_consecutive},
};

void check_range(const ir::Value& declared, bool fits, const std::string& found, std::string_view target,
                 std::string_view node) {
  GRAFT_CHECK(InvalidArgument, fits, "node ", node, " (", target, ") gives ", found, ", but the program declares ",
              declared.str());
}

}  // namespace

const ir::Arg& HostCall::arg(std::string_view name) const {
  for (std::size_t i = 0; i < op_.arg_names.size() && i < node_.args.size(); ++i)
    if (op_.arg_names[i] == name) return node_.args[i];
  throw InvalidProgram(str(op_.target, ": node ", node_.name, " has no argument ", name));
}

TensorView HostCall::tensor(std::string_view name) const {
  const ir::Arg& given = arg(name);
  const HostValue value = given.is_value() ? value_(given.value()) : HostValue{};
  GRAFT_CHECK(InvalidProgram, value.is_tensor, op_.target, ": argument ", name, " of node ", node_.name,
              " must be a tensor");
  return value.tensor;
}

std::int64_t HostCall::integer(std::string_view name) const {
  const ir::Arg& given = arg(name);
  if (given.kind == ir::Arg::Kind::integer || given.kind == ir::Arg::Kind::boolean) return given.i;
  const HostValue value = given.is_value() ? value_(given.value()) : HostValue{true, {}, {}};
  GRAFT_CHECK(InvalidProgram, !value.is_tensor && !value.scalar.is_real(), op_.target, ": argument ", name, " of node ",
              node_.name, " must be an integer");
  return value.scalar.i;
}

std::byte* HostCall::make(std::size_t i, DType dtype, const Shape& shape) {
  GRAFT_CHECK(InvalidProgram, i < results_.size(), op_.target, ": node ", node_.name, " has ", results_.size(),
              " results, it makes more");
  const ir::Value& declared = results_[i];
  const bool is_type = declared.kind == ir::ValueKind::tensor && declared.dtype == dtype;
  GRAFT_CHECK(InvalidProgram, is_type && declared.rank() == shape.rank(), op_.target, ": result ", i, " of node ",
              node_.name, " is ", TensorDesc(dtype, shape).str(), ", but the program declares ", declared.str());
  bool fits = true;
  for (int d = 0; fits && d < shape.rank(); ++d)
    fits = shape[d] >= declared.dims[at(d)].min && shape[d] <= declared.dims[at(d)].max;
  check_range(declared, fits, shape.str(), op_.target, node_.name);
  void* memory = allocate_(i, dtype, shape);
  outputs_[i] = {true, {memory, dtype, shape}, {}};
  return static_cast<std::byte*>(memory);
}

void HostCall::set(std::size_t i, const Scalar& scalar) {
  const ir::Value& declared = results_[i];
  GRAFT_CHECK(InvalidProgram, declared.kind == scalar.kind, op_.target, ": the program declares the result of node ",
              node_.name, " as ", declared.str());
  const bool ranged = !declared.dims.empty() && !scalar.is_real();
  check_range(declared, !ranged || (scalar.i >= declared.dims[0].min && scalar.i <= declared.dims[0].max),
              std::to_string(scalar.i), op_.target, node_.name);
  outputs_[i] = {false, {}, scalar};
}

const HostOperator* find_host_operator(std::string_view target) {
  for (const HostOperator& op : kOperators)
    if (op.target == target) return &op;
  return nullptr;
}

std::span<const HostOperator> host_operators() { return kOperators; }

bool runs_between_plans(std::string_view target) {
  return target == kCond || target == kWhileLoop || find_host_operator(target);
}

}  // namespace graft
