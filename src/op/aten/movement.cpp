// Operators that move elements without computing: concatenation, repetition, padding, and the scatter twins of views.
#include <algorithm>

#include "base/check.h"
#include "kernel/elementwise/triangle.h"
#include "lowering/lowering.h"
#include "op/aten/view.h"
#include "op/dims.h"

namespace graft {
namespace {

using Sizes = std::vector<std::int64_t>;

template <Shape (*rule)(const Call&)>
std::vector<Shape> one_shape(const Call& call) {
  return {rule(call)};
}

// --- cat, stack ---

// PyTorch skips tensors of size [0] whatever the rank of the others is.
bool skipped(const Tensor& tensor) { return tensor.rank() == 1 && tensor.size(0) == 0; }

Shape cat_shape(const Call& call) {
  const std::vector<Tensor> tensors = call.tensors("tensors");
  GRAFT_CHECK(InvalidArgument, !tensors.empty(), "needs at least one tensor");
  const Tensor* first = nullptr;
  Shape shape{0};
  int dim = 0;
  for (const Tensor& tensor : tensors) {
    GRAFT_CHECK(InvalidArgument, tensor.rank() > 0, "cannot concatenate 0-d tensors");
    if (skipped(tensor)) continue;
    if (first == nullptr) {
      first = &tensor;
      shape = tensor.shape();
      dim = wrap_dim(call.integer("dim"), tensor.rank());
      continue;
    }
    bool fits = tensor.rank() == shape.rank();
    for (int d = 0; fits && d < shape.rank(); ++d) fits = d == dim || tensor.size(d) == shape[d];
    GRAFT_CHECK(InvalidArgument, fits, "sizes ", first->shape().str(), " and ", tensor.shape().str(),
                " differ outside of dimension ", dim);
    shape[dim] += tensor.size(dim);
  }
  return shape;
}

std::vector<Tensor> cat_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const std::vector<Tensor> tensors = call.tensors("tensors");
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  if (out.numel() == 0) return {out};
  const int dim = wrap_dim(call.integer("dim"), out.rank());
  std::int64_t start = 0;
  for (const Tensor& tensor : tensors) {
    if (skipped(tensor)) continue;
    lowering.copy(tensor, sliced(out, dim, start, tensor.size(dim)));
    start += tensor.size(dim);
  }
  return {out};
}

Shape stack_shape(const Call& call) {
  const std::vector<Tensor> tensors = call.tensors("tensors");
  GRAFT_CHECK(InvalidArgument, !tensors.empty(), "needs at least one tensor");
  for (const Tensor& tensor : tensors)
    GRAFT_CHECK(InvalidArgument, tensor.shape() == tensors[0].shape(), "tensors must have one size, got ",
                tensors[0].shape().str(), " and ", tensor.shape().str());
  return with_dim(tensors[0].shape(), wrap_dim(call.integer("dim"), tensors[0].rank() + 1),
                  static_cast<std::int64_t>(tensors.size()));
}

std::vector<Tensor> stack_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const std::vector<Tensor> tensors = call.tensors("tensors");
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  const int dim = wrap_dim(call.integer("dim"), out.rank());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    lowering.copy(tensors[i], selected(out, dim, static_cast<std::int64_t>(i)));
  return {out};
}

// --- repetition ---

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  GRAFT_CHECK(InvalidArgument, !__builtin_mul_overflow(a, b, &r), "a size does not fit 64 bits");
  return r;
}

// `repeats` for each output dimension, with ones in front where the argument has fewer.
Sizes repeats_of(const Call& call, bool may_be_short) {
  const Tensor& self = call.tensor("self");
  Sizes repeats = call.integers(may_be_short ? "dims" : "repeats");
  const auto rank = static_cast<std::size_t>(self.rank());
  if (may_be_short && repeats.size() < rank) repeats.insert(repeats.begin(), rank - repeats.size(), 1);
  GRAFT_CHECK(InvalidArgument, repeats.size() >= rank, "got ", repeats.size(), " repeats for a tensor of rank ", rank);
  for (std::int64_t repeat : repeats)
    GRAFT_CHECK(InvalidArgument, repeat >= 0, "number of repeats must not be negative, got ", repeat);
  return repeats;
}

template <bool may_be_short>
Shape repeat_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const Sizes repeats = repeats_of(call, may_be_short);
  Shape shape;
  const int lead = static_cast<int>(repeats.size()) - self.rank();
  for (int d = 0; d < static_cast<int>(repeats.size()); ++d)
    shape.push_back(product(repeats[static_cast<std::size_t>(d)], d < lead ? 1 : self.size(d - lead)));
  return shape;
}

// `tensor`, contiguous, with the dimension repeated: as a whole ([a b a b]) or entry by entry ([a a b b]).
Tensor repeated(const Tensor& tensor, int dim, std::int64_t times, bool each, Lowering& lowering) {
  Shape shape = tensor.shape();
  std::int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= shape[d];
  for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  const std::int64_t size = shape[dim];
  shape[dim] = product(size, times);
  const Tensor out = lowering.allocate(tensor.dtype(), shape);
  if (out.numel() == 0) return out;
  const Shape one = each ? Shape{outer, size, 1, inner} : Shape{outer, 1, size, inner};
  const Shape many = each ? Shape{outer, size, times, inner} : Shape{outer, times, size, inner};
  lowering.copy(expanded(*try_reshape(tensor, one), many), *try_reshape(out, many));
  return out;
}

template <bool may_be_short>
std::vector<Tensor> repeat_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& self = call.tensor("self");
  const Sizes repeats = repeats_of(call, may_be_short);
  // Splits every repeated dimension in two, the first with stride 0: one copy, if the largest rank allows it.
  Shape one, many;
  const int lead = static_cast<int>(repeats.size()) - self.rank();
  int rank = 0;
  for (int d = 0; d < static_cast<int>(repeats.size()); ++d)
    rank += repeats[static_cast<std::size_t>(d)] == 1 || d < lead ? 1 : 2;
  if (rank <= kMaxRank) {
    const Tensor out = lowering.allocate(self.dtype(), shapes[0]);
    if (out.numel() == 0) return {out};
    for (int d = 0; d < static_cast<int>(repeats.size()); ++d) {
      const std::int64_t times = repeats[static_cast<std::size_t>(d)];
      if (times != 1 || d < lead) {
        one.push_back(1);
        many.push_back(times);
      }
      if (d < lead) continue;
      one.push_back(self.size(d - lead));
      many.push_back(self.size(d - lead));
    }
    lowering.copy(expanded(*try_reshape(self, one), many), *try_reshape(out, many));
    return {out};
  }
  Shape shape;
  for (int d = 0; d < static_cast<int>(repeats.size()); ++d) shape.push_back(d < lead ? 1 : self.size(d - lead));
  Tensor result = *try_reshape(lowering.contiguous(self), shape);
  for (int d = 0; d < shape.rank(); ++d)
    if (repeats[static_cast<std::size_t>(d)] != 1)
      result = repeated(result, d, repeats[static_cast<std::size_t>(d)], false, lowering);
  return {result};
}

Shape interleave_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const std::int64_t times = call.integer("repeats");
  GRAFT_CHECK(InvalidArgument, times >= 0, "number of repeats must not be negative, got ", times);
  if (!call.has("dim")) return {product(self.numel(), times)};
  Shape shape = self.rank() > 0 ? self.shape() : Shape{1};
  const int dim = wrap_dim(call.integer("dim"), self.rank());
  shape[dim] = product(shape[dim], times);
  return shape;
}

std::vector<Tensor> interleave_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  Tensor self = lowering.contiguous(call.tensor("self"));
  int dim = 0;
  if (call.has("dim") && self.rank() > 0) {
    dim = wrap_dim(call.integer("dim"), self.rank());
  } else {
    self = *try_reshape(self, {self.numel()});
  }
  return {repeated(self, dim, call.integer("repeats"), true, lowering)};
}

// --- roll ---

std::vector<Tensor> roll_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  const Tensor& self = call.tensor("self");
  const Sizes shifts = call.integers("shifts"), dims = call.integers("dims");
  if (self.numel() == 0) return {self};
  Tensor result = self;
  if (dims.empty()) result = *try_reshape(lowering.contiguous(self), {self.numel()});
  for (std::size_t i = 0; i < shifts.size(); ++i) {
    const int dim = dims.empty() ? 0 : wrap_dim(dims[i], self.rank());
    if (result.rank() == 0) continue;
    const std::int64_t size = result.size(dim);
    const std::int64_t shift = (shifts[i] % size + size) % size;
    if (shift == 0) continue;
    const Tensor out = lowering.allocate(result.dtype(), result.shape());
    lowering.copy(sliced(result, dim, 0, size - shift), sliced(out, dim, shift, size - shift));
    lowering.copy(sliced(result, dim, size - shift, shift), sliced(out, dim, 0, shift));
    result = out;
  }
  return {*try_reshape(dims.empty() ? result : lowering.contiguous(result), self.shape())};
}

Shape roll_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const Sizes shifts = call.integers("shifts"), dims = call.integers("dims");
  GRAFT_CHECK(InvalidArgument, dims.empty() ? shifts.size() == 1 : shifts.size() == dims.size(), "got ", shifts.size(),
              " shifts for ", dims.size(), " dimensions");
  for (std::int64_t dim : dims) wrap_dim(dim, self.rank());
  return self.shape();
}

// --- padding ---

struct Pad {
  std::int64_t before = 0, after = 0;
};

std::vector<Pad> pads_of(const Call& call) {
  const Tensor& self = call.tensor("self");
  const Sizes given = call.integers("pad");
  GRAFT_CHECK(InvalidArgument, given.size() % 2 == 0 && given.size() / 2 <= static_cast<std::size_t>(self.rank()),
              "got ", given.size(), " paddings for a tensor of rank ", self.rank());
  std::vector<Pad> pads(static_cast<std::size_t>(self.rank()));
  for (std::size_t i = 0; i < given.size() / 2; ++i)  // the last dimension comes first
    pads[pads.size() - 1 - i] = {given[2 * i], given[2 * i + 1]};
  return pads;
}

Shape pad_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  Shape shape;
  int d = 0;
  for (const Pad& pad : pads_of(call)) {
    const std::int64_t size = self.size(d),
                       kept = size + std::min<std::int64_t>(pad.before, 0) + std::min<std::int64_t>(pad.after, 0);
    GRAFT_CHECK(InvalidArgument, kept >= 0, "padding ", pad.before, " and ", pad.after, " cuts more than dimension ", d,
                " of size ", size, " has");
    shape.push_back(kept + std::max<std::int64_t>(pad.before, 0) + std::max<std::int64_t>(pad.after, 0));
    ++d;
  }
  return shape;
}

std::vector<Tensor> pad_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  Tensor from = call.tensor("self");
  const std::vector<Pad> pads = pads_of(call);
  bool grows = false;
  for (int d = 0; d < from.rank(); ++d) {
    const Pad pad = pads[static_cast<std::size_t>(d)];
    const std::int64_t cut = std::max<std::int64_t>(-pad.before, 0);
    from = sliced(from, d, cut, from.size(d) - cut - std::max<std::int64_t>(-pad.after, 0));
    grows = grows || pad.before > 0 || pad.after > 0;
  }
  if (!grows) return {from};
  const Scalar value = call.scalar("value");
  const Tensor out = lowering.full(from.dtype(), shapes[0], value);
  Tensor window = out;
  for (int d = 0; d < from.rank(); ++d)
    window = sliced(window, d, std::max<std::int64_t>(pads[static_cast<std::size_t>(d)].before, 0), from.size(d));
  lowering.copy(from, window);
  return {out};
}

// --- tril, triu ---

Shape triangle_shape(const Call& call) {
  GRAFT_CHECK(InvalidArgument, call.tensor("self").rank() >= 2, "takes a tensor of rank 2 or more, got ",
              call.tensor("self").shape().str());
  return call.tensor("self").shape();
}

template <bool upper>
std::vector<Tensor> triangle_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.tensor("self").dtype(), shapes[0]);
  lowering.launch(kTriangle, {call.tensor("self")}, {out}, TriangleAttrs{call.integer("diagonal"), upper});
  return {out};
}

// --- select_scatter, slice_scatter, diagonal_scatter: a copy of self with src written into a view of it ---

Tensor selected_window(const Call& call, const Tensor& self) {
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot select from a 0-d tensor");
  const int dim = wrap_dim(call.integer("dim"), self.rank());
  return selected(self, dim, wrap_index(call.integer("index"), self.size(dim), dim));
}

Tensor sliced_window(const Call& call, const Tensor& self) {
  GRAFT_CHECK(InvalidArgument, self.rank() > 0, "cannot slice a 0-d tensor");
  const int dim = wrap_dim(call.integer("dim"), self.rank());
  const SliceRange range = slice_range(call, self.size(dim));
  return sliced(self, dim, range.start, range.length, range.step);
}

Tensor diagonal_window(const Call& call, const Tensor& self) {
  return diagonal_of(self, call.integer("offset"), wrap_dim(call.integer("dim1"), self.rank()),
                     wrap_dim(call.integer("dim2"), self.rank()));
}

using WindowFn = Tensor (*)(const Call&, const Tensor&);

template <WindowFn window>
Shape scatter_shape(const Call& call) {
  const Tensor& self = call.tensor("self");
  const Shape shape = window(call, self).shape();
  GRAFT_CHECK(InvalidArgument, call.tensor("src").shape() == shape, "src has size ", call.tensor("src").shape().str(),
              ", but the part that it replaces has size ", shape.str());
  return self.shape();
}

template <WindowFn window>
std::vector<Tensor> scatter_lower(const Call& call, std::span<const Shape>, Lowering& lowering) {
  const Tensor &self = call.tensor("self"), &src = call.tensor("src");
  if (src.shape() == self.shape() && src.dtype() == self.dtype()) {
    // The part covers all of self in the same order: only a slice can have this shape.
    return {src};
  }
  const Tensor out = lowering.writable(self);
  const Tensor target = window(call, out);
  if (lowering.in_state(out)) {
    const Tensor kept = lowering.allocate(target.dtype(), target.shape());
    lowering.copy(target, kept);
    lowering.undo_copy(kept, target);
  }
  lowering.copy(src, target);
  return {out};
}

}  // namespace

std::span<const Operator> movement_operators() {
  static constexpr Operator operators[] = {
      {"aten.cat.default", refuse_rank, one_shape<cat_shape>, cat_lower, false},
      {"aten.concat.default", refuse_rank, one_shape<cat_shape>, cat_lower, false},
      {"aten.stack.default", refuse_rank, one_shape<stack_shape>, stack_lower, false},
      {"aten.repeat.default", refuse_rank, one_shape<repeat_shape<false>>, repeat_lower<false>, false},
      {"aten.tile.default", refuse_rank, one_shape<repeat_shape<true>>, repeat_lower<true>, false},
      {"aten.repeat_interleave.self_int", refuse_rank, one_shape<interleave_shape>, interleave_lower, true},
      {"aten.roll.default", refuse_rank, one_shape<roll_shape>, roll_lower, true},
      {"aten.constant_pad_nd.default", refuse_rank, one_shape<pad_shape>, pad_lower, false},
      {"aten.tril.default", refuse_rank, one_shape<triangle_shape>, triangle_lower<false>, true},
      {"aten.triu.default", refuse_rank, one_shape<triangle_shape>, triangle_lower<true>, true},
      {"aten.select_scatter.default", refuse_rank, one_shape<scatter_shape<selected_window>>,
       scatter_lower<selected_window>, false, false, true},
      {"aten.slice_scatter.default", refuse_rank, one_shape<scatter_shape<sliced_window>>, scatter_lower<sliced_window>,
       false, false, true},
      {"aten.diagonal_scatter.default", refuse_rank, one_shape<scatter_shape<diagonal_window>>,
       scatter_lower<diagonal_window>, false, false, true},
  };
  return operators;
}

}  // namespace graft
