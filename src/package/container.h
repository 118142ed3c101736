#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "program_generated.h"
#include "weight/et_container.h"

// ExecuTorch's .pte, as bytes. A file is hostile: every offset, count and size is checked before use.
namespace graft {

namespace et = executorch_flatbuffer;

// A .pte: a flatbuffer with the program, followed by segments of data.
class PteFile {
 public:
  // Throws SystemError or InvalidProgram; both name the path.
  explicit PteFile(std::shared_ptr<const MappedFile> file);

  const std::shared_ptr<const MappedFile>& file() const { return file_; }
  const et::Program& program() const { return *program_; }
  const std::vector<NamedBytes>& named_data() const { return named_data_; }

  // The blob that a delegate was compiled to. Throws InvalidProgram.
  std::span<const std::byte> processed(const et::BackendDelegate& delegate) const;
  // `byte_count` bytes of the constant tensor with that buffer index. Throws InvalidProgram.
  std::span<const std::byte> constant(std::uint32_t buffer_index, std::uint64_t byte_count) const;

 private:
  void read();
  std::span<const std::byte> segment(std::uint64_t index) const;

  std::shared_ptr<const MappedFile> file_;
  std::vector<std::byte> head_;           // a copy of the flatbuffer
  const et::Program* program_ = nullptr;  // in head_; in the mapping when the flatbuffer holds constants itself
  std::vector<std::span<const std::byte>> segments_;
  std::vector<NamedBytes> named_data_;
};

// The data that the package at `path` holds by this name, as text; none where it holds none. Throws NotFound,
// SystemError or InvalidProgram.
std::optional<std::string> named_text(const std::string& path, std::string_view key);

}  // namespace graft
