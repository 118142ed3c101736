#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/quantized/quantized_vec.h"
#include "op/operator.h"
#include "pass/graph/graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

const ir::Arg kNone{};

// A tensor that is scale * (q - zero).
struct Dequantized {
  ir::Arg q, scale, zero;
  std::vector<std::int64_t> block;  // elements along each dimension that share parameters; empty: all
  bool four_bits = false;           // q is -8 to 7
};

bool is(const ir::Value* value, DType dtype) { return value != nullptr && value->dtype == dtype; }

std::optional<std::int64_t> size(const ir::Value& value, int dim) {
  const ir::Dim& d = value.dims[static_cast<std::size_t>(dim < 0 ? dim + value.rank() : dim)];
  return d.is_static() ? std::optional(d.min) : std::nullopt;
}

std::optional<Dequantized> match_dequantized(const Graph& graph, const ir::Arg& value) {
  for (const std::string_view target :
       {"quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor"}) {
    if (const ir::Node* node = graph.producer(value, target))
      return Dequantized{graph.arg(*node, "input"), graph.arg(*node, "scale"), graph.arg(*node, "zero_point"), {}};
  }
  if (const ir::Node* node = graph.producer(value, "quantized_decomposed.dequantize_per_channel.default")) {
    Dequantized out{graph.arg(*node, "input"), graph.arg(*node, "scales"), graph.arg(*node, "zero_points"), {}};
    const ir::Value* q = graph.tensor(out.q);
    const auto axis = Graph::number(graph.arg(*node, "axis"));
    if (q == nullptr || axis != 0) return std::nullopt;
    out.block.push_back(1);
    for (int d = 1; d < q->rank(); ++d) {
      if (!size(*q, d)) return std::nullopt;
      out.block.push_back(*size(*q, d));
    }
    return out;
  }
  if (const ir::Node* node = graph.producer(value, "torchao.dequantize_affine.default")) {
    const auto block = Graph::integers(graph.arg(*node, "block_size"));
    if (!block) return std::nullopt;
    Dequantized out{graph.arg(*node, "input"), graph.arg(*node, "scale"), graph.arg(*node, "zero_point"), *block};
    out.four_bits =
        Graph::number(graph.arg(*node, "quant_min")) == -8 && Graph::number(graph.arg(*node, "quant_max")) == 7;
    return out;
  }
  return std::nullopt;
}

// The group size within a row of `q`, if the parameters are per row or per group of a row. Here `q` is a matrix: all
// dimensions but the first taken as one.
std::optional<std::int64_t> group_of(const ir::Value& q, const std::vector<std::int64_t>& block) {
  std::int64_t depth = 1;
  for (int d = 1; d < q.rank(); ++d) {
    if (!size(q, d) || *size(q, d) < 1) return std::nullopt;
    depth *= *size(q, d);
  }
  if (block.empty()) return depth;
  if (block.size() != q.dims.size()) return std::nullopt;
  std::int64_t group = 1;
  for (std::size_t d = 1; d < block.size(); ++d) group *= block[d];
  if (block[0] == 1 && (group == depth || q.rank() == 2)) return group;
  // One block for all.
  return group == depth && size(q, 0) == block[0] ? std::optional(depth) : std::nullopt;
}

// Whether the parameters are per row of the last dimension, or one for all.
bool of_rows(const ir::Value& q, const std::vector<std::int64_t>& block) {
  if (block.empty()) return true;
  if (block.size() != q.dims.size() || size(q, -1) != block.back()) return false;
  return std::all_of(block.begin(), block.end() - 1, [](std::int64_t b) { return b == 1; });
}

class Fuser {
 public:
  Fuser(ir::Program& program, ir::Method& method) : program_(program), method_(method), graph_(program, method) {}

  // Returns the number of nodes that it rewrote.
  std::size_t run() {
    for (ir::Node& node : method_.nodes) {
      if (graph_.is(node, "aten.linear.default")) fuse_linear(node);
      if (graph_.is(node, "aten.convolution.default")) fuse_convolution(node);
      if (graph_.is(node, "aten.mm.default")) fuse_mm(node);
    }
    for (ir::Node& node : method_.nodes)
      if (graph_.is(node, "aten.mul.Tensor") && !fuse_integers(node)) fuse_scale(node);
    graph_.prepend_added();
    return count_;
  }

 private:
  // Replaces the node by the operator if it accepts these arguments.
  bool replace(ir::Node& node, std::string_view target, Graph::Args args) {
    const ir::Node kept = node;
    graph_.replace(node, target, std::move(args));
    if (refuse(NodeView(program_, method_, node)).empty()) {
      ++count_;
      return true;
    }
    node = kept;
    return false;
  }

  struct Weight {
    ir::Arg q, scale, zero;
    std::int64_t group = 0;
    std::int64_t bits = 8;
  };

  std::optional<Weight> match_weight(const ir::Arg& value, bool may_pack) {
    const auto found = match_dequantized(graph_, value);
    const ir::Value* q = found ? graph_.tensor(found->q) : nullptr;
    if (!is(q, DType::i8) || q->rank() < 2 || !size(*q, 0) || *size(*q, 0) < 1) return std::nullopt;
    const auto group = group_of(*q, found->block);
    if (!group) return std::nullopt;
    Weight out{found->q, found->scale, found->zero, *group};
    if (may_pack && found->four_bits && q->rank() == 2 && *group % simd::kNibbleBlock == 0 &&
        graph_.is_weight(found->q)) {
      out.q = packed(found->q);
      out.bits = 4;
    }
    return out;
  }

  // The weight with two elements to a byte, made once; folding makes it a constant.
  ir::Arg packed(const ir::Arg& weight) {
    const auto known = packed_.find(weight.value());
    if (known != packed_.end()) return known->second;
    const ir::Value& value = method_.values[weight.value()];
    std::vector<ir::Dim> dims = value.dims;
    dims[1] = {dims[1].min / 2, dims[1].min / 2, {}};
    const ir::Arg made =
        graph_.add(value.name + " in 4 bits", "graft.pack_int4", {{"weight", weight}}, DType::u8, std::move(dims));
    return packed_.emplace(weight.value(), made).first->second;
  }

  Graph::Args arguments(const ir::Arg& input, const Dequantized* quantized, const Weight& weight,
                        const ir::Arg& bias) const {
    return {{"input", quantized ? quantized->q : input},
            {"input_scale", quantized ? quantized->scale : kNone},
            {"input_zero", quantized ? quantized->zero : kNone},
            {"weight", weight.q},
            {"weight_scale", weight.scale},
            {"weight_zero", weight.zero},
            {"bias", bias}};
  }

  Graph::Args linear(const ir::Arg& input, const Dequantized* quantized, const Weight& weight,
                     const ir::Arg& bias) const {
    Graph::Args args = arguments(input, quantized, weight, bias);
    args.emplace_back("bits", ir::Arg::of_integer(weight.bits));
    args.emplace_back("group", ir::Arg::of_integer(weight.group));
    return args;
  }

  void fuse_linear(ir::Node& node) {
    const ir::Arg input = graph_.arg(node, "input");
    const auto weight = match_weight(graph_.arg(node, "weight"), true);
    if (!weight) return;
    const auto quantized = match_dequantized(graph_, input);
    const bool integers =
        quantized && graph_.tensor(quantized->q) != nullptr && of_rows(*graph_.tensor(quantized->q), quantized->block);
    const ir::Arg bias = graph_.arg(node, "bias");
    if (integers && replace(node, "graft.quantized_linear", linear(input, &*quantized, *weight, bias))) return;
    replace(node, "graft.quantized_linear", linear(input, nullptr, *weight, bias));
  }

  void fuse_convolution(ir::Node& node) {
    const auto weight = match_weight(graph_.arg(node, "weight"), false);
    const auto quantized = match_dequantized(graph_, graph_.arg(node, "input"));
    if (!weight || !quantized || !quantized->block.empty()) return;
    const ir::Value& q = *graph_.tensor(weight->q);
    if (weight->group != *group_of(q, {})) return;
    Graph::Args args = arguments(kNone, &*quantized, *weight, graph_.arg(node, "bias"));
    for (const char* name : {"stride", "padding", "dilation", "transposed", "output_padding", "groups"})
      args.emplace_back(name, graph_.arg(node, name));
    replace(node, "graft.quantized_conv", std::move(args));
  }

  // The matrix whose transpose this is.
  std::optional<ir::Arg> transposed(const ir::Arg& value) const {
    const ir::Value* v = graph_.tensor(value);
    if (v == nullptr || v->rank() != 2) return std::nullopt;
    if (const ir::Node* node = graph_.producer(value, "aten.t.default")) return graph_.arg(*node, "self");
    if (const ir::Node* node = graph_.producer(value, "aten.permute.default"))
      if (Graph::integers(graph_.arg(*node, "dims")) == std::vector<std::int64_t>{1, 0})
        return graph_.arg(*node, "self");
    return std::nullopt;
  }

  // The input of a conversion from `from` to `to`.
  std::optional<ir::Arg> converted(const ir::Arg& value, DType from, DType to) const {
    const ir::Node* node = graph_.producer(value, "aten._to_copy.default");
    if (!node) node = graph_.producer(value, "aten.to.dtype");
    if (!node || !is(graph_.tensor(value), to)) return std::nullopt;
    const ir::Arg& self = graph_.arg(*node, "self");
    return is(graph_.tensor(self), from) ? std::optional(self) : std::nullopt;
  }

  // A matrix of bytes with known sizes and parameters per row.
  std::optional<Weight> byte_matrix(const ir::Arg& value) const {
    const ir::Value* v = graph_.tensor(value);
    if (!is(v, DType::i8) || v->rank() != 2 || !size(*v, 0) || !size(*v, 1)) return std::nullopt;
    return Weight{value, kNone, kNone, std::max<std::int64_t>(*size(*v, 1), 1)};
  }

  // A matrix times the transpose of one that was converted from bytes.
  void fuse_mm(ir::Node& node) {
    const ir::Arg input = graph_.arg(node, "self"), other = graph_.arg(node, "mat2");
    if (const auto columns = converted(other, DType::i8, DType::f32)) {
      const auto matrix = transposed(*columns);
      const auto weight = matrix ? byte_matrix(*matrix) : std::nullopt;
      if (weight) replace(node, "graft.quantized_linear", linear(input, nullptr, *weight, kNone));
    } else if (const auto matrix = transposed(other)) {
      if (const auto weight = match_weight(*matrix, true))
        replace(node, "graft.quantized_linear", linear(input, nullptr, *weight, kNone));
    }
  }

  // One number of f32 for each of `count` columns.
  bool is_row(const ir::Arg& value, std::optional<std::int64_t> count) const {
    const ir::Value* v = graph_.tensor(value);
    return is(v, DType::f32) && v->rank() == 1 && count && size(*v, 0) == count;
  }

  // The scale of each column, multiplied after the product.
  void fuse_scale(ir::Node& node) {
    const ir::Arg product = graph_.arg(node, "self"), scale = graph_.arg(node, "other");
    const ir::Node* linear_node = graph_.producer(product, "graft.quantized_linear");
    if (!linear_node || graph_.tensor(scale) == nullptr || graph_.uses(product.value()) != 1) return;
    const ir::Arg weight = graph_.arg(*linear_node, "weight"), input = graph_.arg(*linear_node, "input");
    const auto matrix = byte_matrix(weight);
    if (!matrix || graph_.arg(*linear_node, "weight_scale").kind != ir::Arg::Kind::none) return;
    if (graph_.arg(*linear_node, "bias").kind != ir::Arg::Kind::none || !is(graph_.tensor(input), DType::f32)) return;
    if (!is_row(scale, size(*graph_.tensor(weight), 0))) return;
    Weight scaled = *matrix;
    scaled.scale = scale;
    replace(node, "graft.quantized_linear", linear(input, nullptr, scaled, kNone));
  }

  // Integer products: of q itself, or of q + 128 as unsigned bytes less 128 times the sum of the weight's column.
  std::optional<std::pair<ir::Arg, Weight>> match_integers(const ir::Arg& value) const {
    const ir::Node* product = graph_.producer(value, "aten._int_mm.default");
    const ir::Node* difference = graph_.producer(value, "aten.sub.Tensor");
    if (difference) {
      if (Graph::number(graph_.arg(*difference, "alpha")) != 1) return std::nullopt;
      product = graph_.producer(graph_.arg(*difference, "self"), "aten._int_mm.default");
    }
    if (!product) return std::nullopt;
    ir::Arg q = graph_.arg(*product, "self");
    const ir::Arg columns = graph_.arg(*product, "mat2");
    const auto matrix = transposed(columns);
    const auto weight = matrix ? byte_matrix(*matrix) : std::nullopt;
    if (!weight) return std::nullopt;
    if (difference) {
      const auto shifted = converted(q, DType::i32, DType::u8);
      const auto wide = shifted ? sum_with_128(*shifted) : std::nullopt;
      const auto narrow = wide ? converted(*wide, DType::i8, DType::i32) : std::nullopt;
      if (!narrow || !is_128_sums(graph_.arg(*difference, "other"), columns)) return std::nullopt;
      q = *narrow;
    }
    return std::pair(q, *weight);
  }

  std::optional<ir::Arg> sum_with_128(const ir::Arg& value) const {
    const ir::Node* sum = graph_.producer(value, "aten.add.Tensor");
    if (!sum) sum = graph_.producer(value, "aten.add.Scalar");
    if (!sum || Graph::number(graph_.arg(*sum, "other")) != 128 || Graph::number(graph_.arg(*sum, "alpha")) != 1)
      return std::nullopt;
    return graph_.arg(*sum, "self");
  }

  bool is_128_sums(const ir::Arg& value, const ir::Arg& columns) const {
    const ir::Node* product = graph_.producer(value, "aten.mul.Tensor");
    if (!product) product = graph_.producer(value, "aten.mul.Scalar");
    if (!product || Graph::number(graph_.arg(*product, "other")) != 128) return false;
    const ir::Node* sum = graph_.producer(graph_.arg(*product, "self"), "aten.sum.dim_IntList");
    if (!sum || !is(&graph_.output(*sum), DType::i32) || graph_.arg(*sum, "keepdim").i != 1) return false;
    const ir::Arg &summed = graph_.arg(*sum, "self"), &dims = graph_.arg(*sum, "dim");
    return summed.is_value() && summed.value() == columns.value() &&
           Graph::integers(dims) == std::vector<std::int64_t>{0};
  }

  // Integer products, times a scale per row, times one per column.
  bool fuse_integers(ir::Node& node) {
    const ir::Node* by_row = graph_.producer(graph_.arg(node, "self"), "aten.mul.Tensor");
    const ir::Arg weight_scale = graph_.arg(node, "other");
    if (!by_row || graph_.uses(by_row->outputs[0]) != 1) return false;
    const auto sums = converted(graph_.arg(*by_row, "self"), DType::i32, DType::f32);
    auto found = sums ? match_integers(*sums) : std::nullopt;
    if (!found || graph_.uses(sums->value()) != 1) return false;
    auto& [q, weight] = *found;
    const ir::Arg input_scale = graph_.arg(*by_row, "other");
    const ir::Value* scale = graph_.tensor(input_scale);
    // [rows, 1], or one for all.
    if (!is(scale, DType::f32) || scale->rank() != 2 || size(*scale, 1) != 1) return false;
    const ir::Dim &rows = graph_.tensor(q)->dims[0], &scales = scale->dims[0];
    if (size(*scale, 0) != 1 && (rows.min != scales.min || rows.max != scales.max || rows.expr != scales.expr))
      return false;
    if (!is_row(weight_scale, size(*graph_.tensor(weight.q), 0))) return false;
    weight.scale = weight_scale;
    const Dequantized quantized{q, input_scale, kNone, {}};
    return replace(node, "graft.quantized_linear", linear(kNone, &quantized, weight, kNone));
  }

  ir::Program& program_;
  ir::Method& method_;
  Graph graph_;
  std::map<ir::ValueId, ir::Arg> packed_;
  std::size_t count_ = 0;
};

}  // namespace

std::size_t fuse_quantized(ir::Program& program) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += Fuser(program, method).run();
  drop_dead_nodes(program);
  return count;
}

}  // namespace graft
