#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/export.h"
#include "graft/tensor.h"

// Custom operators: what `torch.library` defines in Python, run inside graft's programs. See docs/custom-operators.md.
namespace graft {

class Program;

// A node of a program before any sizes are known. Arguments are named as in the schema; for a missing one, or one of
// another kind, the members throw InvalidArgument.
class GRAFT_API OpNode {
 public:
  virtual ~OpNode();
  virtual std::vector<std::string> arguments() const = 0;       // names, in the schema's order
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
  virtual std::vector<std::string> arguments() const = 0;  // names, in the schema's order
  virtual int threads() const = 0;                         // of the sessions that will run the plan
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
  // Memory from the plan's arena: OpDefinition::scratch_bytes, aligned to 64 bytes, not initialized, shared by the
  // tasks. What it holds is lost after the run.
  std::span<std::byte> scratch;
  int task = 0;  // 0 .. tasks - 1
  int tasks = 1;
  int threads = 1;  // of the session
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
  // Bytes of scratch memory for a run. Null: none.
  std::function<std::size_t(const OpCall&)> scratch_bytes;
};

// Registers an operator for the life of the process. Programs loaded or exported later may use it. Throws
// InvalidArgument for a target that is registered already or malformed, and without `shape` or `run`. Thread-safe.
GRAFT_API void register_op(OpDefinition op);

// The same for an operator that a method of a program computes: its arguments are the method's inputs in their order,
// its results the method's outputs. The method must be one plan on the CPU without mutable buffers or caches. It runs
// on the threads of the run that it is part of, whose cancel and deadline end it too, its intermediate tensors in
// memory from that run's arena, and allocates nothing once it has run for the same sizes. Throws NotFound for another
// method, Unsupported for a program that cannot be an operator. The program is kept for the life of the process.
GRAFT_API void register_op(const std::string& target, std::shared_ptr<const Program> program,
                           const std::string& method = "forward");

// Loads a shared library and calls its `extern "C" void graft_register_ops()`, once. Throws SystemError when it does
// not load, NotFound without that function, and whatever the function throws.
GRAFT_API void load_ops(const std::string& path);

}  // namespace graft
