// Convolutions with packed weights, as src/pass/convolution.cpp makes them.
#include "kernel/packed_conv.h"

#include <vector>

#include "base/check.h"
#include "op/operator.h"
#include "op/spatial.h"
#include "plan/lowering.h"

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

std::vector<Shape> pack_shape(const Call& call) {
  const Shape& weight = call.tensor("weight").shape();
  const std::int64_t groups = checked_groups(call, weight);
  if (call.has("scale")) {
    const Shape& scale = call.tensor("scale").shape();
    GRAFT_CHECK(InvalidArgument, scale == Shape{weight[0]}, "scale has size ", scale.str(), ", expected [", weight[0],
                "]");
  }
  return {{packed_conv_floats(with_three_spatial(weight), groups)}};
}

std::vector<Tensor> lower_pack(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor weight = lowering.contiguous(call.tensor("weight"));
  const Tensor out = lowering.allocate(DType::f32, shapes[0]);
  PackConvAttrs attrs;
  attrs.groups = call.integer("groups");
  std::vector<Tensor> inputs = {with_three_spatial(weight, weight.rank() - 2)};
  if (call.has("scale")) {
    attrs.has_scale = 1;
    inputs.push_back(lowering.contiguous(call.tensor("scale")));
  }
  lowering.launch(kPackConv, std::move(inputs), {out}, attrs);
  return {out};
}

// --- graft.packed_conv: the arguments of aten.convolution, and weight_size, the sizes of the weight before ---

Refusal refuse_packed(const NodeView& node) {
  if (Refusal reason = refuse_f32(node, "input", 3, 5); !reason.empty()) return reason;
  if (Refusal reason = refuse_f32(node, "weight", 1, 1); !reason.empty()) return reason;
  return node.has("bias") ? refuse_f32(node, "bias", 1, 1) : Refusal{};
}

std::vector<Shape> packed_shape(const Call& call) {
  const Shape weight = weight_size(call);
  GRAFT_CHECK(InvalidArgument, weight.rank() == call.tensor("input").rank(), "weight_size has ", weight.rank(),
              " entries for an input of rank ", call.tensor("input").rank());
  GRAFT_CHECK(InvalidArgument, !call.boolean("transposed"), "a transposed convolution is not packed");
  const std::int64_t groups = checked_groups(call, weight);
  const std::int64_t floats = packed_conv_floats(with_three_spatial(weight), groups);
  GRAFT_CHECK(InvalidArgument, call.tensor("weight").shape() == Shape{floats}, "weight has size ",
              call.tensor("weight").shape().str(), ", packed it has ", floats, " elements");
  return {convolution_sizes(call, weight).out};
}

std::vector<Tensor> lower_packed(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
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
  const int shares = lowering.max_shares();
  if (is_depthwise(weight, attrs.conv.groups)) {
    inputs[0] = channels_last(x, lowering);
    lowering.launch(kPackedDepthwiseConv, std::move(inputs), {out}, attrs,
                    packed_depthwise_scratch_bytes(attrs, shares));
  } else {
    const std::int64_t scratch = packed_conv_scratch_bytes(x.desc, attrs, shares);
    lowering.launch(kPackedConv, std::move(inputs), {out}, attrs, scratch);
  }
  return {result};
}

}  // namespace

std::span<const Operator> packed_conv_operators() {
  static constexpr Operator kOperators[] = {
      {"graft.pack_conv", refuse_pack, pack_shape, lower_pack},
      {"graft.packed_conv", refuse_packed, packed_shape, lower_packed},
  };
  return kOperators;
}

}  // namespace graft
