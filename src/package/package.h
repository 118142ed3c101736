#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "graft/tensor.h"
#include "ir/program.h"
#include "weight/weights.h"

// A package is ExecuTorch's .pte, read here without ExecuTorch: methods that are one call of graft's delegate run in
// graft's own executor. Its weights are in it, or in files that weights.h reads.
namespace graft {

// The name under which ExecuTorch knows graft's delegate.
inline constexpr std::string_view kBackendId = "GraftBackend";

// A method as its caller sees it, whoever runs it.
struct PackageInterface {
  struct Input {
    std::string kind;  // of ExecuTorch's value: "Tensor", "Int", "Double", "Bool", "String"; "Null": nothing is given
    std::optional<DType> dtype;  // of a tensor, where graft has it
    std::size_t rank = 0;        // of a tensor
  };
  std::string in_spec, out_spec;  // how arguments and results nest (PyTorch's pytree); may be empty
  std::vector<Input> inputs;
  // By result that ExecuTorch hands back, the input that it is. Those before the results proper are inputs that the
  // method writes; out_spec does not count them.
  std::vector<std::optional<std::uint32_t>> outputs;
};

struct PackageMethod {
  std::string name;
  PackageInterface interface;
  std::size_t index = 0;  // in the file
  // Whether graft alone can run the method: at most one delegate call, of graft's delegate, and otherwise only writes
  // of mutated inputs.
  bool fully_delegated = false;
  // Otherwise names what only ExecuTorch can run: kernels, other backends, kinds of inputs or outputs.
  std::string refusal;
  // For fully delegated methods: exactly one method, with the package's name, inputs and outputs for it. If the package
  // bypasses the delegate with an input, returns a constant or passes one to the delegate, the graph does the same;
  // constant tensors become weights with their own keys. User inputs are numbered like the package's inputs; an input
  // that is None or a string has a name and no value.
  ir::Program program;
};

struct Package {
  std::vector<PackageMethod> methods;
  WeightFile data;  // named data and constants by key
};

// Reads a .pte except the weights' bytes. `methods`: only these are decoded; empty: all. Throws NotFound for one that
// the file does not have, InvalidProgram naming the file, SystemError if it cannot be read.
GRAFT_API Package read_package(const std::shared_ptr<const MappedFile>& file,
                               std::span<const std::string> methods = {});
// Reads the method with this index in the file again, with the result of read_package; no other is decoded.
PackageMethod read_method(const std::shared_ptr<const MappedFile>& file, std::size_t index);

// Throws InvalidProgram unless every fully delegated method is a valid program and methods agree on the weights and
// states that they share.
void verify(const Package& package, std::uint64_t max_graph_calls = ir::kMaxGraphCalls);

}  // namespace graft
