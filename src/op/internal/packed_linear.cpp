// Linear layers with packed weights, made by src/pass/graph/linear.cpp: 1x1 convolutions over rows.
#include "kernel/conv/packed_conv.h"

#include <array>
#include <vector>

#include "base/check.h"
#include "kernel/matmul/packed_pairs.h"
#include "lowering/lowering.h"
#include "op/aten/linear.h"
#include "op/operator.h"

namespace graft {
namespace {

bool is_f32(const ir::Value& value, int rank) { return value.dtype == DType::f32 && value.rank() == rank; }

// A matrix [rows, columns] as a tensor [1, columns, 1, 1, rows]: its columns become channels.
Tensor rows_as_positions(const Tensor& matrix) {
  Tensor out = matrix;
  out.desc = TensorDesc(matrix.dtype(), Shape{1, matrix.size(1), 1, 1, matrix.size(0)});
  const std::int64_t all = matrix.size(0) * matrix.stride(0);
  out.desc.strides = {all, matrix.stride(1), all, all, matrix.stride(0)};
  return out;
}

// The weight [N, K] as a convolution's weight.
Shape as_conv_weight(const Shape& weight) { return {weight[0], weight[1], 1, 1, 1}; }

Refusal without_bf16(const NodeView& node) {
  return node.constant("in_bf16") == 0 || simd::packed_pairs() != nullptr ? "" : "this CPU does not multiply bf16";
}

// The number of 32-bit words of the packed weight [N, K].
std::int64_t packed_words(const Shape& weight, bool in_bf16) {
  return in_bf16 ? packed_pair_words(weight[0], weight[1], *simd::packed_pairs())
                 : packed_conv_floats(as_conv_weight(weight), 1);
}

// --- graft.pack_linear(weight, in_bf16) ---

Refusal refuse_pack(const NodeView& node) {
  const ir::Value& weight = node.tensor("weight");
  if (const Refusal refusal = without_bf16(node); !refusal.empty()) return refusal;
  return is_f32(weight, 2) ? Refusal() : str("weight is ", weight.str(), ", expected f32 of rank 2");
}

std::vector<Shape> pack_shape(const Call& call) {
  const Shape& weight = call.tensor("weight").shape();
  GRAFT_CHECK(InvalidArgument, weight.numel() > 0, "weight has size ", weight.str(), ", expected at least 1 each");
  return {{packed_words(weight, call.integer("in_bf16") != 0)}};
}

std::vector<Tensor> lower_pack(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(DType::f32, shapes[0]);
  Tensor weight = lowering.contiguous(as_stored(call.tensor("weight")));
  if (call.integer("in_bf16") != 0) {
    lowering.launch(kPackPairs, {weight}, {out});
    return {out};
  }
  weight.desc = TensorDesc(DType::f32, as_conv_weight(weight.shape()));
  lowering.launch(kPackConv, {weight}, {out}, PackConvAttrs{});
  return {out};
}

StoredUse stored_use_of_pack(const NodeView& node, std::string_view argument) {
  return argument == "weight" && node.constant("in_bf16") != 0 ? StoredUse::rows : StoredUse::none;
}

StoredUse stored_use_of_packed(const NodeView&, std::string_view argument) {
  return argument == "rows_weight" ? StoredUse::rows : StoredUse::none;
}

// --- graft.packed_linear(input, weight, weight_size, bias?, in_bf16, rows_weight?): the arguments of aten.linear;
// weight_size, the sizes of the unpacked weight; whether it holds pairs of bf16, to which the input is rounded too; the
// unpacked weight, where the input may have so few rows that they are not rounded ---

Refusal refuse_packed(const NodeView& node) {
  if (const Refusal refusal = without_bf16(node); !refusal.empty()) return refusal;
  const ir::Value& input = node.tensor("input");
  if (input.dtype != DType::f32 || input.rank() < 1)
    return str("input is ", input.str(), ", expected f32 of rank 1 up");
  if (!is_f32(node.tensor("weight"), 1)) return str("weight is ", node.tensor("weight").str(), ", expected packed f32");
  if (node.has("bias") && !is_f32(node.tensor("bias"), 1))
    return str("bias is ", node.tensor("bias").str(), ", expected f32 of rank 1");
  if (node.has("rows_weight") && !is_f32(node.tensor("rows_weight"), 2))
    return str("rows_weight is ", node.tensor("rows_weight").str(), ", expected f32 of rank 2");
  return {};
}

// [N, K].
Shape checked_size(const Call& call) {
  const std::vector<std::int64_t> sizes = call.integers("weight_size");
  GRAFT_CHECK(InvalidArgument, sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0, "weight_size has ", sizes.size(),
              " entries, expected two of at least 1");
  const Shape size = {sizes[0], sizes[1]};
  const Shape& weight = call.tensor("weight").shape();
  const std::int64_t words = packed_words(size, call.integer("in_bf16") != 0);
  GRAFT_CHECK(InvalidArgument, weight == Shape{words}, "weight has size ", weight.str(), ", that of ", size.str(),
              " has ", words, " elements packed");
  if (call.has("rows_weight")) {
    const Shape& rows = call.tensor("rows_weight").shape();
    GRAFT_CHECK(InvalidArgument, rows == size, "rows_weight has size ", rows.str(), ", expected ", size.str());
  }
  return size;
}

std::vector<Shape> packed_shape(const Call& call) {
  const Shape size = checked_size(call);
  Shape out = call.tensor("input").shape();
  GRAFT_CHECK(InvalidArgument, out[out.rank() - 1] == size[1], "input of size ", out.str(), " has ",
              out[out.rank() - 1], " columns, the weight ", size[1]);
  if (call.has("bias")) {
    const Shape& bias = call.tensor("bias").shape();
    GRAFT_CHECK(InvalidArgument, bias == Shape{size[0]}, "bias has size ", bias.str(), ", expected [", size[0], "]");
  }
  out[out.rank() - 1] = size[0];
  return {out};
}

std::vector<Tensor> lower_packed(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Shape size = checked_size(call);
  const Tensor out = lowering.allocate(DType::f32, shapes[0]);
  if (out.numel() == 0) return {out};
  const std::int64_t rows = out.numel() / size[0];
  const Tensor& input = call.tensor("input");
  const Shape matrix = {rows, size[1]};
  std::optional<Tensor> x = try_reshape(input, matrix);
  if (!x) x = try_reshape(lowering.contiguous(input), matrix);
  const Tensor result = *try_reshape(out, Shape{rows, size[0]});
  if (rows <= simd::kMaxDotRows && call.has("rows_weight")) {
    launch_linear(*x, call.tensor("rows_weight"), call.optional_tensor("bias"), result, lowering);
    return {out};
  }
  std::vector<Tensor> inputs = {rows_as_positions(*x), call.tensor("weight")};
  PackedConvAttrs attrs;
  if (call.has("bias")) {
    attrs.conv.has_bias = 1;
    inputs.push_back(lowering.contiguous(call.tensor("bias")));
  }
  const bool in_bf16 = call.integer("in_bf16") != 0;
  const std::int64_t scratch = in_bf16 ? packed_pair_scratch_bytes(inputs[0].desc)
                                       : packed_conv_scratch_bytes(inputs[0].desc, attrs, lowering.max_threads());
  lowering.launch(in_bf16 ? kPackedPairs : kPackedLinear, std::move(inputs), {rows_as_positions(result)}, attrs,
                  scratch);
  return {out};
}

}  // namespace

std::span<const Operator> packed_linear_operators() {
  static constexpr Operator kOperators[] = {
      {"graft.pack_linear", refuse_pack, pack_shape, lower_pack, false, false, false, stored_use_of_pack},
      {"graft.packed_linear", refuse_packed, packed_shape, lower_packed, false, false, false, stored_use_of_packed},
  };
  return kOperators;
}

}  // namespace graft
