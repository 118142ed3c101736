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
#include "ir/program.h"

// A package is ExecuTorch's .pte, with .ptd files beside it where its weights are stored apart. Read here without
// ExecuTorch: methods that are one call of our delegate run in graft's own executor.
namespace graft {

// The name under which ExecuTorch knows our delegate.
inline constexpr std::string_view kBackendId = "GraftBackend";

// Bytes of a file of the package, in its mapping.
struct PackageData {
  std::span<const std::byte> bytes;
  std::size_t file = 0;      // index into Package::files()
  std::uint64_t offset = 0;  // of the first byte, from the start of that file
};

struct PackageMethod {
  std::string name;
  // True when graft alone can run the method: at most one call, of our delegate, and nothing else but writing mutated
  // inputs back.
  bool fully_delegated = false;
  // Otherwise what is left to ExecuTorch: kernels, other backends, kinds of inputs or outputs.
  std::string why_not;
  // For fully delegated methods, parsed and verified: exactly one method, with the name, inputs and outputs that the
  // package gives it. Where the package routes an input past the delegate, returns a constant or hands one to the
  // delegate, the graph has that route itself; constant tensors are weights with keys of their own.
  // Its user inputs are numbered as the package's inputs; an input that is None or a text has a name and no value.
  ir::Program program;
};

// Immutable. Keeps the files mapped as long as it lives.
class Package {
 public:
  // Maps a .pte and the .ptd files of its external weights, and reads all of it but the weights' bytes.
  // Throws NotFound for a file or weight that is not there, SystemError when a file cannot be mapped, InvalidProgram
  // for anything wrong in a file; all name the file.
  static std::shared_ptr<const Package> open(const std::string& path, std::span<const std::string> data_files = {});

  const std::vector<PackageMethod>& methods() const { return methods_; }
  // The .pte first, then the .ptd files in the caller's order.
  const std::vector<std::shared_ptr<const MappedFile>>& files() const { return files_; }

  // The bytes of a weight. `find` gives nullopt, `data` throws NotFound when there is no such key.
  std::optional<PackageData> find(std::string_view key) const;
  PackageData data(std::string_view key) const;

  // Reads every weight of the fully delegated methods and compares its SHA-256 where the graph states one. Throws
  // InvalidProgram naming the weight.
  void verify_hashes() const;

 private:
  Package() = default;
  void add(std::string_view key, std::span<const std::byte> bytes, std::size_t file);
  void read(const std::string& path, std::span<const std::string> data_files);
  void check_weights() const;
  void check_methods_agree() const;

  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<PackageMethod> methods_;
  std::map<std::string, PackageData, std::less<>> data_;
};

}  // namespace graft
