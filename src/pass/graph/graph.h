#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/program.h"

namespace graft {

inline bool same_size(const ir::Dim& a, const ir::Dim& b) {
  return a.min == b.min && a.max == b.max && a.expr == b.expr;
}
inline bool same_sizes(const ir::Value& a, const ir::Value& b) { return std::ranges::equal(a.dims, b.dims, same_size); }

// A method as passes see it: which node makes a value, what a node is, and replacing a node's operator.
class Graph {
 public:
  Graph(ir::Program& program, ir::Method& method);

  // The node that makes the value; null for an input, another operator, or a value that is not result 0.
  const ir::Node* producer(const ir::Arg& arg, std::string_view target) const;
  bool is(const ir::Node& node, std::string_view target) const { return program_.op_of(node).target == target; }
  // Asserts that the operator has the argument.
  const ir::Arg& arg(const ir::Node& node, std::string_view name) const;
  const std::vector<std::string>& names(const ir::Node& node) const { return program_.op_of(node).arg_names; }
  // Null if it is no tensor.
  const ir::Value* tensor(const ir::Arg& arg) const;
  const ir::Value& output(const ir::Node& node) const { return method_.values[node.outputs[0]]; }

  // A number written in the graph, not computed.
  static std::optional<double> number(const ir::Arg& arg);
  // The integers of a list.
  static std::optional<std::vector<std::int64_t>> integers(const ir::Arg& arg);

  // The node keeps its name, position and results. Counts as a rewrite.
  using Args = std::vector<std::pair<std::string, ir::Arg>>;
  void replace(ir::Node& node, std::string_view target, Args args);

  // The value of a new node that reads weights only and has one tensor result. prepend_added() inserts all such nodes
  // in front of the others and must be the last call.
  ir::Arg add(std::string name, std::string_view target, Args args, DType dtype, std::vector<ir::Dim> dims);
  void prepend_added();

  // Whether it is a weight of the program, as stored.
  bool is_weight(const ir::Arg& arg) const;
  // How often nodes and results read the value.
  int uses(ir::ValueId value) const;

  std::vector<ir::Node>& nodes() { return method_.nodes; }
  std::size_t rewrites() const { return rewrites_; }

 private:
  void set(ir::Node& node, std::string_view target, Args args);

  ir::Program& program_;
  ir::Method& method_;
  std::vector<std::size_t> producers_;  // by value: index of the node, or kNone
  std::vector<ir::Node> added_;
  std::size_t rewrites_ = 0;
};

}  // namespace graft
