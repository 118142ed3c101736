// Convolutions of one to three spatial dimensions, plain and transposed.
#include "kernel/conv/conv.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernel/matmul/matmul.h"
#include "lowering/lowering.h"
#include "op/aten/spatial.h"
#include "op/ggml_ops.h"
#include "op/operator.h"

namespace graft {
namespace {

using Sizes = std::vector<std::int64_t>;

bool has_vector_kernel(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

Refusal refuse_convolution(const NodeView& node) {
  const ir::Value &input = node.tensor("input"), &weight = node.tensor("weight");
  if (input.dtype == DType::b8) return "convolutions of bool are not supported";
  for (const std::string_view argument : {"weight", "bias"}) {
    if (!node.has(argument) || node.tensor(argument).dtype == input.dtype) continue;
    return str(argument, " is ", name(node.tensor(argument).dtype), " but input is ", name(input.dtype));
  }
  if (node.output().dtype != input.dtype)
    return str("the output is ", name(node.output().dtype), " but input is ", name(input.dtype));
  if (input.rank() < 3 || input.rank() > 5) return str("input has rank ", input.rank(), ", expected 3, 4 or 5");
  if (weight.rank() != input.rank())
    return str("weight has rank ", weight.rank(), " but input has rank ", input.rank());
  return {};
}

struct Convolution : ConvolutionSizes {
  Convolution(const Call& call, const Shape& weight) {
    const Shape& input = call.tensor("input").shape();
    spatial = input.rank() - 2;
    attrs.transposed = call.boolean("transposed") ? 1 : 0;
    attrs.groups = call.integer("groups");
    attrs.has_bias = call.has("bias") ? 1 : 0;
    take(call, "stride", 1, attrs.stride);
    take(call, "padding", 0, attrs.padding);
    take(call, "dilation", 1, attrs.dilation);
    std::int64_t output_padding[3] = {0, 0, 0};
    take(call, "output_padding", 0, output_padding);
    check_channels(input, weight);
    const std::int64_t channels = attrs.transposed != 0 ? weight[1] * attrs.groups : weight[0];
    out = {input[0], channels};
    for (int d = 0; d < spatial; ++d) {
      const auto i = static_cast<std::size_t>(3 - spatial + d);
      out.push_back(size_of(input[2 + d], weight[2 + d], i, output_padding[i], d));
    }
    if (call.has("bias")) {
      const Shape& bias = call.tensor("bias").shape();
      GRAFT_CHECK(InvalidArgument, bias == Shape{channels}, "bias has size ", bias.str(), ", expected [", channels,
                  "]");
    }
  }

 private:
  void take(const Call& call, std::string_view argument, std::int64_t least, std::int64_t* to) const {
    const Sizes given = call.integers(argument);
    GRAFT_CHECK(InvalidArgument, given.size() == 1 || given.size() == static_cast<std::size_t>(spatial), argument,
                " has ", given.size(), " entries for ", spatial, " spatial dimensions");
    for (int d = 0; d < spatial; ++d) {
      const std::int64_t value = given[given.size() == 1 ? 0 : static_cast<std::size_t>(d)];
      GRAFT_CHECK(InvalidArgument, value >= least && value <= std::numeric_limits<std::int32_t>::max(), argument,
                  " is ", value, ", expected ", least, " to 2147483647");
      to[3 - spatial + d] = value;
    }
  }

  void check_channels(const Shape& input, const Shape& weight) const {
    const std::int64_t groups = attrs.groups;
    GRAFT_CHECK(InvalidArgument, groups > 0, "groups is ", groups, ", expected at least 1");
    const bool transposed = attrs.transposed != 0;
    for (int d = 0; d < weight.rank(); ++d)
      GRAFT_CHECK(InvalidArgument, weight[d] > 0 && weight[d] <= std::numeric_limits<std::int32_t>::max(),
                  "weight has size ", weight.str(), ", expected 1 to 2147483647 in each dimension");
    GRAFT_CHECK(InvalidArgument, weight[0] % groups == 0, "weight has ", weight[0],
                " entries in dimension 0, which cannot be divided into ", groups, " groups");
    const bool fits = transposed ? input[1] == weight[0] : input[1] % groups == 0 && input[1] / groups == weight[1];
    GRAFT_CHECK(InvalidArgument, fits, "input of size ", input.str(), " and weight of size ", weight.str(),
                " do not fit for ", groups, " groups", transposed ? ", transposed" : "");
  }

  std::int64_t size_of(std::int64_t in, std::int64_t kernel, std::size_t i, std::int64_t output_padding,
                       int dim) const {
    GRAFT_CHECK(InvalidArgument, in > 0 && in <= std::numeric_limits<std::int32_t>::max(), "input has size ", in,
                " in spatial dimension ", dim, ", expected 1 to 2147483647");
    const std::int64_t reach = attrs.dilation[i] * (kernel - 1) + 1;
    if (attrs.transposed != 0) {
      GRAFT_CHECK(InvalidArgument, output_padding < std::max(attrs.stride[i], attrs.dilation[i]), "output_padding ",
                  output_padding, " is not smaller than stride ", attrs.stride[i], " or dilation ", attrs.dilation[i]);
      const std::int64_t size = ((in - 1) * attrs.stride[i] + output_padding - 2 * attrs.padding[i]) + reach;
      GRAFT_CHECK(InvalidArgument, size > 0, "spatial dimension ", dim, " of the output would have size ", size);
      return size;
    }
    const std::int64_t padded = in + 2 * attrs.padding[i];
    GRAFT_CHECK(InvalidArgument, padded >= reach, "the kernel covers ", reach, " elements of spatial dimension ", dim,
                ", which has ", padded, " with its padding");
    return (padded - reach) / attrs.stride[i] + 1;
  }
};

std::vector<Shape> convolution_shape(const Call& call) {
  return {Convolution(call, call.tensor("weight").shape()).out};
}

// Whether each output reads only the input at its own position.
bool is_pointwise(const ConvAttrs& attrs, const Shape& weight, const Shape& input, const Shape& out) {
  for (int d = 0; d < 3; ++d) {
    if (weight[2 + d] != 1 || attrs.padding[d] != 0 || input[2 + d] != out[2 + d]) return false;
    if (attrs.stride[d] != 1 && out[2 + d] != 1) return false;
  }
  return true;
}

Tensor reshaped(const Tensor& tensor, const Shape& shape, Lowering& lowering) {
  if (std::optional<Tensor> view = try_reshape(tensor, shape)) return *view;
  return *try_reshape(lowering.contiguous(tensor), shape);
}

// A product per sample and group: weight [O, C] times input [C, positions].
void launch_pointwise(const ConvAttrs& attrs, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                      const Tensor& out, Lowering& lowering) {
  const std::int64_t groups = attrs.groups, batch = x.size(0), channels = x.size(1) / groups;
  const std::int64_t rows = out.size(1) / groups, positions = x.size(2) * x.size(3) * x.size(4);
  Tensor a =
      *try_reshape(weight, attrs.transposed != 0 ? Shape{1, groups, channels, rows} : Shape{1, groups, rows, channels});
  if (attrs.transposed != 0) a = permuted(a, std::array{0, 1, 3, 2});
  std::vector<Tensor> inputs = {expanded(a, Shape{batch, groups, rows, channels}),
                                reshaped(x, Shape{batch, groups, channels, positions}, lowering)};
  if (bias)
    inputs.push_back(expanded(*try_reshape(*bias, Shape{1, groups, rows, 1}), {batch, groups, rows, positions}));
  MatmulAttrs product;
  product.has_bias = bias ? 1 : 0;
  const std::int64_t scratch = matmul_scratch_bytes(product, inputs[0].desc, inputs[1].desc);
  lowering.launch(kMatmul, std::move(inputs), {*try_reshape(out, Shape{batch, groups, rows, positions})}, product,
                  scratch);
}

std::vector<Tensor> lower_convolution(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Convolution conv(call, call.tensor("weight").shape());
  const ConvAttrs& attrs = conv.attrs;
  const Tensor result = lowering.allocate(call.output_dtype(), shapes[0]);
  if (result.numel() == 0) return {result};
  const Tensor x = with_three_spatial(call.tensor("input"), conv.spatial),
               out = with_three_spatial(result, conv.spatial);
  const Tensor weight = with_three_spatial(lowering.contiguous(call.tensor("weight")), conv.spatial);
  std::optional<Tensor> bias = call.optional_tensor("bias");
  if (bias) bias = lowering.contiguous(*bias);
  if (device::convolution(lowering, x, weight, bias ? &*bias : nullptr, attrs, out)) return {result};
  std::vector<Tensor> inputs = {x, weight};
  if (bias) inputs.push_back(*bias);
  if (!has_vector_kernel(x.dtype())) {
    lowering.launch(kPlainConv, std::move(inputs), {out}, attrs);
  } else if (is_pointwise(attrs, weight.shape(), x.shape(), out.shape())) {
    launch_pointwise(attrs, x, weight, bias, out, lowering);
  } else if (attrs.transposed == 0 && attrs.groups > 1 && weight.size(1) == 1) {
    const std::int64_t scratch = depthwise_scratch_bytes(weight.desc, out.desc, attrs, lowering.max_tasks());
    lowering.launch(kDepthwiseConv, std::move(inputs), {out}, attrs, scratch);
  } else {
    const std::int64_t scratch = conv_scratch_bytes(x.desc, weight.desc, out.desc, attrs, lowering.max_tasks());
    lowering.launch(kConv, std::move(inputs), {out}, attrs, scratch);
  }
  return {result};
}

}  // namespace

ConvolutionSizes convolution_sizes(const Call& call, const Shape& weight) { return Convolution(call, weight); }

std::span<const Operator> conv_operators() {
  static constexpr Operator kOperators[] = {
      {"aten.convolution.default", refuse_convolution, convolution_shape, lower_convolution},
  };
  return kOperators;
}

}  // namespace graft
