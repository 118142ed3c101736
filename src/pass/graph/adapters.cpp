#include "pass/graph/adapters.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "op/rows.h"
#include "pass/graph/graph.h"

namespace graft {
namespace {

constexpr std::string_view kAddAdapter = "graft.add_adapter";

class AdapterPass {
 public:
  AdapterPass(ir::Program& program, ir::Method& method, AdapterLayers& layers)
      : program_(program), method_(method), graph_(program, method), layers_(layers) {
    for (const ir::Input& input : method.inputs)
      if (input.kind == ir::InputKind::weight) weight_of_.emplace(input.value, input.index);
    find_batch();
  }

  std::size_t run() {
    std::vector<std::pair<std::size_t, Product>> found;
    for (std::size_t n = 0; n < method_.nodes.size(); ++n)
      if (std::optional<Product> product = product_of(method_.nodes[n])) found.emplace_back(n, *std::move(product));
    // From the last one on, so that nodes that are put in do not move those before them.
    for (auto at = found.rbegin(); at != found.rend(); ++at) put_behind(at->first, at->second);
    return found.size();
  }

 private:
  struct Product {
    ir::Arg operand;
    AdapterLayers::Layer layer;
  };

  // The batch is what the first dimension of the first input with two or more counts.
  void find_batch() {
    std::optional<std::uint32_t> first;
    for (const ir::Input& input : method_.inputs) {
      if (input.kind != ir::InputKind::user || (first && *first < input.index)) continue;
      const ir::Value& value = method_.values[input.value];
      if (value.kind != ir::ValueKind::tensor || value.rank() < 2) continue;
      first = input.index;
      batch_ = input.value;
    }
  }

  // Whether the rows of the operand are those of the batch, each with equally many.
  bool has_batch_first(const ir::Value& x) const {
    if (!batch_) return false;
    const ir::Dim &batch = method_.values[*batch_].dims[0], &rows = x.dims[0];
    if (batch.is_static()) return rows.is_static() && batch.min > 0 && rows.min % batch.min == 0;
    if (rows.expr == batch.expr) return true;
    return x.rank() == 2 && !rows.is_static() && names_symbol(rows.expr, batch.expr);
  }

  // The weight, a matrix, that the argument is, or a transposed view of. `columns`: as [in, out].
  std::optional<std::uint32_t> weight_in(const ir::Arg& arg, bool& columns) const {
    if (!arg.is_value()) return std::nullopt;
    if (const auto found = weight_of_.find(arg.value()); found != weight_of_.end()) return found->second;
    for (const std::string_view view :
         {"aten.t.default", "aten.permute.default", "aten.transpose.int", "aten.permute_copy.default"}) {
      const ir::Node* node = graph_.producer(arg, view);
      if (node == nullptr || graph_.output(*node).rank() != 2) continue;
      const auto found = node->args[0].is_value() ? weight_of_.find(node->args[0].value()) : weight_of_.end();
      if (found == weight_of_.end()) continue;
      const bool swaps = graph_.output(*node).dims[0].min == method_.values[found->first].dims[1].min &&
                         graph_.output(*node).dims[1].min == method_.values[found->first].dims[0].min;
      if (!swaps) continue;
      columns = !columns;
      return found->second;
    }
    return std::nullopt;
  }

  std::optional<Product> product_of(const ir::Node& node) const {
    constexpr std::pair<std::string_view, std::pair<std::string_view, std::string_view>> kProducts[] = {
        {"aten.linear.default", {"input", "weight"}},
        {"aten.addmm.default", {"mat1", "mat2"}},
        {"aten.mm.default", {"self", "mat2"}},
        {"aten.matmul.default", {"self", "other"}}};
    for (const auto& [target, names] : kProducts) {
      if (!graph_.is(node, target)) continue;
      const ir::Arg &operand = graph_.arg(node, names.first), &matrix = graph_.arg(node, names.second);
      bool columns = target != "aten.linear.default";
      const std::optional<std::uint32_t> index = weight_in(matrix, columns);
      const ir::Value* x = graph_.tensor(operand);
      if (!index || x == nullptr || x->rank() < 1 || is_used_otherwise(*index)) return std::nullopt;
      const ir::Weight& weight = program_.weights[*index];
      const ir::Value& y = graph_.output(node);
      const bool computes = y.dtype == DType::f32 || y.dtype == DType::f16 || y.dtype == DType::bf16;
      if (weight.shape.rank() != 2 || weight.shape.numel() == 0 || x->dtype != y.dtype || !computes ||
          x->rank() != y.rank())
        return std::nullopt;
      constexpr std::string_view kWeight = ".weight";
      std::string name = weight.fqn.empty() ? weight.key : weight.fqn;
      if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
      Product out{operand, {std::move(name), weight.shape[1], weight.shape[0]}};
      if (columns) std::swap(out.layer.in, out.layer.out);
      return out;
    }
    return std::nullopt;
  }

  // A matrix that is an embedding too has its name, not the layer's.
  bool is_used_otherwise(std::uint32_t weight) const {
    return std::ranges::any_of(method_.nodes, [&](const ir::Node& node) {
      if (!program_.op_of(node).target.starts_with("aten.embedding")) return false;
      bool reads = false;
      ir::for_each_value(node, [&](ir::ValueId id) {
        const auto found = weight_of_.find(id);
        reads |= found != weight_of_.end() && found->second == weight;
      });
      return reads;
    });
  }

  void put_behind(std::size_t n, const Product& product) {
    ir::Node& node = method_.nodes[n];
    const ir::ValueId sum = node.outputs[0];
    ir::Value plain = method_.values[sum];
    plain.name += "_plain";
    const auto before = static_cast<ir::ValueId>(method_.values.size());
    const bool rows_known = has_batch_first(*graph_.tensor(product.operand));
    method_.values.push_back(std::move(plain));
    node.outputs[0] = before;
    ir::Node add;
    add.name = node.name + "_adapter";
    add.origin = node.origin;
    add.outputs = {sum};
    graph_.replace(add, kAddAdapter,
                   {{"self", ir::Arg::of_value(before)},
                    {"input", product.operand},
                    {"batch", rows_known ? ir::Arg::of_value(*batch_) : ir::Arg()},
                    {"layer", ir::Arg::of_integer(static_cast<std::int64_t>(layers_.index_of(product.layer)))},
                    {"most_rank", ir::Arg::of_integer(layers_.most_rank())}});
    method_.nodes.insert(method_.nodes.begin() + static_cast<std::ptrdiff_t>(n) + 1, std::move(add));
  }

  ir::Program& program_;
  ir::Method& method_;
  Graph graph_;
  AdapterLayers& layers_;
  std::map<ir::ValueId, std::uint32_t> weight_of_;
  std::optional<ir::ValueId> batch_;
};

}  // namespace

std::size_t AdapterLayers::index_of(const Layer& layer) {
  const auto found = std::ranges::find(list_, layer.module, &Layer::module);
  const auto index = static_cast<std::size_t>(found - list_.begin());
  if (index == list_.size()) list_.push_back(layer);
  return index;
}

std::size_t add_adapters(ir::Program& program, AdapterLayers& layers) {
  // Their layers would be no layers of adapters.
  for (const ir::Op& op : program.ops)
    GRAFT_CHECK(InvalidProgram, op.target != kAddAdapter, "the program has nodes of ", kAddAdapter,
                ", which only a load makes");
  std::size_t count = 0;
  for (ir::Method& method : program.methods) count += AdapterPass(program, method, layers).run();
  return count;
}

}  // namespace graft
