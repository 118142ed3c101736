#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "package/package.h"

// Test only: a package with its weights found, like a load up to its third phase.
namespace graft::test {

struct PackageData {
  std::span<const std::byte> bytes;
  std::size_t file = 0;      // index into OpenPackage::files()
  std::uint64_t offset = 0;  // of the first byte, from the start of that file
};

class OpenPackage {
 public:
  static std::shared_ptr<OpenPackage> open(const std::string& path, const std::vector<std::string>& weights = {}) {
    Package package = read_package(MappedFile::open(path));
    verify(package);
    std::shared_ptr<OpenPackage> out(new OpenPackage(std::move(package)));
    for (const std::string& file : weights) out->store_.add_files(file);
    out->for_each_weight([](const ir::Weight&, const FoundWeight&) {});
    return out;
  }

  const std::vector<PackageMethod>& methods() const { return methods_; }
  const MappedFile& file(std::size_t index) const { return *store_.files()[index].file; }

  std::optional<PackageData> data(std::string_view key) const {
    for (std::size_t i = 0; i < store_.files().size(); ++i) {
      const WeightFile& from = store_.files()[i];
      const auto found = from.tensors.find(key);
      if (found == from.tensors.end()) continue;
      const std::span<const std::byte> bytes = found->second.bytes;
      return PackageData{bytes, i, static_cast<std::uint64_t>(bytes.data() - from.file->bytes().data())};
    }
    return std::nullopt;
  }

  template <typename Visit>
  void for_each_weight(Visit&& visit) {
    for (const PackageMethod& method : methods_)
      for (const ir::Weight& weight : method.program.weights) visit(weight, store_.find(weight));
  }
  void verify_hashes() { for_each_weight(verify_hash); }

 private:
  explicit OpenPackage(Package package) : methods_(std::move(package.methods)), store_(std::move(package.data)) {}

  std::vector<PackageMethod> methods_;
  WeightStore store_;
};

}  // namespace graft::test
