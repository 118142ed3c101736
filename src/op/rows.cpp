#include "op/rows.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

// Rows are what the first dimension counts. A tensor whose first size has the batch's symbol (it may be a product: rows
// that were flattened with the next dimensions) has rows; every other one is the same for all of them.
namespace graft {
namespace {

class Rows {
 public:
  Rows(const ir::Program& program, const ir::Method& method, std::string symbol)
      : program_(program), method_(method), symbol_(std::move(symbol)) {}

  bool independent();

 private:
  struct Operand {
    const ir::Arg* arg = nullptr;
    const ir::Value* value = nullptr;  // of a single value
    bool rows = false;
    bool missing() const { return arg == nullptr || arg->kind == ir::Arg::Kind::none; }
  };

  bool has_rows(ir::ValueId id) const {
    const ir::Value& value = method_.values[id];
    if (value.kind != ir::ValueKind::tensor) return counts_.contains(id);
    return !value.dims.empty() && names_symbol(value.dims[0].expr, symbol_);
  }
  bool has_rows(const ir::Arg& arg) const {
    bool found = false;
    ir::for_each_value(arg, [&](ir::ValueId id) { found |= has_rows(id); });
    return found;
  }
  // The batch's size where it must not be.
  bool is_crossed(const ir::Value& value) const {
    for (std::size_t d = 1; d < value.dims.size(); ++d)
      if (names_symbol(value.dims[d].expr, symbol_)) return true;
    return false;
  }

  bool keeps_rows(const ir::Node& node);
  bool keeps_row_numbers(const ir::Node& node, std::string_view name);
  bool reads_own_rows(const ir::Node& node) const;
  bool has_row_numbers(const ir::Node& node) const {
    bool found = false;
    ir::for_each_value(node, [&](ir::ValueId id) { found |= row_numbers_.contains(id); });
    return found;
  }
  Operand operand(const ir::Node& node, std::string_view name) const;
  std::optional<std::int64_t> integer(const ir::Node& node, std::string_view name) const;
  std::vector<std::int64_t> integers(const ir::Node& node, std::string_view name) const;

  bool broadcasts(const ir::Node& node) const;
  // Whether the dimension that a node names is another than the first of `rank`.
  bool other_dim(const ir::Node& node, std::string_view name, int rank) const;
  bool other_dims(const ir::Node& node, std::string_view name, int rank) const;
  bool rows_in(const ir::Node& node, std::string_view name) const { return operand(node, name).rows; }
  // Whether all but these operands are the same for all rows.
  bool only(const ir::Node& node, std::initializer_list<std::string_view> names) const;
  int rank(const ir::Node& node, std::string_view name) const {
    const Operand found = operand(node, name);
    return found.value != nullptr ? found.value->rank() : -1;
  }

  const ir::Program& program_;
  const ir::Method& method_;
  const std::string symbol_;
  std::unordered_set<ir::ValueId> counts_;       // numbers made of the batch's size
  std::unordered_set<ir::ValueId> row_numbers_;  // 0, 1, 2, ... along the first dimension, of size 1 in all others
};

// "aten.add.Tensor": "add".
std::string_view base_name(std::string_view target) {
  if (target.starts_with("aten.")) target.remove_prefix(5);
  return target.substr(0, target.find('.'));
}

constexpr std::string_view kPointwise[] = {
    "__and__",     "__or__",      "__xor__",     "abs",         "acos",        "acosh",       "add",
    "asin",        "asinh",       "atan",        "atan2",       "atanh",       "bitwise_and", "bitwise_not",
    "bitwise_or",  "bitwise_xor", "ceil",        "celu",        "clamp",       "clamp_max",   "clamp_min",
    "copysign",    "cos",         "cosh",        "div",         "elu",         "eq",          "erf",
    "erfc",        "erfinv",      "exp",         "exp2",        "expm1",       "floor",       "floor_divide",
    "fmod",        "ge",          "gelu",        "gt",          "hardsigmoid", "hardswish",   "hardtanh",
    "isinf",       "isnan",       "le",          "leaky_relu",  "lerp",        "log",         "log10",
    "log1p",       "log2",        "logical_and", "logical_not", "logical_or",  "logical_xor", "lt",
    "masked_fill", "maximum",     "minimum",     "mish",        "mul",         "nan_to_num",  "ne",
    "neg",         "pow",         "prelu",       "reciprocal",  "relu",        "relu6",       "remainder",
    "round",       "rsqrt",       "rsub",        "selu",        "sigmoid",     "sign",        "silu",
    "sin",         "sinh",        "softplus",    "softsign",    "sqrt",        "square",      "sub",
    "tan",         "tanh",        "trunc",       "where"};
// Of a tensor alone, sizes unchanged.
constexpr std::string_view kCopies[] = {"_to_copy", "alias", "clone", "contiguous", "detach", "to", "type_as"};
constexpr std::string_view kReductions[] = {
    "all", "amax", "amin",   "any",    "logsumexp",         "mean", "norm", "sum",
    "var", "std",  "argmax", "argmin", "linalg_vector_norm"};
constexpr std::string_view kAlongDim[] = {
    "softmax", "_softmax", "log_softmax", "_log_softmax",     "cumsum", "cumprod", "topk",   "sort", "argsort",
    "glu",     "unbind",   "split",       "split_with_sizes", "chunk",  "slice",   "select", "max",  "min"};
constexpr std::string_view kReshapes[] = {"view", "_unsafe_view", "reshape", "flatten", "unflatten"};
constexpr std::string_view kPerSample[] = {"adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
                                           "avg_pool1d",          "avg_pool2d",          "max_pool1d",
                                           "max_pool2d",          "pixel_shuffle",       "upsample_bilinear2d",
                                           "upsample_nearest2d",  "upsample_bicubic2d"};
constexpr std::string_view kConstants[] = {"full",      "zeros",     "ones",     "full_like", "zeros_like",
                                           "ones_like", "new_zeros", "new_ones", "new_full"};

template <typename List>
bool is_one_of(std::string_view name, const List& list) {
  return std::ranges::find(list, name) != std::end(list);
}

Rows::Operand Rows::operand(const ir::Node& node, std::string_view name) const {
  const auto& names = program_.op_of(node).arg_names;
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return {};
  Operand out;
  out.arg = &node.args[static_cast<std::size_t>(found - names.begin())];
  if (out.arg->is_value()) out.value = &method_.values[out.arg->value()];
  out.rows = has_rows(*out.arg);
  return out;
}

std::optional<std::int64_t> Rows::integer(const ir::Node& node, std::string_view name) const {
  const Operand found = operand(node, name);
  if (found.missing() || found.arg->kind != ir::Arg::Kind::integer) return std::nullopt;
  return found.arg->i;
}

std::vector<std::int64_t> Rows::integers(const ir::Node& node, std::string_view name) const {
  const Operand found = operand(node, name);
  if (found.missing()) return {};
  if (found.arg->kind == ir::Arg::Kind::integer) return {found.arg->i};
  std::vector<std::int64_t> out;
  for (const ir::Arg& item : found.arg->items) out.push_back(item.kind == ir::Arg::Kind::integer ? item.i : 0);
  return out;
}

bool Rows::other_dim(const ir::Node& node, std::string_view name, int rank) const {
  const auto dim = integer(node, name);
  return dim && rank > 0 && (*dim + rank) % rank != 0;
}

bool Rows::other_dims(const ir::Node& node, std::string_view name, int rank) const {
  const std::vector<std::int64_t> dims = integers(node, name);
  return !dims.empty() && rank > 0 &&
         std::ranges::none_of(dims, [&](std::int64_t dim) { return (dim + rank) % rank == 0; });
}

bool Rows::only(const ir::Node& node, std::initializer_list<std::string_view> names) const {
  const auto& all = program_.op_of(node).arg_names;
  for (std::size_t i = 0; i < node.args.size(); ++i)
    if (std::ranges::find(names, all[i]) == names.end() && has_rows(node.args[i])) return false;
  return true;
}

// Operands with rows have the rank of the result, so that their rows meet the result's; the others have no size there.
bool Rows::broadcasts(const ir::Node& node) const {
  const int rank = method_.values[node.outputs[0]].rank();
  bool good = true;
  ir::for_each_value(node, [&](ir::ValueId id) {
    const ir::Value& value = method_.values[id];
    if (value.kind != ir::ValueKind::tensor)
      good &= !has_rows(id);
    else if (has_rows(id))
      good &= value.rank() == rank;
    else
      good &= value.rank() < rank || (value.dims[0].min == 1 && value.dims[0].max == 1);
  });
  return good;
}

// x[row_numbers, i, ...], which transformers makes of a mask, reads of each row its own elements. Any other use of the
// numbers would depend on a row's place.
bool Rows::keeps_row_numbers(const ir::Node& node, std::string_view name) {
  const ir::ValueId result = node.outputs[0];
  if (name == "arange") {
    const Operand end = operand(node, "end");
    const bool whole = end.value != nullptr && counts_.contains(end.arg->value()) &&
                       method_.values[result].dims[0].expr == symbol_ && integer(node, "start").value_or(0) == 0 &&
                       integer(node, "step").value_or(1) == 1;
    if (whole) row_numbers_.insert(result);
    return whole;
  }
  if (name == "unsqueeze") {
    row_numbers_.insert(result);
    return other_dim(node, "dim", rank(node, "self") + 1);
  }
  return name == "index" && reads_own_rows(node);
}

bool Rows::reads_own_rows(const ir::Node& node) const {
  const Operand indices = operand(node, "indices");
  if (!rows_in(node, "self") || indices.missing() || indices.arg->items.empty()) return false;
  const auto& items = indices.arg->items;
  if (!items[0].is_value() || !row_numbers_.contains(items[0].value())) return false;
  // One index per leading dimension: the dimensions that they make come first.
  const int made = method_.values[items[0].value()].rank();
  return std::ranges::all_of(std::span(items).subspan(1), [&](const ir::Arg& item) {
    if (!item.is_value() || has_rows(item.value())) return false;
    const ir::Value& value = method_.values[item.value()];
    return value.dtype != DType::b8 && (value.rank() < made || (value.rank() == made && value.dims[0].max == 1));
  });
}

bool Rows::keeps_rows(const ir::Node& node) {
  const std::string_view target = program_.op_of(node).target, name = base_name(target);
  bool reads = false, gives = false;
  for (const ir::Arg& arg : node.args) reads |= has_rows(arg);
  for (const ir::ValueId id : node.outputs) {
    gives |= has_rows(id);
    if (is_crossed(method_.values[id])) return false;
  }
  if (!reads && !gives) return true;
  if (!target.starts_with("aten.")) {  // arithmetic on the batch's size, and checks of it
    for (const ir::ValueId id : node.outputs) {
      if (method_.values[id].kind == ir::ValueKind::tensor) return false;
      counts_.insert(id);
    }
    return true;
  }
  if (name == "sym_size" || name == "sym_numel") {
    if (!other_dim(node, "dim", rank(node, "self")))
      for (const ir::ValueId id : node.outputs) counts_.insert(id);
    return true;
  }
  if (name.starts_with("_assert") || name.starts_with("sym_constrain")) return true;
  if (name == "arange" || has_row_numbers(node)) return keeps_row_numbers(node, name);
  // What is made of rows has them, but for constants, which have them without being made of any.
  // (What this one gives besides is empty.)
  const std::size_t results = name == "_native_batch_norm_legit_no_training" ? 1 : node.outputs.size();
  for (const ir::ValueId id : std::span(node.outputs).first(results))
    if (!has_rows(id)) return false;
  if (is_one_of(name, kConstants)) return only(node, {"self", "size"});
  if (name == "expand") return only(node, {"self", "size"});
  if (!reads) return false;
  const int self_rank = rank(node, "self");
  if (is_one_of(name, kPointwise)) return broadcasts(node);
  if (is_one_of(name, kCopies)) return only(node, {"self", "other"}) && rows_in(node, "self");
  if (is_one_of(name, kReshapes)) return only(node, {"self", "size", "shape"}) && rows_in(node, "self");
  if (!only(node, {"self", "input", "query", "key", "value", "attn_mask", "indices", "tensors", "mat1", "mat2", "other",
                   "batch1", "batch2", "index", "attn_bias"}))
    return false;
  if (is_one_of(name, kPerSample)) return rows_in(node, "self");
  if (is_one_of(name, kReductions) || is_one_of(name, kAlongDim)) {
    if (!rows_in(node, "self")) return false;
    // Elementwise maximum and minimum have another operand instead of a dimension.
    if (!operand(node, "other").missing()) return broadcasts(node);
    return other_dims(node, "dim", self_rank) && operand(node, "other").missing();
  }
  if (name == "unsqueeze") return other_dim(node, "dim", self_rank + 1);
  if (name == "squeeze") return true;  // the result has rows
  if (name == "permute") {
    const auto dims = integers(node, "dims");
    return !dims.empty() && (dims[0] + self_rank) % self_rank == 0;
  }
  if (name == "transpose") return other_dim(node, "dim0", self_rank) && other_dim(node, "dim1", self_rank);
  if (name == "cat" || name == "stack") {
    const int result = method_.values[node.outputs[0]].rank();
    bool all = true;
    ir::for_each_value(*operand(node, "tensors").arg, [&](ir::ValueId id) { all &= has_rows(id); });
    return all && other_dim(node, "dim", result);
  }
  if (name == "constant_pad_nd") return static_cast<int>(integers(node, "pad").size()) <= 2 * (self_rank - 1);
  if (name == "repeat") {
    const auto repeats = integers(node, "repeats");
    return static_cast<int>(repeats.size()) == self_rank && repeats[0] == 1;
  }
  if (name == "linear") return rank(node, "input") >= 2;
  if (name == "layer_norm" || name == "native_layer_norm" || name == "rms_norm")
    return static_cast<int>(integers(node, "normalized_shape").size()) < rank(node, "input");
  if (name == "group_norm" || name == "native_group_norm" || name == "_native_batch_norm_legit_no_training" ||
      name == "instance_norm")
    return rank(node, "input") >= 2;
  if (name == "convolution" || name.starts_with("conv1d") || name.starts_with("conv2d")) {
    const Operand input = operand(node, "input");
    const int weight = rank(node, "weight");
    return input.rows && input.value->rank() == weight;
  }
  if (name == "embedding") return rows_in(node, "indices");
  if (name == "mm") return self_rank == 2 && !rows_in(node, "mat2");
  if (name == "addmm") return rows_in(node, "mat1") && !rows_in(node, "mat2") && !rows_in(node, "self");
  if (name == "bmm") return rows_in(node, "self") && rows_in(node, "mat2");
  if (name == "baddbmm")
    return rows_in(node, "batch1") && rows_in(node, "batch2") && (!rows_in(node, "self") || self_rank == 3);
  if (name == "matmul") {
    const int other = rank(node, "other"), result = method_.values[node.outputs[0]].rank();
    const bool left = rows_in(node, "self"), right = rows_in(node, "other");
    if (left && right) return self_rank >= 3 && other == self_rank;
    if (left) return self_rank >= 2 && self_rank == result && (other <= 2 || self_rank >= 3);
    return other >= 3 && other == result;
  }
  if (name == "scaled_dot_product_attention") {
    const Operand mask = operand(node, "attn_mask");
    return rank(node, "query") >= 3 && rows_in(node, "query") && rows_in(node, "key") && rows_in(node, "value") &&
           (!mask.rows || mask.value->rank() == rank(node, "query"));
  }
  if (name == "gather") return rows_in(node, "self") && rows_in(node, "index") && other_dim(node, "dim", self_rank);
  if (name == "index_select")
    return rows_in(node, "self") && !rows_in(node, "index") && other_dim(node, "dim", self_rank);
  return false;
}

bool Rows::independent() {
  for (const ir::Input& input : method_.inputs) {
    const ir::Value& value = method_.values[input.value];
    if (input.kind == ir::InputKind::state) return false;
    if (input.kind != ir::InputKind::user) continue;
    if (value.kind != ir::ValueKind::tensor || value.dims.empty() || value.dims[0].expr != symbol_ || is_crossed(value))
      return false;
  }
  for (const ir::Output& output : method_.outputs) {
    if (output.kind != ir::OutputKind::user || !output.arg.is_value()) return false;
    const ir::Value& value = method_.values[output.arg.value()];
    if (value.kind != ir::ValueKind::tensor || value.dims.empty() || value.dims[0].expr != symbol_) return false;
  }
  return std::ranges::all_of(method_.nodes, [&](const ir::Node& node) { return keeps_rows(node); });
}

}  // namespace

bool names_symbol(std::string_view expr, std::string_view symbol) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (std::size_t at = expr.find(symbol); at != std::string_view::npos; at = expr.find(symbol, at + 1)) {
    const bool begins = at == 0 || !is_word(expr[at - 1]);
    const std::size_t end = at + symbol.size();
    if (begins && (end == expr.size() || !is_word(expr[end]))) return true;
  }
  return false;
}

bool rows_are_independent(const ir::Program& program, const ir::Method& method) {
  for (const ir::Input& input : method.inputs) {
    if (input.kind != ir::InputKind::user) continue;
    const ir::Value& value = method.values[input.value];
    if (value.kind != ir::ValueKind::tensor || value.dims.empty() || value.dims[0].is_static()) return false;
    const std::string& symbol = value.dims[0].expr;
    const bool plain = !symbol.empty() && std::ranges::all_of(symbol, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    });
    return plain && Rows(program, method, symbol).independent();
  }
  return false;
}

}  // namespace graft
