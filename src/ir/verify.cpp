#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "ir/program.h"

namespace graft::ir {
namespace {

constexpr std::size_t kSha256Bytes = 32;

#define GRAFT_RULE(condition, ...) GRAFT_CHECK(InvalidProgram, condition, __VA_ARGS__)

bool known(DType dtype) { return static_cast<std::size_t>(dtype) < kDTypeCount; }

// Inserts the name, or throws if it is empty or taken.
void check_unique(std::unordered_set<std::string_view>& names, std::string_view name, std::string_view what) {
  GRAFT_RULE(!name.empty(), what, " ", names.size(), " has an empty name");
  GRAFT_RULE(names.insert(name).second, what, " '", name, "' appears twice");
}

// Bytes of a plain tensor. Counts sizes of 0 as 1, so that strides of empty tensors cannot overflow either.
void check_sizes(DType dtype, const Shape& shape, std::string_view owner) {
  GRAFT_RULE(known(dtype), owner, ": dtype ", static_cast<int>(dtype), " is not known");
  auto bytes = static_cast<std::int64_t>(byte_size(dtype));
  for (int d = 0; d < shape.rank(); ++d) {
    GRAFT_RULE(shape[d] >= 0, owner, ": size of dimension ", d, " must not be negative, found ", shape[d]);
    GRAFT_RULE(shape[d] == 0 || !__builtin_mul_overflow(bytes, shape[d], &bytes), owner, ": the size of ", shape.str(),
               " does not fit 64 bits");
  }
}

void check_weight(const Program& program, std::size_t index) {
  const Weight& weight = program.weights[index];
  const std::string owner = str("weight '", weight.key, "'");
  check_sizes(weight.dtype, weight.shape, owner);
  GRAFT_RULE(weight.sha256.empty() || weight.sha256.size() == kSha256Bytes, owner, ": sha256 must have ", kSha256Bytes,
             " bytes or none, found ", weight.sha256.size());
  if (weight.storage == Storage::ggml_block || weight.storage == Storage::panels) {
    GRAFT_RULE(!weight.block_type.empty(), owner, ": block storage without a block type");
    GRAFT_RULE(weight.dtype == DType::f32, owner, ": values stored in blocks must be f32, found ", name(weight.dtype));
    return;
  }
  GRAFT_RULE(weight.storage == Storage::plain, owner, ": storage ", static_cast<int>(weight.storage), " is not known");
  GRAFT_RULE(weight.block_type.empty(), owner, ": plain storage with block type '", weight.block_type, "'");
  const auto expected = static_cast<std::uint64_t>(weight.shape.numel()) * byte_size(weight.dtype);
  GRAFT_RULE(weight.byte_size == expected, owner, ": ", name(weight.dtype), weight.shape.str(), " takes ", expected,
             " bytes, found ", weight.byte_size);
}

void check_state(const Program& program, const State& state) {
  const std::string owner = str("state '", state.fqn, "'");
  check_sizes(state.dtype, state.shape, owner);
  if (state.initial == -1) return;
  GRAFT_RULE(state.initial >= 0 && static_cast<std::size_t>(state.initial) < program.weights.size(), owner,
             ": its initial value must be one of the ", program.weights.size(), " weights or -1, found ",
             state.initial);
  const Weight& initial = program.weights[static_cast<std::size_t>(state.initial)];
  GRAFT_RULE(initial.storage == Storage::plain && initial.dtype == state.dtype && initial.shape == state.shape, owner,
             ": its initial value must be ", name(state.dtype), state.shape.str(), ", weight '", initial.key, "' is ",
             name(initial.dtype), initial.shape.str());
}

class MethodVerifier {
 public:
  // The method may call the program's first `subgraphs` sub-graphs.
  MethodVerifier(const Program& program, const Method& method, std::size_t subgraphs)
      : program_(program), method_(method), subgraphs_(subgraphs), defined_(method.values.size(), false) {}

  void run() {
    for (const Value& value : method_.values) check_value(value);
    check_inputs();
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) check_node(i);
    check_outputs();
  }

  // For sub-graphs, which exchange data with their caller only.
  void run_subgraph() {
    run();
    for (std::size_t i = 0; i < method_.inputs.size(); ++i)
      rule(method_.inputs[i].kind == InputKind::user || method_.inputs[i].kind == InputKind::weight, str("input ", i),
           "a sub-graph has user inputs and weights only");
    for (std::size_t i = 0; i < method_.outputs.size(); ++i)
      rule(method_.outputs[i].kind == OutputKind::user, str("output ", i), "a sub-graph has user outputs only");
  }

 private:
  // One rule of this method; `owner` says which part of it.
  template <typename... Parts>
  void rule(bool holds, const std::string& owner, const Parts&... parts) const {
    if (!holds) throw InvalidProgram(str("method '", method_.name, "', ", owner, ": ", parts...));
  }

  void check_value(const Value& value) const {
    GRAFT_RULE(!value.name.empty(), "method '", method_.name, "': value ", &value - method_.values.data(),
               " has an empty name");
    const bool good = known(value.dtype) && value.kind <= ValueKind::boolean;
    if (good && value.dims.empty()) return;
    const std::string owner = str("value '", value.name, "'");
    rule(value.kind <= ValueKind::boolean, owner, "kind ", static_cast<int>(value.kind), " is not known");
    rule(known(value.dtype), owner, "dtype ", static_cast<int>(value.dtype), " is not known");
    const bool is_tensor = value.kind == ValueKind::tensor;
    const std::size_t most = is_tensor ? static_cast<std::size_t>(kMaxRank) : 1;
    rule(value.dims.size() <= most, owner, is_tensor ? "at most " : "a number has at most ", most,
         is_tensor ? " dimensions, found " : " range, found ", value.dims.size());
    auto least_bytes = static_cast<std::int64_t>(byte_size(value.dtype));
    for (const Dim& dim : value.dims) {
      rule(dim.min <= dim.max && (dim.min >= 0 || !is_tensor), owner, "a range must be 0 <= min <= max, found ",
           dim.min, " to ", dim.max);
      if (is_tensor)
        rule(dim.min == 0 || !__builtin_mul_overflow(least_bytes, dim.min, &least_bytes), owner,
             "its smallest size does not fit 64 bits: ", value.str());
    }
  }

  void define(std::uint32_t id, const std::string& owner) {
    rule(id < defined_.size(), owner, "value ids end at ", defined_.size(), ", found ", id);
    rule(!defined_[id], owner, "value '", method_.values[id].name, "' is defined a second time");
    defined_[id] = true;
  }

  // Marks `index` of a table as taken. Allocates only once an index is used, and never more than `count` entries.
  void take(std::vector<bool>& taken, std::uint32_t index, std::size_t count, const std::string& owner,
            std::string_view what) const {
    rule(index < count, owner, "there are ", count, " ", what, ", found index ", index);
    if (taken.empty()) taken.resize(count, false);
    rule(!taken[index], owner, what, " index ", index, " appears twice");
    taken[index] = true;
  }

  // True when a tensor of exactly `dtype` and `shape` may be bound to the value.
  static bool fits(const Value& value, DType dtype, const Shape& shape) {
    if (value.kind != ValueKind::tensor || value.dtype != dtype || value.rank() != shape.rank()) return false;
    for (int d = 0; d < shape.rank(); ++d) {
      const Dim& dim = value.dims[static_cast<std::size_t>(d)];
      if (shape[d] < dim.min || shape[d] > dim.max) return false;
    }
    return true;
  }

  // A user input that is neither tensor nor number (None, a string) has a name and no value.
  void check_inputs() {
    std::size_t users = 0;
    for (const Input& input : method_.inputs) users += input.kind == InputKind::user;
    rule(method_.user_input_names.empty() || users <= method_.user_input_names.size(), "inputs",
         method_.user_input_names.size(), " names for ", users, " user inputs");
    if (!method_.user_input_names.empty()) users = method_.user_input_names.size();
    user_values_.resize(users);
    std::vector<bool> taken_users;
    std::vector<bool> taken_states;
    std::vector<bool> taken_constants;
    for (std::size_t i = 0; i < method_.inputs.size(); ++i) {
      const Input& input = method_.inputs[i];
      const std::string owner = str("input ", i);
      define(input.value, owner);
      const Value& value = method_.values[input.value];
      switch (input.kind) {
        case InputKind::user:
          take(taken_users, input.index, users, owner, "user inputs");
          user_values_[input.index] = input.value;
          break;
        case InputKind::weight: {
          rule(input.index < program_.weights.size(), owner, "there are ", program_.weights.size(),
               " weights, found index ", input.index);
          const Weight& weight = program_.weights[input.index];
          // f32 values may be stored as another float type.
          const bool half = weight.storage == Storage::plain &&
                            (weight.dtype == DType::f16 || weight.dtype == DType::bf16) && value.dtype == DType::f32;
          rule(fits(value, half ? DType::f32 : weight.dtype, weight.shape), owner, "value '", value.name, "' is ",
               value.str(), ", its weight '", weight.key, "' is ", name(weight.dtype), weight.shape.str());
          break;
        }
        case InputKind::state: {
          take(taken_states, input.index, program_.states.size(), owner, "states");
          const State& state = program_.states[input.index];
          rule(fits(value, state.dtype, state.shape), owner, "value '", value.name, "' is ", value.str(),
               ", its state '", state.fqn, "' is ", name(state.dtype), state.shape.str());
          break;
        }
        case InputKind::constant:  // made by constant folding, never read from a file
          take(taken_constants, input.index, method_.inputs.size(), owner, "constants");
          break;
        default:
          rule(false, owner, "kind ", static_cast<int>(input.kind), " is not known");
      }
    }
  }

  void check_node(std::size_t index) {
    const Node& node = method_.nodes[index];
    std::string owner = str("node ", index, " '", node.name, "'");
    rule(!node.name.empty(), owner, "it has an empty name");
    rule(node.op < program_.ops.size(), owner, "there are ", program_.ops.size(), " ops, found index ", node.op);
    const Op& op = program_.op_of(node);
    owner += str(" (", op.target, ")");
    rule(node.args.size() == op.arg_names.size(), owner, "expected ", op.arg_names.size(), " arguments, found ",
         node.args.size());
    for (std::size_t a = 0; a < node.args.size(); ++a) check_arg(node.args[a], owner, op.arg_names[a], 0);
    for (ValueId id : node.outputs) define(id, owner);
  }

  void check_arg(const Arg& arg, const std::string& owner, const std::string& name, int depth) const {
    rule(depth <= kMaxListDepth, owner, "argument '", name, "': lists nest at most ", kMaxListDepth, " deep");
    rule(arg.kind <= Arg::Kind::graph, owner, "argument '", name, "': kind ", static_cast<int>(arg.kind),
         " is not known");
    if (arg.kind == Arg::Kind::list) {
      for (const Arg& item : arg.items) check_arg(item, owner, name, depth + 1);
      return;
    }
    rule(arg.items.empty(), owner, "argument '", name, "' is not a list but has ", arg.items.size(), " items");
    switch (arg.kind) {
      case Arg::Kind::value: {
        rule(arg.i >= 0 && static_cast<std::uint64_t>(arg.i) < defined_.size(), owner, "argument '", name,
             "': value ids end at ", defined_.size(), ", found ", arg.i);
        const auto id = static_cast<std::size_t>(arg.i);
        rule(defined_[id], owner, "argument '", name, "': value '", method_.values[id].name,
             "' is used before it is defined");
        break;
      }
      case Arg::Kind::boolean:
        rule(arg.i == 0 || arg.i == 1, owner, "argument '", name, "': a bool is 0 or 1, found ", arg.i);
        break;
      case Arg::Kind::dtype:
        rule(arg.i >= 0 && static_cast<std::uint64_t>(arg.i) < kDTypeCount, owner, "argument '", name, "': dtype ",
             arg.i, " is not known");
        break;
      case Arg::Kind::graph:
        rule(arg.i >= 0 && static_cast<std::uint64_t>(arg.i) < subgraphs_, owner, "argument '", name,
             "': the sub-graphs that it may call end at ", subgraphs_, ", found ", arg.i);
        break;
      default:
        break;
    }
  }

  void check_outputs() {
    std::size_t users = 0;
    for (const Output& output : method_.outputs) users += output.kind == OutputKind::user;
    std::vector<bool> taken_users;
    std::vector<bool> taken_states;
    std::vector<bool> taken_inputs;
    for (std::size_t i = 0; i < method_.outputs.size(); ++i) {
      const Output& output = method_.outputs[i];
      const std::string owner = str("output ", i);
      rule(output.arg.kind <= Arg::Kind::value, owner, "it must be a value or a constant, found argument kind ",
           static_cast<int>(output.arg.kind));
      check_arg(output.arg, owner, "value", 0);
      if (output.kind == OutputKind::user) {
        take(taken_users, output.index, users, owner, "user outputs");
        continue;
      }
      rule(output.arg.is_value(), owner, "a mutation must write a value, found a constant");
      const Value& value = method_.values[output.arg.value()];
      if (output.kind == OutputKind::state_mutation) {
        take(taken_states, output.index, program_.states.size(), owner, "states");
        const State& state = program_.states[output.index];
        rule(fits(value, state.dtype, state.shape), owner, "value '", value.name, "' is ", value.str(), ", the state '",
             state.fqn, "' it is written to is ", name(state.dtype), state.shape.str());
      } else {
        rule(output.kind == OutputKind::input_mutation, owner, "kind ", static_cast<int>(output.kind), " is not known");
        take(taken_inputs, output.index, user_values_.size(), owner, "user inputs");
        rule(user_values_[output.index].has_value(), owner, "user input ", output.index, " has no value to write to");
        const Value& target = method_.values[*user_values_[output.index]];
        rule(value.kind == ValueKind::tensor && target.kind == ValueKind::tensor && value.dtype == target.dtype &&
                 value.rank() == target.rank(),
             owner, "value '", value.name, "' is ", value.str(), ", the input '", target.name, "' it is written to is ",
             target.str());
      }
    }
  }

  const Program& program_;
  const Method& method_;
  const std::size_t subgraphs_;
  std::vector<bool> defined_;
  std::vector<std::optional<ValueId>> user_values_;  // by position
};

// The calls of a method, counting a sub-graph each time it is called: one pass, as sub-graphs call only earlier ones.
struct Calls {
  std::uint64_t count = 1;
  int depth = 0;
};

Calls calls_of(const Method& method, const std::vector<Calls>& known, std::uint64_t most) {
  Calls calls;
  const auto visit = [&](const auto& self, const Arg& arg) -> void {
    for (const Arg& item : arg.items) self(self, item);
    if (!arg.is_graph()) return;
    const Calls& callee = known[static_cast<std::size_t>(arg.i)];
    if (__builtin_add_overflow(calls.count, callee.count, &calls.count)) calls.count = UINT64_MAX;
    calls.depth = std::max(calls.depth, callee.depth + 1);
  };
  for (const Node& node : method.nodes)
    for (const Arg& arg : node.args) visit(visit, arg);
  GRAFT_RULE(calls.depth <= kMaxGraphDepth, "method '", method.name, "': sub-graphs call one another at most ",
             kMaxGraphDepth, " deep");
  GRAFT_CHECK(Unsupported, calls.count <= most, "method '", method.name, "': it and what it calls are ", calls.count,
              " graphs, at most ", most, " are allowed (max_graph_calls)");
  return calls;
}

}  // namespace

void verify(const Program& program, std::uint64_t max_graph_calls) {
  for (const Op& op : program.ops) GRAFT_RULE(!op.target.empty(), "op ", &op - program.ops.data(), " has no target");
  // Tensors with equal bytes share a key whatever their dtypes and shapes.
  std::unordered_map<std::string_view, const Weight*> keys;
  for (std::size_t i = 0; i < program.weights.size(); ++i) {
    const Weight& weight = program.weights[i];
    GRAFT_RULE(!weight.key.empty(), "weight ", i, " ('", weight.fqn, "') has an empty key");
    check_weight(program, i);
    const Weight& first = *keys.try_emplace(weight.key, &weight).first->second;
    GRAFT_RULE(first.byte_size == weight.byte_size && first.sha256 == weight.sha256, "weight '", weight.key,
               "' appears with ", first.byte_size, " bytes and with ", weight.byte_size,
               " bytes or with different hashes");
  }
  std::unordered_set<std::string_view> fqns;
  for (const State& state : program.states) {
    check_unique(fqns, state.fqn, "state");
    check_state(program, state);
  }
  std::unordered_set<std::string_view> names;
  for (const Method& method : program.methods) {
    check_unique(names, method.name, "method");
    MethodVerifier(program, method, program.subgraphs.size()).run();
  }
  std::vector<Calls> calls;
  for (const Method& graph : program.subgraphs) {
    check_unique(names, graph.name, "sub-graph");
    MethodVerifier(program, graph, calls.size()).run_subgraph();
    calls.push_back(calls_of(graph, calls, max_graph_calls));
  }
  for (const Method& method : program.methods) calls_of(method, calls, max_graph_calls);
}

}  // namespace graft::ir
