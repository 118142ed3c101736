// Softmax and log-softmax over any dimension.
#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "kernel/norm/softmax.h"
#include "lowering/lowering.h"
#include "op/dims.h"
#include "op/ggml_ops.h"
#include "op/operator.h"

namespace graft {
namespace {

Refusal refuse_softmax(const NodeView& node) {
  const DType to = node.output().dtype;
  if (!is_float(to)) return str("the output is ", name(to), ", expected a floating-point dtype");
  if (node.tensor("self").rank() > kMaxRank) return str("self has more than ", kMaxRank, " dimensions");
  return {};
}

std::vector<Shape> softmax_shape(const Call& call) {
  const Shape& shape = call.tensor("self").shape();
  wrap_dim(call.integer("dim"), shape.rank());
  return {shape};
}

template <bool logarithm>
std::vector<Tensor> lower_softmax(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const DType to = call.output_dtype();
  Tensor input = call.tensor("self");
  // The kernel widens f16 and bf16 itself; PyTorch converts to the given dtype first.
  const bool widened = to == DType::f32 && (input.dtype() == DType::f16 || input.dtype() == DType::bf16);
  if (!widened) input = lowering.cast(input, to);
  const int rank = shapes[0].rank();
  const int dim = wrap_dim(call.integer("dim"), rank);
  Shape shape = shapes[0];
  if (rank == 0) shape.push_back(1);
  SoftmaxAttrs attrs{shape[dim], 1, logarithm ? 1 : 0};
  for (int d = dim + 1; d < rank; ++d) attrs.inner *= shape[d];
  // ggml's op reduces the last dimension, and rows are faster to read than columns: swap the dimension with the last
  // one, which is its own inverse.
  std::array<int, static_cast<std::size_t>(kMaxRank)> order{};
  for (int d = 0; d < rank; ++d) order[static_cast<std::size_t>(d)] = d;
  if (rank > 0) std::swap(order[static_cast<std::size_t>(dim)], order[static_cast<std::size_t>(rank - 1)]);
  const std::span<const int> swap(order.data(), static_cast<std::size_t>(rank));
  const bool by_device = lowering.has_device() && !logarithm;
  const bool swaps = attrs.inner != 1 && (by_device || (attrs.row > 1 && permuted(input, swap).desc.contiguous()));
  if (swaps) attrs.inner = 1;
  const Tensor rows = lowering.contiguous(swaps ? permuted(input, swap) : input);
  const Tensor out = lowering.allocate(to, rows.shape());
  if (!by_device || !device::softmax(lowering, rows, out))
    lowering.launch(kSoftmax, {rows}, {out}, attrs, softmax_scratch_bytes(attrs, rows.numel()),
                    rows.dtype() == to ? 1u : 0u);
  return {swaps ? permuted(out, swap) : out};
}

}  // namespace

std::span<const Operator> softmax_operators() {
  static constexpr Operator kOperators[] = {
      {"aten._softmax.default", refuse_softmax, softmax_shape, lower_softmax<false>},
      {"aten.softmax.int", refuse_softmax, softmax_shape, lower_softmax<false>, true},
      {"aten._log_softmax.default", refuse_softmax, softmax_shape, lower_softmax<true>},
      {"aten.log_softmax.int", refuse_softmax, softmax_shape, lower_softmax<true>, true},
  };
  return kOperators;
}

}  // namespace graft
