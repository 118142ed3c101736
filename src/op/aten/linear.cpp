// Matrix products: linear, addmm, mm, bmm, baddbmm, matmul, mv.
#include "op/aten/linear.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"
#include "kernel/matmul/block_matmul.h"
#include "kernel/matmul/matmul.h"
#include "lowering/lowering.h"
#include "op/ggml_ops.h"
#include "op/operator.h"

namespace graft {
namespace {

bool has_vector_kernel(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

// --- predicates ---

Refusal refuse_operands(const NodeView& node, std::string_view a, std::string_view b, std::string_view bias) {
  const ir::Value& first = node.tensor(a);
  const DType dtype = first.dtype;
  if (dtype == DType::b8) return "matrix products of bool are not supported";
  const auto differs = [&](std::string_view argument) -> Refusal {
    if (argument.empty() || !node.has(argument) || node.tensor(argument).dtype == dtype) return {};
    return str(argument, " is ", name(node.tensor(argument).dtype), " but ", a, " is ", name(dtype));
  };
  if (Refusal r = differs(b); !r.empty()) return r;
  if (Refusal r = differs(bias); !r.empty()) return r;
  if (node.output().dtype != dtype) {
    return str("the output is ", name(node.output().dtype), " but ", a, " is ", name(dtype));
  }
  for (const std::string_view argument : {a, b}) {
    // A vector may need one more dimension.
    if (node.tensor(argument).rank() > kMaxRank - 1)
      return str(argument, " has more than ", kMaxRank - 1, " dimensions");
  }
  return {};
}

Refusal refuse_rank(const NodeView& node, std::string_view argument, int rank) {
  const int found = node.tensor(argument).rank();
  return found == rank ? Refusal() : str(argument, " has rank ", found, ", expected ", rank);
}

Refusal refuse_linear(const NodeView& node) {
  if (Refusal r = refuse_operands(node, "input", "weight", "bias"); !r.empty()) return r;
  if (node.tensor("input").rank() < 1) return "input has rank 0";
  if (node.has("bias") && node.tensor("bias").rank() > 1) return "bias has more than one dimension";
  return refuse_rank(node, "weight", 2);
}

template <int rank>
Refusal refuse_product(const NodeView& node) {
  constexpr std::string_view kOther = "mat2";
  if (Refusal r = refuse_operands(node, "self", kOther, ""); !r.empty()) return r;
  if (Refusal r = refuse_rank(node, "self", rank); !r.empty()) return r;
  return refuse_rank(node, kOther, rank);
}

Refusal refuse_addmm(const NodeView& node) {
  if (Refusal r = refuse_operands(node, "mat1", "mat2", "self"); !r.empty()) return r;
  if (Refusal r = refuse_rank(node, "mat1", 2); !r.empty()) return r;
  return refuse_rank(node, "mat2", 2);
}

Refusal refuse_baddbmm(const NodeView& node) {
  if (Refusal r = refuse_operands(node, "batch1", "batch2", "self"); !r.empty()) return r;
  if (Refusal r = refuse_rank(node, "batch1", 3); !r.empty()) return r;
  return refuse_rank(node, "batch2", 3);
}

Refusal refuse_matmul(const NodeView& node) {
  if (Refusal r = refuse_operands(node, "self", "other", ""); !r.empty()) return r;
  if (node.tensor("self").rank() == 0 || node.tensor("other").rank() == 0) return "an operand has rank 0";
  return {};
}

Refusal refuse_mv(const NodeView& node) {
  if (Refusal r = refuse_operands(node, "self", "vec", ""); !r.empty()) return r;
  if (Refusal r = refuse_rank(node, "self", 2); !r.empty()) return r;
  return refuse_rank(node, "vec", 1);
}

// --- shapes ---

void check_inner(const Shape& a, std::int64_t k, const Shape& b, std::int64_t b_k) {
  GRAFT_CHECK(InvalidArgument, k == b_k, "matrices of sizes ", a.str(), " and ", b.str(), " cannot be multiplied: ", k,
              " columns against ", b_k, " rows");
}

// The batch sizes of two matrices (all but their last two dims), broadcast.
Shape batch_of(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank()) - 2;
  Shape out;
  for (int d = 0; d < rank; ++d) {
    const int from_a = d - (rank - (a.rank() - 2));
    const int from_b = d - (rank - (b.rank() - 2));
    const std::int64_t x = from_a < 0 ? 1 : a[from_a];
    const std::int64_t y = from_b < 0 ? 1 : b[from_b];
    GRAFT_CHECK(InvalidArgument, x == y || x == 1 || y == 1, "batch dimensions of ", a.str(), " and ", b.str(),
                " cannot be broadcast");
    out.push_back(x == 1 ? y : x);
  }
  return out;
}

Shape with_matrix(Shape batch, std::int64_t rows, std::int64_t cols) {
  batch.push_back(rows);
  batch.push_back(cols);
  return batch;
}

Shape as_matrix(const Shape& shape, bool is_row) {
  if (shape.rank() != 1) return shape;
  return is_row ? Shape{1, shape[0]} : Shape{shape[0], 1};
}

// The product's shape with vectors taken as matrices.
Shape full_shape(const Shape& a, const Shape& b) {
  const Shape left = as_matrix(a, true), right = as_matrix(b, false);
  check_inner(a, left[left.rank() - 1], b, right[right.rank() - 2]);
  return with_matrix(batch_of(left, right), left[left.rank() - 2], right[right.rank() - 1]);
}

Shape product_shape(const Shape& a, const Shape& b) {
  const Shape full = full_shape(a, b);
  Shape out;
  for (int d = 0; d < full.rank(); ++d) {
    if ((d == full.rank() - 2 && a.rank() == 1) || (d == full.rank() - 1 && b.rank() == 1)) continue;
    out.push_back(full[d]);
  }
  return out;
}

Tensor transposed(const Tensor& tensor) {
  std::array<int, static_cast<std::size_t>(kMaxRank)> dims{};
  for (int d = 0; d < tensor.rank(); ++d) dims[static_cast<std::size_t>(d)] = d;
  std::swap(dims[static_cast<std::size_t>(tensor.rank() - 1)], dims[static_cast<std::size_t>(tensor.rank() - 2)]);
  return permuted(tensor, {dims.data(), static_cast<std::size_t>(tensor.rank())});
}

std::vector<Shape> linear_shape(const Call& call) {
  const Shape& input = call.tensor("input").shape();
  const Shape& weight = call.tensor("weight").shape();
  check_inner(input, input[input.rank() - 1], weight, weight[1]);
  Shape out = input;
  out[out.rank() - 1] = weight[0];
  if (call.has("bias")) expanded(call.tensor("bias"), out);
  return {out};
}

template <auto first, auto second>
std::vector<Shape> named_shape(const Call& call) {
  const Shape& a = call.tensor(first()).shape();
  const Shape& b = call.tensor(second()).shape();
  // bmm and baddbmm do not broadcast their operands.
  if (call.target() != "aten.matmul.default" && a.rank() == 3) {
    GRAFT_CHECK(InvalidArgument, a[0] == b[0], "batch sizes of ", a.str(), " and ", b.str(), " differ");
  }
  return {product_shape(a, b)};
}

constexpr std::string_view self_name() { return "self"; }
constexpr std::string_view mat1_name() { return "mat1"; }
constexpr std::string_view mat2_name() { return "mat2"; }
constexpr std::string_view batch1_name() { return "batch1"; }
constexpr std::string_view batch2_name() { return "batch2"; }
constexpr std::string_view other_name() { return "other"; }
constexpr std::string_view vec_name() { return "vec"; }

// --- lowering ---

struct Addend {
  std::optional<Tensor> bias;  // broadcasts to the product
  Scalar alpha = Scalar::of(std::int64_t{1});
  Scalar beta = Scalar::of(std::int64_t{1});
};

MatmulAttrs attrs_of(const Addend& addend) {
  MatmulAttrs attrs;
  attrs.alpha = static_cast<float>(addend.alpha.to_double());
  attrs.beta = static_cast<float>(addend.beta.to_double());
  attrs.has_bias = addend.bias ? 1 : 0;
  return attrs;
}

// The same for a b whose columns are rows of a block-quantized weight. All are matrices.
void launch_block_product(const Tensor& a, const Tensor& b, const Addend& addend, const Tensor& out,
                          Lowering& lowering) {
  GRAFT_ASSERT(a.rank() == 2 && b.rank() == 2 && b.stride(0) == 1);
  BlockMatmulAttrs attrs;
  attrs.product = attrs_of(addend);
  attrs.type = b.stored->block;
  attrs.panels = b.stored->kind == Stored::Kind::panels ? 1 : 0;
  std::vector<Tensor> inputs = {a.stride(1) == 1 ? a : lowering.contiguous(a), lowering.bytes_of(b)};
  if (addend.bias) inputs.push_back(expanded(*addend.bias, out.shape()));
  const std::int64_t scratch = block_matmul_scratch_bytes(attrs, a.size(0), a.size(1));
  lowering.launch(kBlockMatmul, std::move(inputs), {out}, attrs, scratch);
}

// out = alpha * a b + beta * bias, with equal batch sizes of a, b and out.
void launch_product(const Tensor& a, const Tensor& weight, const Addend& addend, const Tensor& out,
                    Lowering& lowering) {
  const bool blocks = weight.stored && !weight.stored->is_plain();
  const Tensor b = blocks ? weight : as_stored(weight);
  if (addend.alpha.to_double() == 1 && (!addend.bias || addend.beta.to_double() == 1) &&
      device::matmul(lowering, a, b, addend.bias ? &*addend.bias : nullptr, out))
    return;
  if (blocks) return launch_block_product(a, weight, addend, out, lowering);
  std::vector<Tensor> inputs = {a, b};
  if (addend.bias) inputs.push_back(expanded(*addend.bias, out.shape()));
  if (has_vector_kernel(out.dtype())) {
    MatmulAttrs attrs = attrs_of(addend);
    attrs.in_bf16 = lowering.matmul_precision() == MatmulPrecision::medium ? 1 : 0;
    lowering.launch(kMatmul, std::move(inputs), {out}, attrs, matmul_scratch_bytes(attrs, a.desc, b.desc));
    return;
  }
  PlainMatmulAttrs attrs;
  attrs.alpha = addend.alpha.to_double();
  attrs.beta = addend.beta.to_double();
  attrs.integer_alpha = addend.alpha.to_integer();
  attrs.integer_beta = addend.beta.to_integer();
  attrs.has_bias = addend.bias ? 1 : 0;
  lowering.launch(kPlainMatmul, std::move(inputs), {out}, attrs);
}

Tensor reshaped(const Tensor& tensor, const Shape& shape, Lowering& lowering) {
  if (std::optional<Tensor> view = try_reshape(tensor, shape)) return *view;
  return *try_reshape(lowering.contiguous(tensor), shape);
}

// The product of a [..., M, K] and b [..., K, N] as a new tensor of `shape`, which has as many elements as the full
// product.
Tensor product(const Tensor& a, const Tensor& b, const Addend& addend, const Shape& shape, Lowering& lowering) {
  const Tensor out = lowering.allocate(a.dtype(), shape);
  const Shape full = full_shape(a.shape(), b.shape());
  const Tensor full_out = *try_reshape(out, full);
  if (b.rank() == 2 && a.rank() > 2 && !addend.bias) {
    // One matrix for all batches: merge their rows into a single product.
    const std::int64_t k = a.size(a.rank() - 1);
    const std::int64_t n = b.size(1);
    const std::int64_t rows = full.numel() == 0 ? 0 : full.numel() / n;
    if (rows > 0 && a.numel() == rows * k) {
      launch_product(reshaped(a, Shape{rows, k}, lowering), b, addend, *try_reshape(out, Shape{rows, n}), lowering);
      return out;
    }
  }
  Shape batch;
  for (int d = 0; d + 2 < full.rank(); ++d) batch.push_back(full[d]);
  launch_product(expanded(a, with_matrix(batch, a.size(a.rank() - 2), a.size(a.rank() - 1))),
                 expanded(b, with_matrix(batch, b.size(b.rank() - 2), b.size(b.rank() - 1))), addend, full_out,
                 lowering);
  return out;
}

// Vectors as matrices, without a copy.
Tensor row_matrix(const Tensor& tensor) {
  return tensor.rank() == 1 ? *try_reshape(tensor, Shape{1, tensor.size(0)}) : tensor;
}
Tensor column_matrix(const Tensor& tensor) {
  return tensor.rank() == 1 ? *try_reshape(tensor, Shape{tensor.size(0), 1}) : tensor;
}

std::vector<Tensor> lower_linear(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& input = call.tensor("input");
  const Tensor& weight = call.tensor("weight");
  const std::int64_t k = weight.size(1), n = weight.size(0);
  const Tensor out = lowering.allocate(input.dtype(), shapes[0]);
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < input.rank(); ++d) rows *= input.size(d);
  if (out.numel() == 0) return {out};
  launch_linear(reshaped(input, Shape{rows, k}, lowering), weight, call.optional_tensor("bias"),
                *try_reshape(out, Shape{rows, n}), lowering);
  return {out};
}

template <auto first, auto second>
std::vector<Tensor> lower_product(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor right = column_matrix(call.tensor(second()));
  return {product(row_matrix(call.tensor(first())), right, {}, shapes[0], lowering)};
}

template <auto first, auto second>
std::vector<Shape> added_shape(const Call& call) {
  std::vector<Shape> shapes = named_shape<first, second>(call);
  expanded(call.tensor("self"), shapes[0]);
  return shapes;
}

template <auto first, auto second>
std::vector<Tensor> lower_added(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  Addend addend;
  addend.alpha = call.scalar("alpha");
  addend.beta = call.scalar("beta");
  // With beta = 0 PyTorch ignores self: a NaN in it does not spread.
  if (addend.beta.to_double() != 0) addend.bias = call.tensor("self");
  return {product(call.tensor(first()), call.tensor(second()), addend, shapes[0], lowering)};
}

StoredUse stored_use_of_linear(const NodeView&, std::string_view argument) {
  return argument == "weight" ? StoredUse::rows : StoredUse::none;
}

// mat2 of mm and addmm, other of matmul.
StoredUse stored_use_of_product(const NodeView&, std::string_view argument) {
  return argument == "mat2" || argument == "other" ? StoredUse::columns : StoredUse::none;
}

}  // namespace

void launch_linear(const Tensor& rows, const Tensor& weight, const std::optional<Tensor>& bias, const Tensor& out,
                   Lowering& lowering) {
  Addend addend;
  addend.bias = bias;
  launch_product(rows, transposed(weight), addend, out, lowering);
}

std::span<const Operator> linear_operators() {
  static constexpr Operator kOperators[] = {
      {"aten.linear.default", refuse_linear, linear_shape, lower_linear, true, false, false, stored_use_of_linear},
      {"aten.addmm.default", refuse_addmm, added_shape<mat1_name, mat2_name>, lower_added<mat1_name, mat2_name>, false,
       false, false, stored_use_of_product},
      {"aten.baddbmm.default", refuse_baddbmm, added_shape<batch1_name, batch2_name>,
       lower_added<batch1_name, batch2_name>, true},
      {"aten.mm.default", refuse_product<2>, named_shape<self_name, mat2_name>, lower_product<self_name, mat2_name>,
       false, false, false, stored_use_of_product},
      {"aten.bmm.default", refuse_product<3>, named_shape<self_name, mat2_name>, lower_product<self_name, mat2_name>},
      {"aten.matmul.default", refuse_matmul, named_shape<self_name, other_name>, lower_product<self_name, other_name>,
       true, false, false, stored_use_of_product},
      {"aten.mv.default", refuse_mv, named_shape<self_name, vec_name>, lower_product<self_name, vec_name>, true},
  };
  return kOperators;
}

}  // namespace graft
