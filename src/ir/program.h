#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "graft/dtype.h"
#include "graft/tensor.h"

// The IR in memory: schema/graft.fbs after verification, as plain data that passes may rewrite.
namespace graft::ir {

using ValueId = std::uint32_t;
inline constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

struct Dim {
  std::int64_t min = 0;
  std::int64_t max = kUnbounded;
  std::string expr;
  bool is_static() const { return min == max; }
};

enum class ValueKind : std::uint8_t { tensor, integer, real, boolean };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::tensor;
  DType dtype = DType::f32;
  std::vector<Dim> dims;
  int rank() const { return static_cast<int>(dims.size()); }
  std::string str() const;  // "f32[1, s77 in 2..512, 384]"
};

struct Arg {
  enum class Kind : std::uint8_t {
    none,
    integer,
    real,
    boolean,
    string,
    value,
    list,
    dtype,
    layout,
    memory_format,
    device,
    graph
  };
  Kind kind = Kind::none;
  std::int64_t i = 0;  // integer, boolean, value id, DType, index into Program::subgraphs
  double f = 0;
  std::string s;
  std::vector<Arg> items;

  static Arg of_value(ValueId id) { return {Kind::value, static_cast<std::int64_t>(id), 0, {}, {}}; }
  static Arg of_integer(std::int64_t i) { return {Kind::integer, i, 0, {}, {}}; }
  static Arg of_real(double f) { return {Kind::real, 0, f, {}, {}}; }
  bool is_value() const { return kind == Kind::value; }
  bool is_graph() const { return kind == Kind::graph; }
  ValueId value() const { return static_cast<ValueId>(i); }
};

// Calls visit with the id of every value in the argument and in the lists it holds.
template <typename Visit>
void for_each_value(const Arg& arg, const Visit& visit) {
  if (arg.is_value()) visit(arg.value());
  for (const Arg& item : arg.items) for_each_value(item, visit);
}

struct Op {
  std::string target;  // "aten.add.Tensor"
  std::vector<std::string> arg_names;
};

struct Node {
  std::uint32_t op = 0;  // index into Program::ops
  std::string name;
  std::vector<Arg> args;  // in the order of Op::arg_names
  std::vector<ValueId> outputs;
  std::string origin;
};

// Of all the node's arguments.
template <typename Visit>
void for_each_value(const Node& node, const Visit& visit) {
  for (const Arg& arg : node.args) for_each_value(arg, visit);
}

// The IR does not interpret names of block types, weight/stored_weight.h does. `panels` are blocks packed for graft's
// kernels.
enum class Storage : std::uint8_t { plain = 0, ggml_block = 1, panels = 3 };

struct Weight {
  std::string key;
  std::string fqn;
  DType dtype = DType::f32;
  Shape shape;
  Storage storage = Storage::plain;
  std::string block_type;
  std::uint64_t byte_size = 0;
  std::vector<std::uint8_t> sha256;
};

// All but `plain` exist in memory only (src/pass/graph/kv_cache.h): each session chooses their sizes.
enum class StateKind : std::uint8_t {
  plain,
  kv,
  kv_length,
  kv_first,
  kv_layer_length,
  kv_encoder,
  kv_encoder_length,
  recurrent,      // [rows, 2, ...]: what a layer keeps of all tokens of a row together
  recurrent_half  // [rows]: which of the two is the row's; a run writes the other one
};

struct State {
  std::string fqn;
  DType dtype = DType::f32;
  Shape shape;
  std::int32_t initial = -1;
  bool persistent = false;
  StateKind kind = StateKind::plain;
  // kv: the attention window of the layer in positions (one number), if the session may keep a ring buffer. kv_first:
  // the distinct windows of the program. kv_layer_length: the layers that it has lengths of.
  std::vector<std::int64_t> windows = {};
};

// `constant` exists in memory only: the result of constant folding, index into the method's folded constants.
enum class InputKind : std::uint8_t { user, weight, state, constant };
struct Input {
  ValueId value = 0;
  InputKind kind = InputKind::user;
  std::uint32_t index = 0;
};

enum class OutputKind : std::uint8_t { user, state_mutation, input_mutation };
struct Output {
  OutputKind kind = OutputKind::user;
  Arg arg;
  std::uint32_t index = 0;
};

struct Method {
  std::string name;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::string in_spec;
  std::string out_spec;
  std::vector<std::string> user_input_names;
};

struct Producer {
  std::string name;
  std::string version;
};

struct Program {
  std::uint16_t major = 0;
  std::uint16_t minor = 0;
  std::vector<Producer> producers;
  std::vector<Op> ops;
  std::vector<Weight> weights;
  std::vector<State> states;
  std::vector<Method> methods;
  std::vector<Method> subgraphs;  // called by control-flow nodes; a sub-graph calls only earlier ones

  const Op& op_of(const Node& node) const { return ops[node.op]; }
  // Throws NotFound, listing the program's methods.
  const Method& method(std::string_view name) const;
};

inline constexpr std::uint16_t kFormatMajor = 1;
inline constexpr std::uint16_t kFormatMinor = 0;
// Lists of arguments nest at most this deep.
inline constexpr int kMaxListDepth = 8;
// Limits of the depth of sub-graph calls, and of a method's calls in total, each call counted.
inline constexpr int kMaxGraphDepth = 8;
inline constexpr std::uint64_t kMaxGraphCalls = 4096;

// Memory of the program in bytes, the object itself included.
std::size_t host_bytes(const Program& program);

// Decodes a blob of schema/graft.fbs. The bytes are untrusted: throws InvalidProgram. The result owns its memory.
Program parse(std::span<const std::byte> blob);

// The executable specification of the IR: every rule of a program beyond the schema, except those of weight formats
// (verify_weights in weight/stored_weight.h). Runs on every load and, in debug builds, after every pass. Throws
// InvalidProgram naming method, node and rule.
void verify(const Program& program, std::uint64_t max_graph_calls = kMaxGraphCalls);

}  // namespace graft::ir
