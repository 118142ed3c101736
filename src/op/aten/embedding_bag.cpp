// Sums, means and maxima of rows of a table. PyTorch's other results, which training needs, are not computed.
#include "kernel/index/embedding_bag.h"

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/common.h"

namespace graft {
namespace {

Refusal refuse_bag(const NodeView& node) {
  const ir::Value &weight = node.tensor("weight"), &indices = node.tensor("indices"), &offsets = node.tensor("offsets");
  if (weight.rank() != 2 || indices.rank() != 1 || offsets.rank() != 1)
    return str("weight, indices and offsets have ranks ", weight.rank(), ", ", indices.rank(), " and ", offsets.rank(),
               ", expected 2, 1 and 1");
  if (!is_float(weight.dtype)) return str("weight is ", name(weight.dtype));
  for (const ir::Value* value : {&indices, &offsets})
    if (value->dtype != DType::i64 && value->dtype != DType::i32) return str("indices of dtype ", name(value->dtype));
  const std::optional<std::int64_t> mode = node.constant("mode");
  if (!mode || *mode < 0 || *mode > 2) return "mode must be 0, 1 or 2";
  if (node.has("per_sample_weights") && *mode != 0) return "per_sample_weights only with mode 0 (sum)";
  for (std::size_t i = 1; i < node.output_count(); ++i)
    if (node.output_is_read(i)) return str("result ", i, " is read; only result 0 is computed");
  return {};
}

std::vector<Shape> bag_shape(const Call& call) {
  const std::int64_t offsets = call.tensor("offsets").size(0);
  const bool last_end = call.boolean("include_last_offset");
  GRAFT_CHECK(InvalidArgument, !last_end || offsets > 0, "include_last_offset: offsets must have at least one entry");
  if (call.has("per_sample_weights"))
    GRAFT_CHECK(InvalidArgument, call.tensor("per_sample_weights").shape() == call.tensor("indices").shape(),
                "per_sample_weights has size ", call.tensor("per_sample_weights").shape().str(), ", indices ",
                call.tensor("indices").shape().str());
  std::vector<Shape> shapes{Shape{offsets - (last_end ? 1 : 0), call.tensor("weight").size(1)}};
  for (std::size_t i = 1; i < call.output_count(); ++i) shapes.push_back(call.least_shape(i));
  return shapes;
}

std::vector<Tensor> bag_lower(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& weight = call.tensor("weight");
  const DType dtype = weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto as = [&](const Tensor& t, DType to) { return lowering.contiguous(lowering.cast(t, to)); };
  EmbeddingBagAttrs attrs;
  attrs.mode = static_cast<BagMode>(call.integer("mode"));
  attrs.padding = call.integer("padding_idx");
  attrs.weighted = call.has("per_sample_weights");
  if (attrs.padding < 0 && attrs.padding != -1) attrs.padding += weight.size(0);
  // Where indices follow the last offset, eager PyTorch leaves them out in the kernel that sums rows of f32, f16 and
  // bf16 without padding; the others have them in the last bag (index_select_add, make_bag_size_out in its
  // EmbeddingBag.cpp).
  attrs.last_end = call.boolean("include_last_offset") && attrs.mode != BagMode::max && attrs.padding == -1 &&
                   weight.dtype() != DType::f64;
  std::vector<Tensor> inputs{as(weight, dtype), as(call.tensor("indices"), DType::i64),
                             as(call.tensor("offsets"), DType::i64)};
  if (attrs.weighted) inputs.push_back(as(call.tensor("per_sample_weights"), dtype));
  const Tensor out = lowering.allocate(dtype, shapes[0]);
  if (out.numel() > 0) lowering.launch(kEmbeddingBag, inputs, {out}, attrs);
  std::vector<Tensor> results{lowering.cast(out, call.output_dtype())};
  for (std::size_t i = 1; i < shapes.size(); ++i) results.push_back(lowering.allocate(call.output_dtype(i), shapes[i]));
  return results;
}

}  // namespace

std::span<const Operator> embedding_bag_operators() {
  static constexpr Operator kOperators[] = {
      {"aten._embedding_bag.default", refuse_bag, bag_shape, bag_lower},
      {"aten._embedding_bag_forward_only.default", refuse_bag, bag_shape, bag_lower},
  };
  return kOperators;
}

}  // namespace graft
