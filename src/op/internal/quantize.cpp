// Affine quantization: operators of torchao and PT2E, and those that src/pass/graph/quantize.cpp makes of them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernel/quantized/affine.h"
#include "kernel/quantized/quantized.h"
#include "kernel/quantized/quantized_vec.h"
#include "lowering/lowering.h"
#include "op/aten/spatial.h"
#include "op/operator.h"

namespace graft {
namespace {

using Sizes = std::vector<std::int64_t>;

bool is_byte(DType dtype) { return dtype == DType::i8 || dtype == DType::u8; }

// The shape of parameters per block: sizes divided by the block's.
Shape blocks_of(const Shape& shape, const Sizes& block, const Call& call) {
  GRAFT_CHECK(InvalidArgument, block.size() == static_cast<std::size_t>(shape.rank()), call.target(),
              ": block_size has ", block.size(), " entries for a tensor of shape ", shape.str());
  Shape out;
  for (int d = 0; d < shape.rank(); ++d) {
    const std::int64_t b = block[static_cast<std::size_t>(d)];
    GRAFT_CHECK(InvalidArgument, b > 0 && shape[d] % b == 0, call.target(), ": dimension ", d, " of shape ",
                shape.str(), " does not divide into blocks of ", b);
    out.push_back(shape[d] / b);
  }
  return out;
}

// The parameters of an operator, their names, and its blocks.
struct Names {
  std::string_view scale = "scale", zero = "zero_point", low = "quant_min", high = "quant_max";
};
enum class Blocking { given, whole, axis };

Sizes block_of(const Call& call, Blocking blocking) {
  if (blocking == Blocking::given) return call.integers("block_size");
  const Shape& shape = call.tensor("input").shape();
  Sizes block;
  for (int d = 0; d < shape.rank(); ++d) block.push_back(std::max<std::int64_t>(shape[d], 1));
  if (blocking == Blocking::whole) return block;
  const std::int64_t axis = call.integer("axis");
  GRAFT_CHECK(InvalidArgument, axis >= 0 && axis < shape.rank(), call.target(), ": axis is ", axis,
              " for a tensor of shape ", shape.str());
  block[static_cast<std::size_t>(axis)] = 1;
  return block;
}

Refusal refuse_parameters(const NodeView& node, const Names& names) {
  if (!node.has(names.scale)) return str(names.scale, " is missing");
  if (node.is_tensor(names.scale)) {
    const DType dtype = node.tensor(names.scale).dtype;
    if (dtype != DType::f32 && dtype != DType::f64)
      return str(names.scale, " is ", name(dtype), ", expected f32 or f64");
  }
  if (node.has(names.zero) && node.is_tensor(names.zero)) {
    const DType dtype = node.tensor(names.zero).dtype;
    if (dtype != DType::f32 && dtype != DType::i8 && dtype != DType::u8 && dtype != DType::i32 && dtype != DType::i64)
      return str(names.zero, " is ", name(dtype), ", expected f32 or an integer");
  }
  if (node.tensor("input").rank() > kMaxRank) return str("input has more than ", kMaxRank, " dimensions");
  return {};
}

template <const Names& names>
Refusal refuse_quantize(const NodeView& node) {
  if (node.tensor("input").dtype != DType::f32) return str("input is ", name(node.tensor("input").dtype));
  if (!is_byte(node.output().dtype)) return str("the output is ", name(node.output().dtype), ", expected i8 or u8");
  return refuse_parameters(node, names);
}

template <const Names& names>
Refusal refuse_dequantize(const NodeView& node) {
  if (!is_byte(node.tensor("input").dtype)) return str("input is ", name(node.tensor("input").dtype));
  if (node.output().dtype != DType::f32) return str("the output is ", name(node.output().dtype), ", expected f32");
  return refuse_parameters(node, names);
}

std::vector<Shape> shape_of_input(const Call& call) { return {call.tensor("input").shape()}; }

void take_block(const Sizes& block, std::int64_t* to) { std::copy(block.begin(), block.end(), to); }

std::int64_t bound(const Call& call, std::string_view argument, bool lower) {
  const std::int64_t least = call.output_dtype() == DType::i8 ? -128 : 0, most = least + 255;
  if (!call.has(argument)) return lower ? least : most;
  const double value = call.scalar(argument).to_double();
  GRAFT_CHECK(InvalidArgument,
              value >= static_cast<double>(least) && value <= static_cast<double>(most) && value == std::trunc(value),
              call.target(), ": ", argument, " is ", value, ", expected a number of ", name(call.output_dtype()));
  return static_cast<std::int64_t>(value);
}

template <const Names& names, Blocking blocking, bool quantizes>
std::vector<Tensor> lower_affine(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& given = call.tensor("input");
  // With one set of parameters for all elements, these may be in any memory order.
  const bool flat = blocking == Blocking::whole && is_dense(given.desc) && given.numel() > 0;
  const Tensor out =
      flat ? lowering.allocate_like(call.output_dtype(), given) : lowering.allocate(call.output_dtype(), shapes[0]);
  if (out.numel() == 0) return {out};
  const auto as_line = [](Tensor tensor) {
    tensor.desc = TensorDesc(tensor.dtype(), Shape{tensor.numel()});
    return tensor;
  };
  const Tensor input = flat ? as_line(given) : lowering.contiguous(given);
  const Sizes block = flat ? Sizes{given.numel()} : block_of(call, blocking);
  const Shape blocks = blocks_of(input.shape(), block, call);
  AffineAttrs attrs;
  take_block(block, attrs.block);
  std::vector<Tensor> inputs = {input};
  const auto take = [&](std::string_view argument) {
    const Tensor& tensor = call.tensor(argument);
    GRAFT_CHECK(InvalidArgument, tensor.numel() == blocks.numel(), call.target(), ": ", argument, " has ",
                tensor.numel(), " elements for ", blocks.numel(), " blocks of a tensor of shape ", input.shape().str());
    inputs.push_back(lowering.contiguous(tensor));
  };
  if (call.is_tensor(names.scale)) {
    take(names.scale);
    attrs.has_scale = 1;
  } else {
    attrs.scale = call.scalar(names.scale).to_double();
  }
  if (call.has(names.zero) && call.is_tensor(names.zero)) {
    take(names.zero);
    attrs.has_zero = 1;
  } else if (call.has(names.zero)) {
    attrs.zero = call.integer(names.zero);
  }
  if (quantizes) {
    attrs.low = bound(call, names.low, true);
    attrs.high = bound(call, names.high, false);
  }
  lowering.launch(quantizes ? kQuantizeAffine : kDequantizeAffine, std::move(inputs), {flat ? as_line(out) : out},
                  attrs);
  return {out};
}

// --- torchao.choose_qparams_affine, quantized_decomposed.choose_qparams ---

Refusal refuse_choose(const NodeView& node) {
  if (node.tensor("input").dtype != DType::f32) return str("input is ", name(node.tensor("input").dtype));
  if (node.tensor("input").rank() > kMaxRank) return str("input has more than ", kMaxRank, " dimensions");
  if (node.output_count() != 2) return "expected two outputs";
  const DType scale = node.output(0).dtype, zero = node.output(1).dtype;
  if (scale != DType::f32 && scale != DType::f64) return str("the scale is ", name(scale), ", expected f32 or f64");
  if (zero != DType::f32 && zero != DType::i8 && zero != DType::u8 && zero != DType::i16 && zero != DType::i32 &&
      zero != DType::i64)
    return str("the zero point is ", name(zero));
  return {};
}

Refusal refuse_choose_affine(const NodeView& node) {
  if (!node.has("quant_min") || !node.has("quant_max")) return "quant_min or quant_max is missing";
  const std::string& mapping = node.arg("mapping_type").s;
  if (mapping != "SYMMETRIC" && mapping != "SYMMETRIC_NO_CLIPPING_ERR" && mapping != "ASYMMETRIC")
    return str("mapping_type is ", mapping);
  return refuse_choose(node);
}

std::vector<Shape> choose_affine_shape(const Call& call) {
  const Shape& input = call.tensor("input").shape();
  const Sizes block = call.integers("block_size");
  const Shape blocks = blocks_of(input, block, call);
  GRAFT_CHECK(InvalidArgument, input.numel() > 0, call.target(), ": a tensor of shape ", input.str(), " has no range");
  // PyTorch treats a reduction over no dimension as over all of them here.
  GRAFT_CHECK(InvalidArgument, std::ranges::any_of(block, [](std::int64_t b) { return b > 1; }), call.target(),
              ": blocks of one element have no range");
  if (call.boolean("keepdim")) return {blocks, blocks};
  Shape out;
  for (int d = 0; d < input.rank(); ++d) {
    const std::int64_t b = block[static_cast<std::size_t>(d)];
    if (b == 1 || b != input[d]) out.push_back(blocks[d]);
  }
  return {out, out};
}

std::vector<Shape> choose_tensor_shape(const Call& call) {
  GRAFT_CHECK(InvalidArgument, call.tensor("input").numel() > 0, call.target(), ": an empty tensor has no range");
  return {Shape{1}, Shape{1}};
}

std::vector<Tensor> launch_choose(const Call& call, std::span<const Shape> shapes, const ChooseAffineAttrs& attrs,
                                  Lowering& lowering) {
  const Tensor scale = lowering.allocate(call.output_dtype(0), shapes[0]);
  const Tensor zero = lowering.allocate(call.output_dtype(1), shapes[1]);
  if (scale.numel() > 0)
    lowering.launch(kChooseAffine, {lowering.contiguous(call.tensor("input"))}, {scale, zero}, attrs);
  return {scale, zero};
}

std::vector<Tensor> lower_choose_affine(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  ChooseAffineAttrs attrs;
  take_block(call.integers("block_size"), attrs.block);
  attrs.low = call.scalar("quant_min").to_double();
  attrs.high = call.scalar("quant_max").to_double();
  attrs.least_scale =
      call.has("eps") ? call.scalar("eps").to_double() : static_cast<double>(std::numeric_limits<float>::min());
  const std::string_view mapping = call.text("mapping_type");
  attrs.mapping = mapping == "SYMMETRIC"    ? AffineMapping::symmetric
                  : mapping == "ASYMMETRIC" ? AffineMapping::asymmetric
                                            : AffineMapping::symmetric_no_clipping;
  return launch_choose(call, shapes, attrs, lowering);
}

std::vector<Tensor> lower_choose_tensor(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  ChooseAffineAttrs attrs;
  take_block(block_of(call, Blocking::whole), attrs.block);
  attrs.low = call.scalar("quant_min").to_double();
  attrs.high = call.scalar("quant_max").to_double();
  attrs.least_scale = call.real("eps");
  attrs.mapping = AffineMapping::asymmetric;
  return launch_choose(call, shapes, attrs, lowering);
}

// --- aten._int_mm ---

Refusal refuse_int_mm(const NodeView& node) {
  const ir::Value &a = node.tensor("self"), &b = node.tensor("mat2");
  if (!is_byte(a.dtype)) return str("self is ", name(a.dtype));
  if (b.dtype != DType::i8) return str("mat2 is ", name(b.dtype), ", expected i8");
  if (a.rank() != 2 || b.rank() != 2) return "expected two matrices";
  if (node.output().dtype != DType::i32) return str("the output is ", name(node.output().dtype));
  return {};
}

std::vector<Shape> int_mm_shape(const Call& call) {
  const Shape &a = call.tensor("self").shape(), &b = call.tensor("mat2").shape();
  GRAFT_CHECK(InvalidArgument, a[1] == b[0], "matrices of sizes ", a.str(), " and ", b.str(),
              " cannot be multiplied: ", a[1], " columns against ", b[0], " rows");
  return {Shape{a[0], b[1]}};
}

std::vector<Tensor> lower_int_mm(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(DType::i32, shapes[0]);
  const Tensor& a = call.tensor("self");
  if (out.numel() == 0) return {out};
  if (a.size(1) == 0) return {lowering.full(DType::i32, shapes[0], Scalar::of(std::int64_t{0}))};
  QuantizedAttrs attrs;
  attrs.group = a.size(1);
  std::vector<Tensor> inputs = {lowering.contiguous(a),
                                lowering.contiguous(permuted(call.tensor("mat2"), std::array{1, 0}))};
  const std::int64_t scratch = quantized_matmul_scratch_bytes(attrs, inputs[0].desc, lowering.max_tasks());
  lowering.launch(kQuantizedMatmul, std::move(inputs), {out}, attrs, scratch);
  return {out};
}

// --- operators made by the pass ---

Refusal refuse_quantized_parameters(const NodeView& node) {
  for (const std::string_view argument : {"weight_scale", "input_scale"}) {
    if (!node.has(argument) || !node.is_tensor(argument)) continue;
    const DType dtype = node.tensor(argument).dtype;
    if (dtype != DType::f32 && (argument == "weight_scale" || dtype != DType::f64))
      return str(argument, " is ", name(dtype));
  }
  for (const std::string_view argument : {"weight_zero", "input_zero"}) {
    if (!node.has(argument) || !node.is_tensor(argument)) continue;
    const DType dtype = node.tensor(argument).dtype;
    if (dtype != DType::i8 && dtype != DType::i32 && dtype != DType::i64) return str(argument, " is ", name(dtype));
  }
  if (node.has("bias") && (node.tensor("bias").dtype != DType::f32 || node.tensor("bias").rank() > 1))
    return str("bias is ", node.tensor("bias").str());
  if (node.output().dtype != DType::f32) return str("the output is ", name(node.output().dtype));
  return {};
}

Refusal refuse_quantized_linear(const NodeView& node) {
  const ir::Value &input = node.tensor("input"), &weight = node.tensor("weight");
  if (input.dtype != DType::f32 && !is_byte(input.dtype)) return str("input is ", name(input.dtype));
  if (input.rank() < 1) return "input has rank 0";
  const auto bits = node.constant("bits"), group = node.constant("group");
  if (!bits || (*bits != 4 && *bits != 8)) return "bits must be 4 or 8";
  if (!group || *group <= 0) return "group must be known and positive";
  if (*bits == 4 && *group % simd::kNibbleBlock != 0)
    return str("groups of ", *group, " elements of 4 bits, expected a multiple of ", simd::kNibbleBlock);
  if (weight.rank() != 2 || weight.dtype != (*bits == 8 ? DType::i8 : DType::u8))
    return str("weight is ", weight.str());
  return refuse_quantized_parameters(node);
}

Refusal refuse_quantized_conv(const NodeView& node) {
  const ir::Value &input = node.tensor("input"), &weight = node.tensor("weight");
  if (!is_byte(input.dtype)) return str("input is ", name(input.dtype));
  if (input.rank() < 3 || input.rank() > 5 || weight.rank() != input.rank())
    return str("input has rank ", input.rank(), ", weight ", weight.rank());
  if (weight.dtype != DType::i8) return str("weight is ", name(weight.dtype));
  if (node.constant("transposed") != 0) return "transposed convolutions have no product of integers";
  return refuse_quantized_parameters(node);
}

std::vector<Shape> quantized_linear_shape(const Call& call) {
  const Shape &input = call.tensor("input").shape(), &weight = call.tensor("weight").shape();
  const std::int64_t depth = weight[1] * 8 / call.integer("bits"), group = call.integer("group");
  GRAFT_CHECK(InvalidArgument, input[input.rank() - 1] == depth, "input ", input.str(), " and a weight of ", weight[0],
              " rows of ", depth, " elements cannot be multiplied");
  GRAFT_CHECK(InvalidArgument, depth % group == 0, "rows of ", depth, " elements do not divide into groups of ", group);
  Shape out = input;
  out[out.rank() - 1] = weight[0];
  if (call.has("bias")) expanded(call.tensor("bias"), out);
  return {out};
}

// Accepts the parameters as inputs or numbers; `rows` and `blocks` bound how many the input and the weight may have.
void take_parameters(const Call& call, std::int64_t rows, std::int64_t blocks, Lowering& lowering,
                     QuantizedAttrs& attrs, std::vector<Tensor>& inputs) {
  const auto take = [&](std::string_view argument, std::int64_t count, std::int32_t& has) {
    const Tensor& tensor = call.tensor(argument);
    GRAFT_CHECK(InvalidArgument, tensor.numel() == 1 || tensor.numel() == count, argument, " has ", tensor.numel(),
                " elements, expected 1 or ", count);
    inputs.push_back(lowering.contiguous(tensor));
    has = 1;
  };
  const auto number = [&](std::string_view argument) {
    const std::int64_t value = call.integer(argument);
    GRAFT_CHECK(InvalidArgument, value > -65536 && value < 65536, argument, " is ", value,
                ", expected less than 65536");
    return static_cast<std::int32_t>(value);
  };
  if (call.is_tensor("weight_scale"))
    take("weight_scale", blocks, attrs.has_weight_scale);
  else if (call.has("weight_scale"))
    attrs.weight_scale = static_cast<float>(call.real("weight_scale"));
  if (call.is_tensor("weight_zero"))
    take("weight_zero", blocks, attrs.has_weight_zero);
  else if (call.has("weight_zero"))
    attrs.weight_zero = number("weight_zero");
  if (call.is_tensor("input_scale"))
    take("input_scale", rows, attrs.has_input_scale);
  else if (call.has("input_scale"))
    attrs.input_scale = static_cast<float>(call.real("input_scale"));
  if (call.is_tensor("input_zero"))
    take("input_zero", rows, attrs.has_input_zero);
  else if (call.has("input_zero"))
    attrs.input_zero = number("input_zero");
}

std::vector<Tensor> lower_quantized_linear(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor &input = call.tensor("input"), &weight = call.tensor("weight");
  const Tensor out = lowering.allocate(DType::f32, shapes[0]);
  if (out.numel() == 0) return {out};
  QuantizedAttrs attrs;
  attrs.bits = static_cast<std::int32_t>(call.integer("bits"));
  attrs.group = call.integer("group");
  const std::int64_t columns = weight.size(0), depth = weight.size(1) * 8 / attrs.bits, rows = out.numel() / columns;
  std::vector<Tensor> inputs = {*try_reshape(lowering.contiguous(input), Shape{rows, depth}),
                                lowering.contiguous(weight)};
  take_parameters(call, rows, columns * (depth / attrs.group), lowering, attrs, inputs);
  const Tensor flat = *try_reshape(out, Shape{rows, columns});
  if (call.has("bias")) {
    inputs.push_back(expanded(call.tensor("bias"), flat.shape()));
    attrs.has_bias = 1;
  }
  const std::int64_t scratch = quantized_matmul_scratch_bytes(attrs, inputs[0].desc, lowering.max_tasks());
  lowering.launch(kQuantizedMatmul, std::move(inputs), {flat}, attrs, scratch);
  return {out};
}

std::vector<Shape> quantized_conv_shape(const Call& call) {
  return {convolution_sizes(call, call.tensor("weight").shape()).out};
}

std::vector<Tensor> lower_quantized_conv(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(DType::f32, shapes[0]);
  if (out.numel() == 0) return {out};
  const ConvolutionSizes conv = convolution_sizes(call, call.tensor("weight").shape());
  const Tensor weight = with_three_spatial(lowering.contiguous(call.tensor("weight")), conv.spatial);
  QuantizedConvAttrs attrs;
  attrs.conv = conv.attrs;
  attrs.quantized.group = weight.numel() / weight.size(0);
  std::vector<Tensor> inputs = {with_three_spatial(lowering.contiguous(call.tensor("input")), conv.spatial), weight};
  take_parameters(call, 1, weight.size(0), lowering, attrs.quantized, inputs);
  if (call.has("bias")) {
    inputs.push_back(lowering.contiguous(call.tensor("bias")));
    attrs.quantized.has_bias = 1;
  }
  const std::int64_t scratch = quantized_conv_scratch_bytes(weight.desc, lowering.max_tasks());
  lowering.launch(kQuantizedConv, std::move(inputs), {with_three_spatial(out, conv.spatial)}, attrs, scratch);
  return {out};
}

Refusal refuse_pack(const NodeView& node) {
  const ir::Value& weight = node.tensor("weight");
  if (weight.dtype != DType::i8 || weight.rank() != 2) return str("weight is ", weight.str());
  return node.output().dtype == DType::u8 ? Refusal() : str("the output is ", name(node.output().dtype));
}

std::vector<Shape> pack_shape(const Call& call) {
  const Shape& weight = call.tensor("weight").shape();
  GRAFT_CHECK(InvalidArgument, weight[1] % simd::kNibbleBlock == 0, "rows of ", weight[1],
              " elements do not divide into blocks of ", simd::kNibbleBlock);
  return {Shape{weight[0], weight[1] / 2}};
}

std::vector<Tensor> lower_pack(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(DType::u8, shapes[0]);
  if (out.numel() > 0) lowering.launch(kPackInt4, {lowering.contiguous(call.tensor("weight"))}, {out});
  return {out};
}

constexpr Names kAffine, kChannels{"scales", "zero_points"};

// torchao states the type of the values besides that of the tensor; here they must be equal.
Refusal refuse_dequantize_affine(const NodeView& node) {
  const ir::Arg& stated = node.arg("input_dtype");
  const DType dtype = node.tensor("input").dtype;
  if (stated.kind == ir::Arg::Kind::dtype && static_cast<DType>(stated.i) != dtype)
    return str("input_dtype is ", name(static_cast<DType>(stated.i)), " but input is ", name(dtype));
  return refuse_dequantize<kAffine>(node);
}

}  // namespace

std::span<const Operator> quantize_operators() {
  static constexpr Operator kOperators[] = {
      {"torchao.choose_qparams_affine.default", refuse_choose_affine, choose_affine_shape, lower_choose_affine, true},
      {"torchao.quantize_affine.default", refuse_quantize<kAffine>, shape_of_input,
       lower_affine<kAffine, Blocking::given, true>, true},
      {"torchao.dequantize_affine.default", refuse_dequantize_affine, shape_of_input,
       lower_affine<kAffine, Blocking::given, false>, true},
      {"quantized_decomposed.choose_qparams.tensor", refuse_choose, choose_tensor_shape, lower_choose_tensor},
      {"quantized_decomposed.quantize_per_tensor.default", refuse_quantize<kAffine>, shape_of_input,
       lower_affine<kAffine, Blocking::whole, true>},
      {"quantized_decomposed.quantize_per_tensor.tensor", refuse_quantize<kAffine>, shape_of_input,
       lower_affine<kAffine, Blocking::whole, true>},
      {"quantized_decomposed.quantize_per_channel.default", refuse_quantize<kChannels>, shape_of_input,
       lower_affine<kChannels, Blocking::axis, true>},
      {"quantized_decomposed.dequantize_per_tensor.default", refuse_dequantize<kAffine>, shape_of_input,
       lower_affine<kAffine, Blocking::whole, false>},
      {"quantized_decomposed.dequantize_per_tensor.tensor", refuse_dequantize<kAffine>, shape_of_input,
       lower_affine<kAffine, Blocking::whole, false>},
      {"quantized_decomposed.dequantize_per_channel.default", refuse_dequantize<kChannels>, shape_of_input,
       lower_affine<kChannels, Blocking::axis, false>},
      {"aten._int_mm.default", refuse_int_mm, int_mm_shape, lower_int_mm, true},
      {"graft.quantized_linear", refuse_quantized_linear, quantized_linear_shape, lower_quantized_linear},
      {"graft.quantized_conv", refuse_quantized_conv, quantized_conv_shape, lower_quantized_conv},
      {"graft.pack_int4", refuse_pack, pack_shape, lower_pack},
  };
  return kOperators;
}

}  // namespace graft
