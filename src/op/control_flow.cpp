#include <algorithm>

#include "base/check.h"
#include "op/host.h"

namespace graft {
namespace {

// The value of an argument; a number written in the graph gets one of its kind.
ir::Value as_value(const ir::Method& method, const ir::Arg& arg) {
  if (arg.is_value()) return method.values[arg.value()];
  ir::Value number;
  number.kind = arg.kind == ir::Arg::Kind::real      ? ir::ValueKind::real
                : arg.kind == ir::Arg::Kind::boolean ? ir::ValueKind::boolean
                                                     : ir::ValueKind::integer;
  return number;
}

bool is_operand(const ir::Arg& arg) {
  return arg.is_value() || arg.kind == ir::Arg::Kind::integer || arg.kind == ir::Arg::Kind::boolean ||
         arg.kind == ir::Arg::Kind::real;
}

bool same_type(const ir::Value& a, const ir::Value& b) {
  return a.kind == b.kind && (a.kind != ir::ValueKind::tensor || (a.dtype == b.dtype && a.rank() == b.rank()));
}

bool is_condition(const ir::Value& value) {
  if (value.kind == ir::ValueKind::tensor)
    return value.dtype == DType::b8 &&
           std::ranges::all_of(value.dims, [](const ir::Dim& d) { return d.min == 1 && d.max == 1; });
  return value.kind == ir::ValueKind::boolean;
}

// Checks that the graph accepts these operands and gives such results, and that all of its nodes run.
Refusal refuse_graph(const NodeView& node, std::string_view argument, std::span<const ir::Arg> operands,
                     std::span<const ir::Value> results) {
  const ir::Arg& arg = node.arg(argument);
  if (!arg.is_graph()) return str("argument ", argument, " is no graph");
  const ir::Program& program = node.program();
  const ir::Method& graph = program.subgraphs[static_cast<std::size_t>(arg.i)];
  for (const ir::Input& input : graph.inputs) {
    if (input.kind != ir::InputKind::user) continue;
    if (input.index >= operands.size())
      return str("graph '", graph.name, "' takes more than the ", operands.size(), " operands");
    const ir::Value given = as_value(node.method(), operands[input.index]);
    const ir::Value& taken = graph.values[input.value];
    if (!same_type(given, taken))
      return str("graph '", graph.name, "' takes ", taken.str(), " as operand ", input.index, ", it is ", given.str());
  }
  if (graph.outputs.size() != results.size())
    return str("graph '", graph.name, "' gives ", graph.outputs.size(), " results, not ", results.size());
  for (const ir::Output& output : graph.outputs) {
    const bool fits = is_operand(output.arg) && same_type(as_value(graph, output.arg), results[output.index]);
    if (!fits)
      return str("result ", output.index, " of graph '", graph.name, "' must be ", results[output.index].str());
  }
  for (const ir::Node& inner : graph.nodes) {
    const NodeView view(program, graph, inner);
    if (Refusal reason = refuse(view); !reason.empty())
      return str("node ", inner.name, " (", view.target(), ") of graph '", graph.name, "': ", reason);
  }
  return {};
}

std::vector<ir::Value> results_of(const NodeView& node) {
  std::vector<ir::Value> out;
  for (std::size_t i = 0; i < node.output_count(); ++i) out.push_back(node.output(i));
  return out;
}

}  // namespace

Refusal refuse_control_flow(const NodeView& node) {
  std::vector<ir::Arg> operands;
  for (const std::string_view list : {"c", "d"})
    if (node.arg(list).kind == ir::Arg::Kind::list)
      operands.insert(operands.end(), node.arg(list).items.begin(), node.arg(list).items.end());
  for (const ir::Arg& operand : operands)
    if (!is_operand(operand)) return "an operand that is neither a tensor nor a number";
  const std::vector<ir::Value> results = results_of(node);
  if (node.target() == kCond) {
    if (!is_operand(node.arg("a")) || !is_condition(as_value(node.method(), node.arg("a"))))
      return "a predicate that is no bool of one element";
    Refusal reason = refuse_graph(node, "b", operands, results);
    return reason.empty() ? refuse_graph(node, "c", operands, results) : reason;
  }
  const std::vector<ir::Arg>& carried = node.arg("c").items;
  if (carried.size() != results.size()) return str(carried.size(), " carried operands, ", results.size(), " results");
  for (std::size_t i = 0; i < carried.size(); ++i)
    if (!same_type(as_value(node.method(), carried[i]), results[i]))
      return str("carried operand ", i, " is ", as_value(node.method(), carried[i]).str(), ", result ", i, " is ",
                 results[i].str());
  if (!node.arg("a").is_graph()) return "argument a is no graph";
  const ir::Method& condition = node.program().subgraphs[static_cast<std::size_t>(node.arg("a").i)];
  if (condition.outputs.size() != 1 || !is_operand(condition.outputs[0].arg)) return "a condition without a result";
  const ir::Value answer = as_value(condition, condition.outputs[0].arg);
  if (!is_condition(answer)) return "a condition that is no bool of one element";
  Refusal reason = refuse_graph(node, "a", operands, std::span(&answer, 1));
  return reason.empty() ? refuse_graph(node, "b", operands, results) : reason;
}

}  // namespace graft
