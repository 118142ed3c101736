// Scaled dot-product attention.
#include "kernel/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/common.h"
#include "op/ggml_ops.h"

namespace graft {
namespace {

bool has_kernel(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

Refusal refuse_attention(const NodeView& node) {
  const ir::Value& query = node.tensor("query");
  if (!has_kernel(query.dtype)) return str("query is ", name(query.dtype), ", expected f32, f16 or bf16");
  for (const std::string_view argument : {"query", "key", "value"}) {
    const ir::Value& v = node.tensor(argument);
    if (v.dtype != query.dtype) return str(argument, " is ", name(v.dtype), " but query is ", name(query.dtype));
    // Grouped heads need one more dimension.
    if (v.rank() < 2 || v.rank() > kMaxRank - 1) return str(argument, " has rank ", v.rank());
    const std::int64_t size = v.dims.back().max;
    if (size > simd::kMaxHeadSize) return str(argument, " has heads of size ", size, ", at most ", simd::kMaxHeadSize);
  }
  if (node.output().dtype != query.dtype) return str("the output is ", name(node.output().dtype));
  if (node.has("attn_mask")) {
    const ir::Value& mask = node.tensor("attn_mask");
    if (mask.dtype != DType::b8 && !has_kernel(mask.dtype)) return str("attn_mask is ", name(mask.dtype));
    if (mask.rank() < 2) return str("attn_mask has rank ", mask.rank(), ", expected at least 2");
  }
  const ir::Arg& dropout = node.arg("dropout_p");
  const bool no_dropout = (dropout.kind == ir::Arg::Kind::real && dropout.f == 0) ||
                          (dropout.kind == ir::Arg::Kind::integer && dropout.i == 0) ||
                          dropout.kind == ir::Arg::Kind::none;
  if (!no_dropout) return "dropout_p is not 0";
  if (node.output_count() > 1 && node.output(1).dtype != DType::f32) {
    return str("the logsumexp output is ", name(node.output(1).dtype), ", expected f32");
  }
  return {};
}

struct Sizes {
  Shape batch;  // of the output, heads last
  std::int64_t t = 0, s = 0, d = 0, dv = 0;
  std::int64_t group = 1;  // query heads per head of key and value
};

Shape leading(const Shape& shape) {
  Shape out;
  for (int i = 0; i + 2 < shape.rank(); ++i) out.push_back(shape[i]);
  return out;
}

Shape broadcast(const Shape& a, const Shape& b, std::string_view what) {
  Shape out = a.rank() >= b.rank() ? a : b;
  for (int i = 1; i <= std::min(a.rank(), b.rank()); ++i) {
    const std::int64_t x = a[a.rank() - i], y = b[b.rank() - i];
    GRAFT_CHECK(InvalidArgument, x == y || x == 1 || y == 1, "batch dimensions ", a.str(),
                " of query cannot be broadcast", " with ", b.str(), " of ", what);
    out[out.rank() - i] = x == 1 ? y : x;
  }
  return out;
}

// The leading dims of key or value with each head repeated.
Shape repeated_heads(Shape batch, std::int64_t group) {
  if (group > 1) batch[batch.rank() - 1] *= group;
  return batch;
}

Sizes sizes_of(const Call& call) {
  const Shape& q = call.tensor("query").shape();
  const Shape& k = call.tensor("key").shape();
  const Shape& v = call.tensor("value").shape();
  Sizes sizes;
  sizes.t = q[q.rank() - 2];
  sizes.d = q[q.rank() - 1];
  sizes.s = k[k.rank() - 2];
  sizes.dv = v[v.rank() - 1];
  GRAFT_CHECK(InvalidArgument, k[k.rank() - 1] == sizes.d, "key of size ", k.str(), " and query of size ", q.str(),
              " have heads of different sizes");
  GRAFT_CHECK(InvalidArgument, v[v.rank() - 2] == sizes.s, "value of size ", v.str(), " has ", v[v.rank() - 2],
              " rows, but key has ", sizes.s);
  if (call.has("enable_gqa") && call.boolean("enable_gqa")) {
    GRAFT_CHECK(InvalidArgument, q.rank() >= 3 && k.rank() >= 3 && v.rank() >= 3,
                "grouped heads need a head dimension");
    const std::int64_t heads = q[q.rank() - 3], shared = k[k.rank() - 3];
    GRAFT_CHECK(InvalidArgument, shared > 0 && heads % shared == 0 && v[v.rank() - 3] == shared, heads,
                " query heads cannot be divided among ", shared, " key and ", v[v.rank() - 3], " value heads");
    sizes.group = heads / shared;
  }
  sizes.batch = broadcast(leading(q), repeated_heads(leading(k), sizes.group), "key");
  sizes.batch = broadcast(sizes.batch, repeated_heads(leading(v), sizes.group), "value");
  return sizes;
}

Shape with(Shape batch, std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) batch.push_back(size);
  return batch;
}

std::vector<Shape> attention_shape(const Call& call) {
  const Sizes sizes = sizes_of(call);
  std::vector<Shape> shapes = {with(sizes.batch, {sizes.t, sizes.dv})};
  if (call.has("attn_mask")) expanded(call.tensor("attn_mask"), with(sizes.batch, {sizes.t, sizes.s}));
  if (call.output_count() > 1) shapes.push_back(with(sizes.batch, {sizes.t}));
  return shapes;
}

// [..., H, rows, size] as [..., H / group, group, rows, size].
Tensor split_heads(const Tensor& tensor, std::int64_t group) {
  Shape shape;
  for (int d = 0; d < tensor.rank(); ++d) {
    const bool heads = d == tensor.rank() - 3;
    shape.push_back(heads ? tensor.size(d) / group : tensor.size(d));
    if (heads) shape.push_back(group);
  }
  return *try_reshape(tensor, shape);
}

// Key or value, expanded to the output's batch; the queries of a group share its heads.
Tensor shared(const Tensor& tensor, const Sizes& sizes) {
  const int rank = tensor.rank();
  const std::int64_t rows = tensor.size(rank - 2), size = tensor.size(rank - 1);
  if (sizes.group == 1) return expanded(tensor, with(sizes.batch, {rows, size}));
  Shape batch = sizes.batch;
  batch[batch.rank() - 1] /= sizes.group;
  return expanded(split_heads(tensor, 1), with(batch, {sizes.group, rows, size}));
}

std::vector<Tensor> lower_attention(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Sizes sizes = sizes_of(call);
  const DType dtype = call.output_dtype();
  if (lowering.has_device() && shapes.size() == 1) {
    const std::optional<Tensor> mask = call.optional_tensor("attn_mask");
    device::Attention what{call.tensor("query"), call.tensor("key"), call.tensor("value")};
    what.mask = mask ? &*mask : nullptr;
    what.scale = call.has("scale") ? call.real("scale") : 1 / std::sqrt(static_cast<double>(sizes.d));
    what.causal = call.boolean("is_causal");
    const Tensor result = lowering.allocate(dtype, shapes[0]);
    if (device::attention(lowering, what, result)) return {result};
  }
  const auto grouped = [&](const Tensor& tensor) {
    return sizes.group == 1 ? tensor : split_heads(tensor, sizes.group);
  };
  std::vector<Tensor> inputs = {
      grouped(expanded(lowering.with_contiguous_rows(call.tensor("query")), with(sizes.batch, {sizes.t, sizes.d}))),
      shared(lowering.with_contiguous_rows(call.tensor("key")), sizes),
      shared(lowering.with_contiguous_rows(call.tensor("value")), sizes)};
  AttentionAttrs attrs;
  const bool given_scale = call.has("scale");
  attrs.scale = static_cast<float>(given_scale ? call.real("scale") : 1 / std::sqrt(static_cast<double>(sizes.d)));
  attrs.causal = call.boolean("is_causal") ? 1 : 0;
  attrs.in_bf16 = lowering.matmul_precision() == MatmulPrecision::medium ? 1 : 0;
  if (call.has("attn_mask")) {
    const Tensor& mask = call.tensor("attn_mask");
    inputs.push_back(grouped(expanded(mask, with(sizes.batch, {sizes.t, sizes.s}))));
    attrs.has_mask = 1;
  }
  // Heads of one token are adjacent, as in PyTorch's kernel, so that they can be merged without a copy.
  Tensor out;
  const int rank = shapes[0].rank();
  if (rank >= 3) {
    std::array<int, static_cast<std::size_t>(kMaxRank)> order{};
    for (int d = 0; d < rank; ++d) order[static_cast<std::size_t>(d)] = d;
    std::swap(order[static_cast<std::size_t>(rank - 3)], order[static_cast<std::size_t>(rank - 2)]);
    Shape memory = shapes[0];
    std::swap(memory[rank - 3], memory[rank - 2]);
    out = permuted(lowering.allocate(dtype, memory), {order.data(), static_cast<std::size_t>(rank)});
  } else {
    out = lowering.allocate(dtype, shapes[0]);
  }
  std::vector<Tensor> results = {out};
  std::vector<Tensor> outputs = {grouped(out)};
  if (shapes.size() > 1) {
    results.push_back(lowering.allocate(DType::f32, shapes[1]));
    outputs.push_back(results[1]);
  }
  const std::int64_t scratch =
      attention_scratch_bytes(inputs[0].desc, inputs[1].desc, inputs[2].desc, attrs, lowering.max_threads());
  lowering.launch(kAttention, std::move(inputs), std::move(outputs), attrs, scratch);
  return results;
}

}  // namespace

std::span<const Operator> attention_operators() {
  static constexpr Operator kOperators[] = {
      {"aten.scaled_dot_product_attention.default", refuse_attention, attention_shape, lower_attention, true},
      {"aten._scaled_dot_product_flash_attention_for_cpu.default", refuse_attention, attention_shape, lower_attention,
       true},
  };
  return kOperators;
}

}  // namespace graft
