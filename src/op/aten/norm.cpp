// Layer, RMS and group normalization.
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernel/norm/norm.h"
#include "lowering/lowering.h"
#include "op/ggml_ops.h"
#include "op/operator.h"

namespace graft {
namespace {

Refusal refuse_norm(const NodeView& node) {
  const DType dtype = node.tensor("input").dtype;
  if (!is_float(dtype)) return str("input is ", name(dtype), ", expected a floating-point dtype");
  for (const std::string_view argument : {"weight", "bias"}) {
    if (!node.has(argument)) continue;
    const DType found = node.tensor(argument).dtype;
    // A weight wider than the computation would be rounded.
    if (!is_float(found) || (found == DType::f64 && dtype != DType::f64)) {
      return str(argument, " is ", name(found), " but input is ", name(dtype));
    }
  }
  if (node.output().dtype != dtype) {
    return str("the output is ", name(node.output().dtype), " but input is ", name(dtype));
  }
  for (std::size_t i = 1; i < node.output_count(); ++i) {
    if (!is_float(node.output(i).dtype)) return str("output ", i, " is ", name(node.output(i).dtype));
  }
  return {};
}

// --- over the last dimensions ---

// Checks normalized_shape and gives the number of dimensions it covers.
int normalized_dims(const Call& call) {
  const Shape& input = call.tensor("input").shape();
  const std::vector<std::int64_t> sizes = call.integers("normalized_shape");
  const int count = static_cast<int>(sizes.size());
  bool same = count >= 1 && count <= input.rank();
  for (int d = 0; same && d < count; ++d) same = input[input.rank() - count + d] == sizes[static_cast<std::size_t>(d)];
  GRAFT_CHECK(InvalidArgument, same, "normalized_shape does not match the last dimensions of an input of size ",
              input.str());
  for (const std::string_view argument : {"weight", "bias"}) {
    if (!call.has(argument)) continue;
    const Shape& found = call.tensor(argument).shape();
    GRAFT_CHECK(InvalidArgument, found == Shape(sizes), argument, " has size ", found.str(), ", expected ",
                Shape(sizes).str());
  }
  return count;
}

// The output, then the statistics: the normalized dims with size 1.
std::vector<Shape> last_dims_shape(const Call& call) {
  const Shape& input = call.tensor("input").shape();
  const int count = normalized_dims(call);
  Shape statistics = input;
  for (int d = input.rank() - count; d < input.rank(); ++d) statistics[d] = 1;
  std::vector<Shape> shapes(call.output_count(), statistics);
  shapes[0] = input;
  return shapes;
}

struct Operands {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  NormAttrs attrs;
};

Operands operands_of(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  Operands o;
  o.inputs.push_back(lowering.contiguous(call.tensor("input")));
  if (call.has("weight")) {
    o.inputs.push_back(lowering.contiguous(call.tensor("weight")));
    o.attrs.has_weight = 1;
  }
  if (call.has("bias")) {
    o.inputs.push_back(lowering.contiguous(call.tensor("bias")));
    o.attrs.has_bias = 1;
  }
  for (std::size_t i = 0; i < shapes.size(); ++i)
    o.outputs.push_back(lowering.allocate(call.output_dtype(i), shapes[i]));
  return o;
}

// eps = None means the machine epsilon of the dtype that the norm is computed in.
double eps_of(const Call& call, DType dtype) {
  if (call.has("eps")) return call.real("eps");
  return dtype == DType::f64 ? std::numeric_limits<double>::epsilon()
                             : static_cast<double>(std::numeric_limits<float>::epsilon());
}

template <const Kernel& kernel, device::Norm kind>
std::vector<Tensor> lower_last_dims(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  Operands o = operands_of(call, shapes, lowering);
  o.attrs.row = 1;
  for (const std::int64_t size : call.integers("normalized_shape")) o.attrs.row *= size;
  o.attrs.eps = eps_of(call, o.inputs[0].dtype());
  const Tensor* weight = o.attrs.has_weight != 0 ? &o.inputs[1] : nullptr;
  const Tensor* bias = o.attrs.has_bias != 0 ? &o.inputs.back() : nullptr;
  if (o.outputs.size() == 1 &&
      device::norm(lowering, kind, o.inputs[0], weight, bias, o.attrs.row, o.attrs.eps, o.outputs[0]))
    return o.outputs;
  // In place: a row is read before it is written; but statistics may not overwrite the input.
  lowering.launch(kernel, o.inputs, o.outputs, o.attrs, 0, 1u);
  return o.outputs;
}

// --- group norm ---

Refusal refuse_group_norm(const NodeView& node) {
  if (node.tensor("input").rank() < 2) return "input has less than two dimensions";
  return refuse_norm(node);
}

std::int64_t group_count(const Call& call) {
  const Shape& input = call.tensor("input").shape();
  const std::int64_t groups = call.integer(call.has("group") ? "group" : "num_groups");
  GRAFT_CHECK(InvalidArgument, groups > 0 && input[1] % groups == 0, input[1], " channels cannot be divided into ",
              groups, " groups");
  for (const std::string_view argument : {"weight", "bias"}) {
    if (!call.has(argument)) continue;
    const Shape& found = call.tensor(argument).shape();
    GRAFT_CHECK(InvalidArgument, found == Shape{input[1]}, argument, " has size ", found.str(), ", expected [",
                input[1], "]");
  }
  return groups;
}

std::vector<Shape> group_norm_shape(const Call& call) {
  const Shape& input = call.tensor("input").shape();
  std::vector<Shape> shapes(call.output_count(), Shape{input[0], group_count(call)});
  shapes[0] = input;
  return shapes;
}

std::vector<Tensor> lower_group_norm(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  Operands o = operands_of(call, shapes, lowering);
  const Shape& input = shapes[0];
  o.attrs.inner = 1;
  for (int d = 2; d < input.rank(); ++d) o.attrs.inner *= input[d];
  o.attrs.channels = input[1];
  o.attrs.row = input[1] / group_count(call) * o.attrs.inner;
  o.attrs.eps = call.real("eps");
  lowering.launch(kGroupNorm, o.inputs, o.outputs, o.attrs, 0, 1u);
  return o.outputs;
}

}  // namespace

std::span<const Operator> norm_operators() {
  static constexpr Operator kOperators[] = {
      {"aten.layer_norm.default", refuse_norm, last_dims_shape, lower_last_dims<kLayerNorm, device::Norm::layer>, true},
      {"aten.native_layer_norm.default", refuse_norm, last_dims_shape,
       lower_last_dims<kLayerNorm, device::Norm::layer>},
      {"aten.rms_norm.default", refuse_norm, last_dims_shape, lower_last_dims<kRmsNorm, device::Norm::rms>, true},
      {"aten._fused_rms_norm.default", refuse_norm, last_dims_shape, lower_last_dims<kRmsNorm, device::Norm::rms>,
       true},
      {"aten.group_norm.default", refuse_group_norm, group_norm_shape, lower_group_norm, true},
      {"aten.native_group_norm.default", refuse_group_norm, group_norm_shape, lower_group_norm},
  };
  return kOperators;
}

}  // namespace graft
