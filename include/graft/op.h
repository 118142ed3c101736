#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/export.h"
#include "graft/tensor.h"

// Custom operators: what `torch.library` defines in Python, run inside graft's programs. See docs/custom-operators.md.
namespace graft {

// A node of a program before any sizes are known. Arguments are named as in the schema; for a missing one, or one of
// another kind, the members throw InvalidArgument.
class GRAFT_API OpNode {
 public:
  virtual ~OpNode();
  virtual bool has(std::string_view argument) const = 0;        // present and not None
  virtual bool is_tensor(std::string_view argument) const = 0;  // a tensor, not a number
  virtual DType dtype(std::string_view tensor) const = 0;
  virtual int rank(std::string_view tensor) const = 0;
  virtual std::size_t output_count() const = 0;
  virtual DType output_dtype(std::size_t i = 0) const = 0;
  virtual int output_rank(std::size_t i = 0) const = 0;
};

// A node with its arguments, while it is planned for given sizes. No tensor has data yet.
class GRAFT_API OpCall {
 public:
  virtual ~OpCall();
  virtual bool has(std::string_view argument) const = 0;
  virtual Shape shape(std::string_view tensor) const = 0;
  virtual std::int64_t integer(std::string_view argument) const = 0;  // bools too
  virtual double real(std::string_view argument) const = 0;           // any number
  virtual std::string text(std::string_view argument) const = 0;
  virtual std::vector<std::int64_t> integers(std::string_view argument) const = 0;
};

struct OpNumber {
  double real = 0;
  std::int64_t integer = 0;  // of integers and bools
};

// One task of a run. Tasks run side by side, each with the same operands.
struct OpRun {
  std::span<const TensorView> inputs;   // tensors that are not None in the schema's order, lists spread; contiguous
  std::span<const TensorView> outputs;  // contiguous, not initialized
  std::span<const OpNumber> numbers;    // numbers and bools in the schema's order, lists spread
  int task = 0;                         // 0 .. tasks - 1
  int tasks = 1;
};

struct OpDefinition {
  std::string target;  // "namespace.name.overload", the last is "default" where the schema names none
  // Why a node is refused; empty when it is accepted. Must hold for all sizes. Null: every node is accepted.
  std::function<std::string(const OpNode&)> refuse;
  // The sizes of each output. Throws InvalidArgument where the operator would fail.
  std::function<std::vector<Shape>(const OpCall&)> shape;
  // Computes the outputs from the inputs, without other effects. An exception from it ends the run with an
  // ExecutionError.
  std::function<void(const OpRun&)> run;
  bool parallel = false;  // split a run into several tasks at once, else one
};

// Registers an operator for the life of the process. Programs loaded or exported later may use it. Throws
// InvalidArgument for a target that is registered already or malformed, and without `shape` or `run`. Thread-safe.
GRAFT_API void register_op(OpDefinition op);

// Loads a shared library and calls its `extern "C" void graft_register_ops()`, once. Throws SystemError when it does
// not load, NotFound without that function, and whatever the function throws.
GRAFT_API void load_ops(const std::string& path);

}  // namespace graft
