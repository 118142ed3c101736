#include <array>
#include <optional>

#include "pass/graph/graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

bool is_f32(const ir::Value* value) { return value != nullptr && value->dtype == DType::f32; }

// The last dimension of the value where its size is known at export.
std::optional<std::int64_t> last_size(const ir::Value& value) {
  if (value.dims.empty() || !value.dims.back().is_static()) return std::nullopt;
  return value.dims.back().min;
}

struct Normalized {
  ir::Arg x;
  double eps = 0;
};

// x * rsqrt(mean(x * x, -1) + eps), factors in any order.
std::optional<Normalized> match_normalized(const Graph& graph, const ir::Arg& value) {
  const ir::Node* product = graph.producer(value, "aten.mul.Tensor");
  if (!product) return std::nullopt;
  const std::array factors = {graph.arg(*product, "self"), graph.arg(*product, "other")};
  for (const int i : {0, 1}) {
    const ir::Arg& x = factors[static_cast<std::size_t>(i)];
    const ir::Node* inverse = graph.producer(factors[static_cast<std::size_t>(1 - i)], "aten.rsqrt.default");
    if (!inverse || !is_f32(graph.tensor(x)) || !last_size(*graph.tensor(x))) continue;
    const ir::Arg& shifted = graph.arg(*inverse, "self");
    const ir::Node* sum = graph.producer(shifted, "aten.add.Tensor");
    if (!sum) sum = graph.producer(shifted, "aten.add.Scalar");
    if (!sum || Graph::number(graph.arg(*sum, "alpha")) != 1) continue;
    const std::optional<double> eps = Graph::number(graph.arg(*sum, "other"));
    const ir::Node* mean = graph.producer(graph.arg(*sum, "self"), "aten.mean.dim");
    if (!eps || !mean || !is_f32(&graph.output(*mean))) continue;
    const auto dims = Graph::integers(graph.arg(*mean, "dim"));
    const int rank = graph.tensor(x)->rank();
    if (!dims || dims->size() != 1 || (dims->front() != -1 && dims->front() != rank - 1)) continue;
    if (graph.arg(*mean, "keepdim").i != 1) continue;
    const ir::Arg& squares = graph.arg(*mean, "self");
    if (const ir::Node* power = graph.producer(squares, "aten.pow.Tensor_Scalar")) {
      const ir::Arg& base = graph.arg(*power, "self");
      if (Graph::number(graph.arg(*power, "exponent")) != 2 || !base.is_value() || base.i != x.i) continue;
    } else if (const ir::Node* square = graph.producer(squares, "aten.mul.Tensor")) {
      const ir::Arg &a = graph.arg(*square, "self"), &b = graph.arg(*square, "other");
      if (!a.is_value() || !b.is_value() || a.i != x.i || b.i != x.i) continue;
    } else {
      continue;
    }
    return Normalized{x, *eps};
  }
  return std::nullopt;
}

void replace(Graph& graph, ir::Node& node, const Normalized& normalized, const ir::Arg& weight) {
  const std::int64_t size = *last_size(*graph.tensor(normalized.x));
  ir::Arg sizes{ir::Arg::Kind::list, 0, 0, {}, {ir::Arg::of_integer(size)}};
  graph.replace(node, "aten.rms_norm.default",
                {{"input", normalized.x},
                 {"normalized_shape", std::move(sizes)},
                 {"weight", weight},
                 {"eps", {ir::Arg::Kind::real, 0, normalized.eps, {}, {}}}});
}

void fuse(Graph& graph, ir::Node& node) {
  if (!graph.is(node, "aten.mul.Tensor") || !is_f32(&graph.output(node))) return;
  // With a weight for each element of a row, or the norm alone.
  const std::array factors = {graph.arg(node, "self"), graph.arg(node, "other")};
  for (const int i : {0, 1}) {
    const ir::Arg& weight = factors[static_cast<std::size_t>(i)];
    const ir::Value* value = graph.tensor(weight);
    const auto normalized = match_normalized(graph, factors[static_cast<std::size_t>(1 - i)]);
    if (!normalized || !is_f32(value) || value->rank() != 1) continue;
    if (last_size(*value) != last_size(*graph.tensor(normalized->x))) continue;
    replace(graph, node, *normalized, weight);
    return;
  }
}

}  // namespace

std::size_t fuse_rms_norm(ir::Program& program) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) {
    Graph graph(program, method);
    for (ir::Node& node : graph.nodes()) fuse(graph, node);
    count += graph.rewrites();
  }
  drop_dead_nodes(program);
  for (ir::Method& method : program.methods) {
    Graph graph(program, method);
    for (ir::Node& node : graph.nodes()) {
      if (!graph.is(node, "aten.mul.Tensor")) continue;
      if (const auto normalized = match_normalized(graph, ir::Arg::of_value(node.outputs[0])))
        replace(graph, node, *normalized, {});
    }
    count += graph.rewrites();
  }
  drop_dead_nodes(program);
  return count;
}

}  // namespace graft
