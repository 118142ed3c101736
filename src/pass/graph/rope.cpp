#include <algorithm>
#include <optional>
#include <utility>

#include "pass/graph/graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

// Half of the last dimension of x, [from, to).
bool is_half(const Graph& graph, const ir::Arg& value, const ir::Arg& x, std::int64_t from, std::int64_t to) {
  const ir::Node* slice = graph.producer(value, "aten.slice.Tensor");
  if (!slice) return false;
  const ir::Arg& self = graph.arg(*slice, "self");
  const ir::Value* whole = graph.tensor(x);
  const auto dim = Graph::number(graph.arg(*slice, "dim"));
  if (!self.is_value() || self.i != x.i || (dim != -1 && dim != whole->rank() - 1)) return false;
  if (Graph::number(graph.arg(*slice, "step")) != 1) return false;
  const ir::Arg &start = graph.arg(*slice, "start"), &end = graph.arg(*slice, "end");
  const double size = static_cast<double>(whole->dims.back().min);
  const double first = start.kind == ir::Arg::Kind::none ? 0 : Graph::number(start).value_or(-1);
  const double last = end.kind == ir::Arg::Kind::none ? size : std::min(Graph::number(end).value_or(-1), size);
  return first == static_cast<double>(from) && last == static_cast<double>(to);
}

// cat(-x[d/2:], x[:d/2], -1)
bool is_rotated(const Graph& graph, const ir::Arg& value, const ir::Arg& x) {
  const ir::Node* cat = graph.producer(value, "aten.cat.default");
  if (!cat) return false;
  const ir::Arg& parts = graph.arg(*cat, "tensors");
  const int rank = graph.tensor(x)->rank();
  const auto dim = Graph::number(graph.arg(*cat, "dim"));
  if (parts.items.size() != 2 || (dim != -1 && dim != rank - 1)) return false;
  const ir::Node* negative = graph.producer(parts.items[0], "aten.neg.default");
  const std::int64_t size = graph.tensor(x)->dims.back().min, half = size / 2;
  return negative && is_half(graph, graph.arg(*negative, "self"), x, half, size) &&
         is_half(graph, parts.items[1], x, 0, half);
}

bool fits(const ir::Value* factor, const ir::Value& x) {
  if (factor == nullptr || factor->dtype != DType::f32 || factor->rank() != x.rank()) return false;
  return factor->dims.back().is_static() && factor->dims.back().min == x.dims.back().min;
}

// Whether x has the sizes of the result, so that no factor broadcasts it.
bool same_sizes(const ir::Value& a, const ir::Value& b) {
  return std::ranges::equal(a.dims, b.dims, [](const ir::Dim& x, const ir::Dim& y) {
    return x.min == y.min && x.max == y.max && x.expr == y.expr;
  });
}

struct Factors {
  ir::Arg left, right;
};

std::optional<Factors> product(const Graph& graph, const ir::Arg& value) {
  const ir::Node* node = graph.producer(value, "aten.mul.Tensor");
  if (!node) return std::nullopt;
  return Factors{graph.arg(*node, "self"), graph.arg(*node, "other")};
}

void fuse(Graph& graph, ir::Node& node) {
  if (!graph.is(node, "aten.add.Tensor") || Graph::number(graph.arg(node, "alpha")) != 1) return;
  const auto plain = product(graph, graph.arg(node, "self"));
  const auto turned = product(graph, graph.arg(node, "other"));
  if (!plain || !turned) return;
  for (const auto& [x, cos] : {std::pair{plain->left, plain->right}, std::pair{plain->right, plain->left}}) {
    const ir::Value* value = graph.tensor(x);
    if (value == nullptr || value->dtype != DType::f32 || value->rank() != 4) continue;
    if (!same_sizes(*value, graph.output(node))) continue;
    const ir::Dim& last = value->dims.back();
    if (!last.is_static() || last.min < 2 || last.min % 2 != 0 || !fits(graph.tensor(cos), *value)) continue;
    for (const auto& [rotated, sin] :
         {std::pair{turned->left, turned->right}, std::pair{turned->right, turned->left}}) {
      if (!is_rotated(graph, rotated, x) || !fits(graph.tensor(sin), *value)) continue;
      graph.replace(node, "graft.rope", {{"self", x}, {"cos", cos}, {"sin", sin}});
      return;
    }
  }
}

}  // namespace

std::size_t fuse_rope(ir::Program& program) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) {
    Graph graph(program, method);
    for (ir::Node& node : graph.nodes()) fuse(graph, node);
    count += graph.rewrites();
  }
  drop_dead_nodes(program);
  return count;
}

}  // namespace graft
