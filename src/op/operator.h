#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/tensor.h"
#include "ir/program.h"
#include "ir/scalar.h"
#include "lowering/tensor.h"

// One ATen operator = one entry: acceptance, shape rule, lowering. Nothing else in the engine knows ops.
namespace graft {

class Lowering;

// A node with the ranges of its shapes, before any input is known: the input of Operator::refuse. Arguments go by their
// names in the ATen schema; a name that the schema lacks is a bug and asserts.
class NodeView {
 public:
  NodeView(const ir::Program& program, const ir::Method& method, const ir::Node& node)
      : program_(program), method_(method), node_(node) {}

  std::string_view target() const;
  const ir::Node& node() const { return node_; }
  const std::vector<std::string>& arg_names() const { return program_.op_of(node_).arg_names; }
  const ir::Arg& arg(std::string_view name) const;
  bool has(std::string_view name) const;                   // present and not None
  bool is_tensor(std::string_view name) const;             // a tensor value, not a number
  const ir::Value& tensor(std::string_view name) const;    // must be a tensor value
  ir::ValueKind value_kind(std::string_view name) const {  // of a value computed in the graph
    return method_.values[arg(name).value()].kind;
  }
  std::vector<const ir::Value*> tensors(std::string_view name) const;  // a list; nullptr where an item is None
  std::optional<std::int64_t> constant(std::string_view name) const;   // integer or boolean known at export
  const ir::Value& output(std::size_t i = 0) const;
  std::size_t output_count() const { return node_.outputs.size(); }
  bool output_is_read(std::size_t i) const;  // by a node, or returned by the method
  const ir::Program& program() const { return program_; }
  const ir::Method& method() const { return method_; }

 private:
  const ir::Program& program_;
  const ir::Method& method_;
  const ir::Node& node_;
};

// The value of each IR value during planning: a tensor of the plan or a number.
struct Binding {
  std::optional<Tensor> tensor;
  Scalar scalar;
};

// A node with its concrete arguments, during planning.
class Call {
 public:
  Call(const ir::Program& program, const ir::Method& method, const ir::Node& node, std::span<const Binding> bindings)
      : program_(program), method_(method), node_(node), bindings_(bindings) {}

  std::string_view target() const;
  const ir::Node& node() const { return node_; }
  const std::vector<std::string>& arg_names() const { return program_.op_of(node_).arg_names; }
  const ir::Arg& arg(std::string_view name) const;
  bool has(std::string_view name) const;
  bool is_tensor(std::string_view name) const;
  const Tensor& tensor(std::string_view name) const;
  std::optional<Tensor> optional_tensor(std::string_view name) const;
  std::vector<Tensor> tensors(std::string_view name) const;
  std::vector<std::optional<Tensor>> optional_tensors(std::string_view name) const;
  // The tensors and numbers of a list, without its None items.
  std::vector<Binding> items(std::string_view name) const;
  Scalar scalar(std::string_view name) const;  // any number, computed in the graph or not
  std::int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  bool boolean(std::string_view name) const;
  std::string_view text(std::string_view name) const;
  std::vector<std::int64_t> integers(std::string_view name) const;  // a list of ints; a lone int is a list of one
  std::vector<double> reals(std::string_view name) const;           // likewise of any numbers
  DType output_dtype(std::size_t i = 0) const;                      // as declared by the exporter
  std::size_t output_count() const { return node_.outputs.size(); }
  Shape least_shape(std::size_t i) const;  // the smallest one declared: for an output that nobody reads

 private:
  Scalar scalar_of(const ir::Arg& arg) const;

  const ir::Program& program_;
  const ir::Method& method_;
  const ir::Node& node_;
  std::span<const Binding> bindings_;
};

// How an operator reads a weight matrix whose stored type differs from its dtype (weight/stored.h). For every other use
// the weight is converted at load.
enum class StoredUse : std::uint8_t {
  none,
  rows,        // reads it, stored along its last dimension
  columns,     // reads the transposed view of such a matrix
  transposes,  // makes that view
};

// Why an instance is refused, as expected and found; empty if it is accepted.
using Refusal = std::string;

struct Operator {
  std::string_view target;  // "aten.add.Tensor"
  // Decides from dtypes, ranks and attributes alone. The answer must hold for every shape in the value's ranges.
  Refusal (*refuse)(const NodeView&);
  // Sizes of each output for concrete inputs. Throws InvalidArgument where PyTorch would.
  std::vector<Shape> (*shape)(const Call&);
  // Emits launches (or makes views) and returns one tensor per output; shapes and dtypes must be those of `shape`.
  std::vector<Tensor> (*lower)(const Call&, std::span<const Shape> output_shapes, Lowering&);
  // Kept whole at export if every instance is accepted (ATen would decompose it otherwise).
  bool preserve = false;
  // Makes only views of its inputs: free at run time, so never folded.
  bool view = false;
  // The result is argument "self" with part of its elements overwritten: `lower` gets the tensor to write from
  // Lowering::writable(), which is the state's own memory if the planner allows it.
  bool updates = false;
  // For the named argument, a matrix. nullptr: none, for all arguments.
  StoredUse (*stored_use)(const NodeView&, std::string_view argument) = nullptr;
  // The result differs in every run with the same arguments: never folded.
  bool random = false;
};

// An operator on numbers ("aten.sym_size.int", "python.mul"): evaluated while planning, never launched.
struct ScalarOperator {
  std::string_view target;
  Refusal (*refuse)(const NodeView&);
  Scalar (*evaluate)(const Call&);
};

// nullptr if there is no such operator.
const Operator* find_operator(std::string_view target);
const ScalarOperator* find_scalar_operator(std::string_view target);
// In the order of src/op/registry.cpp.
std::vector<const Operator*> all_operators();
std::vector<const ScalarOperator*> all_scalar_operators();

// The one predicate of export, load and the partitioner: empty if the node can run.
Refusal refuse(const NodeView& node);

}  // namespace graft
