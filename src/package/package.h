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

// A package is ExecuTorch's .pte. Read here without ExecuTorch: methods that are one call of graft's delegate run in
// graft's own executor. Its weights lie in it, or in files that weights.h reads.
namespace graft {

// The name under which ExecuTorch knows graft's delegate.
inline constexpr std::string_view kBackendId = "GraftBackend";

struct PackageMethod {
  std::string name;
  // True when graft alone can run the method: at most one call, of graft's delegate, and nothing else but writing
  // mutated inputs back.
  bool fully_delegated = false;
  // Otherwise what only ExecuTorch can run: kernels, other backends, kinds of inputs or outputs.
  std::string refusal;
  // For fully delegated methods: exactly one method, with the name, inputs and outputs that the package gives it. Where
  // the package routes an input past the delegate, returns a constant or hands one to the delegate, the graph has that
  // route itself; constant tensors are weights with keys of their own.
  // Its user inputs are numbered as the package's inputs; an input that is None or a string has a name and no value.
  ir::Program program;
};

struct Package {
  std::vector<PackageMethod> methods;
  WeightFile data;  // named data and constants by key
};

// Reads all of a .pte but the weights' bytes. Throws InvalidProgram naming the file, SystemError when it cannot be
// read.
Package read_package(const std::shared_ptr<const MappedFile>& file);
// One method again, as read_package returned it; the other methods are not decoded.
PackageMethod read_method(const std::shared_ptr<const MappedFile>& file, std::size_t index);

// Throws InvalidProgram unless every fully delegated method is a valid program and methods agree on the weights and
// states that they share.
void verify(const Package& package);

}  // namespace graft
