#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "ir/program.h"
#include "weight/weights.h"

// A package is ExecuTorch's .pte, read here without ExecuTorch: methods that are one call of graft's delegate run in
// graft's own executor. Its weights are in it, or in files that weights.h reads.
namespace graft {

// The name under which ExecuTorch knows graft's delegate.
inline constexpr std::string_view kBackendId = "GraftBackend";

struct PackageMethod {
  std::string name;
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

// Reads a .pte except the weights' bytes. Throws InvalidProgram naming the file, SystemError if it cannot be read.
Package read_package(const std::shared_ptr<const MappedFile>& file);
// Reads one method again, with the result of read_package; the other methods are not decoded.
PackageMethod read_method(const std::shared_ptr<const MappedFile>& file, std::size_t index);

// Throws InvalidProgram unless every fully delegated method is a valid program and methods agree on the weights and
// states that they share.
void verify(const Package& package);

}  // namespace graft
