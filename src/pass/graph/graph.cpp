#include "pass/graph/graph.h"

#include <algorithm>

#include "base/check.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

}  // namespace

Graph::Graph(ir::Program& program, ir::Method& method)
    : program_(program), method_(method), producers_(method.values.size(), kNone) {
  for (std::size_t n = 0; n < method.nodes.size(); ++n)
    if (!method.nodes[n].outputs.empty()) producers_[method.nodes[n].outputs[0]] = n;
}

const ir::Node* Graph::producer(const ir::Arg& arg, std::string_view target) const {
  // A pass may have added values since.
  if (!arg.is_value() || arg.value() >= producers_.size() || producers_[arg.value()] == kNone) return nullptr;
  const ir::Node& node = method_.nodes[producers_[arg.value()]];
  return is(node, target) ? &node : nullptr;
}

const ir::Arg& Graph::arg(const ir::Node& node, std::string_view name) const {
  const std::vector<std::string>& names = program_.op_of(node).arg_names;
  const auto it = std::ranges::find(names, name);
  GRAFT_CHECK(InvalidProgram, it != names.end(), "node ", node.name, " (", program_.op_of(node).target,
              ") has no argument '", name, "'");
  return node.args[static_cast<std::size_t>(it - names.begin())];
}

const ir::Value* Graph::tensor(const ir::Arg& arg) const {
  if (!arg.is_value()) return nullptr;
  const ir::Value& value = method_.values[arg.value()];
  return value.kind == ir::ValueKind::tensor ? &value : nullptr;
}

std::optional<double> Graph::number(const ir::Arg& arg) {
  if (arg.kind == ir::Arg::Kind::real) return arg.f;
  if (arg.kind == ir::Arg::Kind::integer) return static_cast<double>(arg.i);
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> Graph::integers(const ir::Arg& arg) {
  if (arg.kind == ir::Arg::Kind::integer) return std::vector{arg.i};
  if (arg.kind != ir::Arg::Kind::list) return std::nullopt;
  std::vector<std::int64_t> out;
  for (const ir::Arg& item : arg.items) {
    if (item.kind != ir::Arg::Kind::integer) return std::nullopt;
    out.push_back(item.i);
  }
  return out;
}

void Graph::replace(ir::Node& node, std::string_view target, Args args) {
  set(node, target, std::move(args));
  ++rewrites_;
}

void Graph::set(ir::Node& node, std::string_view target, Args args) {
  ir::Op op{std::string(target), {}};
  node.args.clear();
  for (auto& [name, arg] : args) {
    op.arg_names.push_back(std::move(name));
    node.args.push_back(std::move(arg));
  }
  const auto it = std::ranges::find_if(
      program_.ops, [&](const ir::Op& known) { return known.target == op.target && known.arg_names == op.arg_names; });
  node.op = static_cast<std::uint32_t>(it - program_.ops.begin());
  if (it == program_.ops.end()) program_.ops.push_back(std::move(op));
}

ir::Arg Graph::add(std::string name, std::string_view target, Args args, DType dtype, std::vector<ir::Dim> dims) {
  ir::Node node;
  node.name = name;
  node.outputs = {static_cast<ir::ValueId>(method_.values.size())};
  method_.values.push_back({std::move(name), ir::ValueKind::tensor, dtype, std::move(dims)});
  set(node, target, std::move(args));
  added_.push_back(std::move(node));
  return ir::Arg::of_value(added_.back().outputs[0]);
}

void Graph::prepend_added() {
  method_.nodes.insert(method_.nodes.begin(), added_.begin(), added_.end());
  added_.clear();
}

bool Graph::is_weight(const ir::Arg& arg) const {
  return arg.is_value() && std::ranges::any_of(method_.inputs, [&](const ir::Input& input) {
           return input.kind == ir::InputKind::weight && input.value == arg.value();
         });
}

int Graph::uses(ir::ValueId value) const {
  int count = 0;
  const auto look = [&](ir::ValueId id) { count += id == value; };
  for (const ir::Node& node : method_.nodes) ir::for_each_value(node, look);
  for (const ir::Output& output : method_.outputs) ir::for_each_value(output.arg, look);
  return count;
}

bool is_kept_at_load(std::int64_t input_bytes, std::int64_t result_bytes) {
  constexpr std::int64_t kAlwaysKept = 64 * 1024;  // bytes
  constexpr std::int64_t kMaxGrowth = 2;
  return result_bytes <= kAlwaysKept || result_bytes / kMaxGrowth + result_bytes % kMaxGrowth <= input_bytes;
}

void drop_dead_nodes(ir::Program& program) {
  for (ir::Method& method : program.methods) {
    std::vector<bool> read(method.values.size(), false);
    const auto mark = [&](ir::ValueId id) { read[id] = true; };
    for (const ir::Output& output : method.outputs) ir::for_each_value(output.arg, mark);
    for (auto node = method.nodes.rbegin(); node != method.nodes.rend(); ++node) {
      const bool writes = program.op_of(*node).target.starts_with("graft.cache");  // the cache, besides its result
      if (!writes && std::ranges::none_of(node->outputs, [&](ir::ValueId id) { return read[id]; })) {
        node->outputs.clear();
        continue;
      }
      ir::for_each_value(*node, mark);
    }
    std::erase_if(method.nodes, [](const ir::Node& node) { return node.outputs.empty(); });
  }
}

}  // namespace graft
