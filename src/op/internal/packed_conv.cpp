// Convolutions with packed weights, made by src/pass/graph/convolution.cpp.
#include "kernel/conv/packed_conv.h"
#include "kernel/conv/winograd_conv.h"

#include <vector>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/aten/spatial.h"
#include "op/operator.h"

namespace graft {
namespace {

Refusal refuse_f32(const NodeView& node, std::string_view argument, int least_rank, int most_rank) {
  const ir::Value& value = node.tensor(argument);
  if (value.dtype == DType::f32 && value.rank() >= least_rank && value.rank() <= most_rank) return {};
  return str(argument, " is ", value.str(), ", expected f32 of rank ", least_rank, " to ", most_rank);
}

// --- graft.pack_conv(weight, scale?, groups) ---

Refusal refuse_pack(const NodeView& node) {
  if (Refusal reason = refuse_f32(node, "weight", 3, 5); !reason.empty()) return reason;
  return node.has("scale") ? refuse_f32(node, "scale", 1, 1) : Refusal{};
}

std::int64_t checked_groups(const Call& call, const Shape& weight) {
  const std::int64_t groups = call.integer("groups");
  GRAFT_CHECK(InvalidArgument, groups > 0 && weight[0] % groups == 0, "groups is ", groups, ", of ", weight[0],
              " output channels");
  for (int d = 0; d < weight.rank(); ++d)
    GRAFT_CHECK(InvalidArgument, weight[d] > 0, "weight has size ", weight.str(), ", expected at least 1 each");
  return groups;
}

void check_scale(const Call& call, const Shape& weight) {
  if (!call.has("scale")) return;
  const Shape& scale = call.tensor("scale").shape();
  GRAFT_CHECK(InvalidArgument, scale == Shape{weight[0]}, "scale has size ", scale.str(), ", expected [", weight[0],
              "]");
}

std::vector<Shape> pack_shape(const Call& call) {
  const Shape& weight = call.tensor("weight").shape();
  const std::int64_t groups = checked_groups(call, weight);
  check_scale(call, weight);
  return {{packed_conv_floats(with_three_spatial(weight), groups)}};
}

std::vector<Tensor> lower_pack_by(const Kernel& kernel, std::int64_t groups, const Call& call, const Shape& shape,
                                  Lowering& lowering) {
  const Tensor weight = lowering.contiguous(call.tensor("weight"));
  const Tensor out = lowering.allocate(DType::f32, shape);
  PackConvAttrs attrs;
  attrs.groups = groups;
  std::vector<Tensor> inputs = {with_three_spatial(weight, weight.rank() - 2)};
  if (call.has("scale")) {
    attrs.has_scale = 1;
    inputs.push_back(lowering.contiguous(call.tensor("scale")));
  }
  lowering.launch(kernel, std::move(inputs), {out}, attrs);
  return {out};
}

std::vector<Tensor> lower_pack(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return lower_pack_by(kPackConv, call.integer("groups"), call, shapes[0], lowering);
}

// --- graft.pack_winograd(weight, scale?) ---

std::vector<Shape> winograd_weight_shape(const Call& call) {
  const Shape& weight = call.tensor("weight").shape();
  GRAFT_CHECK(InvalidArgument, weight.rank() == 4 && weight[2] == 3 && weight[3] == 3, "weight has size ", weight.str(),
              ", expected [O, C, 3, 3]");
  check_scale(call, weight);
  return {{winograd_floats(with_three_spatial(weight))}};
}

std::vector<Tensor> lower_pack_winograd(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return lower_pack_by(kPackWinograd, 1, call, shapes[0], lowering);
}

// --- graft.packed_conv, graft.winograd_conv: the arguments of aten.convolution, and weight_size, the sizes of the
// unpacked weight ---

Refusal refuse_packed(const NodeView& node) {
  if (Refusal reason = refuse_f32(node, "input", 3, 5); !reason.empty()) return reason;
  if (Refusal reason = refuse_f32(node, "weight", 1, 1); !reason.empty()) return reason;
  return node.has("bias") ? refuse_f32(node, "bias", 1, 1) : Refusal{};
}

// For a convolution with a weight of size `weight` that is packed into so many floats.
std::vector<Shape> packed_shape_of(const Call& call, const Shape& weight, std::int64_t floats) {
  GRAFT_CHECK(InvalidArgument, weight.rank() == call.tensor("input").rank(), "weight_size has ", weight.rank(),
              " entries for an input of rank ", call.tensor("input").rank());
  GRAFT_CHECK(InvalidArgument, !call.boolean("transposed"), "a transposed convolution is not packed");
  GRAFT_CHECK(InvalidArgument, call.tensor("weight").shape() == Shape{floats}, "weight has size ",
              call.tensor("weight").shape().str(), ", packed it has ", floats, " elements");
  return {convolution_sizes(call, weight).out};
}

std::vector<Shape> packed_shape(const Call& call) {
  const Shape weight = weight_size(call);
  const std::int64_t groups = checked_groups(call, weight);
  return packed_shape_of(call, weight, packed_conv_floats(with_three_spatial(weight), groups));
}

std::vector<Shape> winograd_shape(const Call& call) {
  const Shape weight = weight_size(call);
  checked_groups(call, weight);
  const bool fits =
      weight.rank() == 4 && fits_winograd(with_three_spatial(weight), convolution_sizes(call, weight).attrs);
  GRAFT_CHECK(InvalidArgument, fits, "weight_size is ", weight.str(),
              ", expected [O, C, 3, 3], one group and steps of one");
  return packed_shape_of(call, weight, winograd_floats(with_three_spatial(weight)));
}

std::vector<Tensor> lower_by(bool winograd, const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Shape weight = with_three_spatial(weight_size(call));
  const ConvolutionSizes sizes = convolution_sizes(call, weight_size(call));
  const Tensor result = allocate_channels_last(DType::f32, shapes[0], lowering);
  if (result.numel() == 0) return {result};
  PackedConvAttrs attrs;
  attrs.conv = sizes.attrs;
  for (int d = 0; d < 3; ++d) attrs.kernel[d] = weight[2 + d];
  const Tensor x = with_three_spatial(call.tensor("input"), sizes.spatial);
  std::vector<Tensor> inputs = {x, call.tensor("weight")};
  if (call.has("bias")) inputs.push_back(lowering.contiguous(call.tensor("bias")));
  const Tensor out = with_three_spatial(result, sizes.spatial);
  if (winograd) {
    inputs[0] = channels_last(x, lowering);
    const std::int64_t scratch = winograd_scratch_bytes(inputs[0].desc, out.desc, lowering.max_threads());
    lowering.launch(kWinogradConv, std::move(inputs), {out}, attrs, scratch);
  } else if (is_depthwise(weight, attrs.conv.groups)) {
    inputs[0] = channels_last(x, lowering);
    lowering.launch(kPackedDepthwiseConv, std::move(inputs), {out}, attrs,
                    packed_depthwise_scratch_bytes(attrs, lowering.max_tasks()));
  } else {
    const std::int64_t scratch = packed_conv_scratch_bytes(x.desc, attrs, lowering.max_threads());
    lowering.launch(kPackedConv, std::move(inputs), {out}, attrs, scratch);
  }
  return {result};
}

std::vector<Tensor> lower_packed(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return lower_by(false, call, shapes, lowering);
}
std::vector<Tensor> lower_winograd(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return lower_by(true, call, shapes, lowering);
}

}  // namespace

std::span<const Operator> packed_conv_operators() {
  static constexpr Operator kOperators[] = {
      {"graft.pack_conv", refuse_pack, pack_shape, lower_pack},
      {"graft.packed_conv", refuse_packed, packed_shape, lower_packed},
      {"graft.pack_winograd", refuse_pack, winograd_weight_shape, lower_pack_winograd},
      {"graft.winograd_conv", refuse_packed, winograd_shape, lower_winograd},
  };
  return kOperators;
}

}  // namespace graft
