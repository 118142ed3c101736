// Convolutions of bytes with packed weights, made by src/pass/graph/quantized_convolution.cpp.
#include "kernel/conv/packed_quantized_conv.h"

#include <vector>

#include "base/check.h"
#include "kernel/conv/packed_conv.h"
#include "lowering/lowering.h"
#include "op/aten/spatial.h"
#include "op/operator.h"

namespace graft {
namespace {

bool is_byte(DType dtype) { return dtype == DType::i8 || dtype == DType::u8; }

std::int32_t checked(const Call& call, std::string_view argument, std::int64_t least, std::int64_t most) {
  const std::int64_t value = call.integer(argument);
  GRAFT_CHECK(InvalidArgument, value >= least && value <= most, argument, " is ", value, ", expected ", least, " to ",
              most);
  return static_cast<std::int32_t>(value);
}

// A zero point or bound in the range of that type of bytes.
std::int32_t byte_of(const Call& call, std::string_view argument, DType dtype) {
  return dtype == DType::u8 ? checked(call, argument, 0, 255) : checked(call, argument, -128, 127);
}

// --- graft.pack_quantized_conv(weight, weight_scale, bias?, input_scale, input_zero, stride, dilation, groups) ---
// input_zero is the zero point of the input as unsigned bytes.

Refusal refuse_pack(const NodeView& node) {
  const ir::Value& weight = node.tensor("weight");
  if (weight.dtype != DType::i8 || weight.rank() < 3 || weight.rank() > 5) return str("weight is ", weight.str());
  for (const std::string_view argument : {"weight_scale", "bias"}) {
    if (!node.has(argument) || !node.is_tensor(argument)) continue;
    const ir::Value& value = node.tensor(argument);
    if (value.dtype != DType::f32 || value.rank() > 1) return str(argument, " is ", value.str());
  }
  return node.output().dtype == DType::u8 ? Refusal() : str("the output is ", name(node.output().dtype));
}

// The parameters that the packed weight depends on.
ConvAttrs packing_of(const Call& call, const Shape& weight) {
  ConvAttrs attrs;
  attrs.groups = call.integer("groups");
  GRAFT_CHECK(InvalidArgument, attrs.groups > 0 && weight[0] % attrs.groups == 0, "groups is ", attrs.groups, ", of ",
              weight[0], " output channels");
  for (int d = 0; d < weight.rank(); ++d)
    GRAFT_CHECK(InvalidArgument, weight[d] > 0, "weight has size ", weight.str(), ", expected at least 1 each");
  const std::int64_t depth = weight.numel() / weight[0];
  GRAFT_CHECK(InvalidArgument, depth <= kLongestByteSum, "sums of ", depth, " products of bytes, expected at most ",
              kLongestByteSum);
  const std::size_t spatial = static_cast<std::size_t>(weight.rank()) - 2;
  const auto last = [&](std::string_view argument) {
    const std::vector<std::int64_t> given = call.integers(argument);
    GRAFT_CHECK(InvalidArgument, given.size() == 1 || given.size() == spatial, argument, " has ", given.size(),
                " entries for ", spatial, " spatial dimensions");
    return given.back();
  };
  attrs.stride[2] = last("stride");
  attrs.dilation[2] = last("dilation");
  return attrs;
}

std::vector<Shape> pack_shape(const Call& call) {
  const Shape& weight = call.tensor("weight").shape();
  const ConvAttrs attrs = packing_of(call, weight);
  checked(call, "input_zero", 0, 255);
  for (const std::string_view argument : {"weight_scale", "bias"}) {
    if (!call.has(argument) || !call.is_tensor(argument)) continue;
    const std::int64_t count = call.tensor(argument).numel();
    GRAFT_CHECK(InvalidArgument, count == weight[0] || (count == 1 && argument == "weight_scale"), argument, " has ",
                count, " elements for ", weight[0], " output channels");
  }
  return {{packed_quantized_conv_bytes(with_three_spatial(weight), attrs)}};
}

std::vector<Tensor> lower_pack(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor weight = lowering.contiguous(call.tensor("weight"));
  const Tensor out = lowering.allocate(DType::u8, shapes[0]);
  PackQuantizedConvAttrs attrs;
  attrs.conv = packing_of(call, weight.shape());
  attrs.input_scale = static_cast<float>(call.real("input_scale"));
  attrs.input_zero = checked(call, "input_zero", 0, 255);
  std::vector<Tensor> inputs = {with_three_spatial(weight, weight.rank() - 2)};
  if (call.is_tensor("weight_scale")) {
    attrs.has_weight_scale = 1;
    inputs.push_back(lowering.contiguous(call.tensor("weight_scale")));
  } else {
    attrs.weight_scale = static_cast<float>(call.real("weight_scale"));
  }
  if (call.has("bias")) {
    attrs.conv.has_bias = 1;
    inputs.push_back(lowering.contiguous(call.tensor("bias")));
  }
  lowering.launch(kPackQuantizedConv, std::move(inputs), {out}, attrs);
  return {out};
}

// --- graft.packed_quantized_conv: the arguments of aten.convolution (the bias is in the weight); weight_size, the
// sizes of the unpacked weight; for a result of bytes, its quantization: scale, zero, low and high; and for a residual,
// residual_scale and residual_zero, and the quantization of the sum: sum_scale, sum_zero, sum_low and sum_high ---

Refusal refuse_packed(const NodeView& node) {
  const ir::Value &input = node.tensor("input"), &weight = node.tensor("weight");
  if (!is_byte(input.dtype) || input.rank() < 3 || input.rank() > 5) return str("input is ", input.str());
  if (weight.dtype != DType::u8 || weight.rank() != 1) return str("weight is ", weight.str());
  const bool quantizes = is_byte(node.output().dtype);
  if (!quantizes && node.output().dtype != DType::f32) return str("the output is ", name(node.output().dtype));
  if (quantizes != node.has("scale")) return "a result of bytes needs a scale, and no other has one";
  if (!node.has("residual")) return {};
  const ir::Value& residual = node.tensor("residual");
  return quantizes && is_byte(residual.dtype) && residual.rank() == input.rank() ? Refusal()
                                                                                 : str("residual is ", residual.str());
}

std::vector<Shape> packed_shape(const Call& call) {
  const Shape weight = weight_size(call);
  GRAFT_CHECK(InvalidArgument, weight.rank() == call.tensor("input").rank(), "weight_size has ", weight.rank(),
              " entries for an input of rank ", call.tensor("input").rank());
  GRAFT_CHECK(InvalidArgument, !call.boolean("transposed"), "a transposed convolution is not packed");
  const std::int64_t bytes = packed_quantized_conv_bytes(with_three_spatial(weight), packing_of(call, weight));
  GRAFT_CHECK(InvalidArgument, call.tensor("weight").shape() == Shape{bytes}, "weight has size ",
              call.tensor("weight").shape().str(), ", packed it has ", bytes, " bytes");
  const Shape out = convolution_sizes(call, weight).out;
  if (call.has("residual"))
    GRAFT_CHECK(InvalidArgument, call.tensor("residual").shape() == out, "residual has size ",
                call.tensor("residual").shape().str(), ", expected ", out.str());
  return {out};
}

simd::QuantizeTo quantize_to(const Call& call, std::string_view scale, std::int32_t zero, std::string_view low,
                             std::string_view high) {
  const DType dtype = call.output_dtype();
  return {static_cast<float>(1.0 / call.real(scale)), static_cast<float>(byte_of(call, low, dtype) - zero),
          static_cast<float>(byte_of(call, high, dtype) - zero)};
}

std::vector<Tensor> lower_packed(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Shape weight = with_three_spatial(weight_size(call));
  const ConvolutionSizes sizes = convolution_sizes(call, weight_size(call));
  const DType dtype = call.output_dtype();
  const Tensor result = allocate_channels_last(dtype, shapes[0], lowering);
  if (result.numel() == 0) return {result};
  PackedQuantizedConvAttrs attrs;
  attrs.conv = sizes.attrs;
  for (int d = 0; d < 3; ++d) attrs.kernel[d] = weight[2 + d];
  const Tensor x = with_three_spatial(call.tensor("input"), sizes.spatial);
  attrs.input_zero = byte_of(call, "input_zero", x.dtype());
  std::vector<Tensor> inputs = {x, call.tensor("weight")};
  if (call.has("scale")) {
    attrs.zero = byte_of(call, "zero", dtype);
    attrs.first = quantize_to(call, "scale", attrs.zero, "low", "high");
  }
  if (call.has("residual")) {
    const Tensor residual = with_three_spatial(call.tensor("residual"), sizes.spatial);
    attrs.has_residual = 1;
    attrs.scale = static_cast<float>(call.real("scale"));
    attrs.residual_scale = static_cast<float>(call.real("residual_scale"));
    attrs.residual_zero = byte_of(call, "residual_zero", residual.dtype());
    attrs.zero = byte_of(call, "sum_zero", dtype);
    attrs.second = quantize_to(call, "sum_scale", attrs.zero, "sum_low", "sum_high");
    inputs.push_back(dense_channels_last(residual, lowering));
  }
  const Tensor out = with_three_spatial(result, sizes.spatial);
  if (is_depthwise(weight, attrs.conv.groups)) {
    inputs[0] = channels_last(x, lowering);
    const std::int64_t scratch =
        packed_quantized_depthwise_scratch_bytes(inputs[0].desc, out.desc, attrs, lowering.max_tasks());
    lowering.launch(kPackedQuantizedDepthwiseConv, std::move(inputs), {out}, attrs, scratch);
  } else {
    const std::int64_t scratch = packed_quantized_conv_scratch_bytes(x.desc, attrs, lowering.max_threads());
    lowering.launch(kPackedQuantizedConv, std::move(inputs), {out}, attrs, scratch);
  }
  return {result};
}

}  // namespace

std::span<const Operator> packed_quantized_conv_operators() {
  static constexpr Operator kOperators[] = {
      {"graft.pack_quantized_conv", refuse_pack, pack_shape, lower_pack},
      {"graft.packed_quantized_conv", refuse_packed, packed_shape, lower_packed},
  };
  return kOperators;
}

}  // namespace graft
