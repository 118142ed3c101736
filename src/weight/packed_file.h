#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/aligned.h"
#include "base/mapped_file.h"

// Files of what loads make of weights: packed weights and folded constants, by a digest of what they were made from.
// Processes that map one share its pages.
namespace graft {

// SHA-256 of a description.
using Digest = std::array<std::uint8_t, 32>;
std::string hex(const Digest& digest);

// The format, all numbers of 64 bits, little-endian:
//   "GRFTPACK", format version, bytes of the head, bytes of the file,
//   bytes of the origin, the origin (what made the entries: version, instruction set, settings), padded to 8 bytes,
//   number of entries, and of each: its digest, offset, bytes, SHA-256 of its bytes,
//   SHA-256 of the head up to here.
// Entries begin at multiples of kAlignment and do not overlap.
class PackedFile {
 public:
  // Maps the file and checks everything but the bytes of its entries, and these too with `verify`. Throws NotFound if
  // there is no such file, SystemError if it cannot be read, Unsupported for another format version or origin, and
  // InvalidProgram for a damaged file or none of this kind; all name it, what was expected and what was found.
  static std::shared_ptr<const PackedFile> open(const std::string& path, const std::string& origin, bool verify);

  // The memory of an entry, which keeps the mapping. nullopt if it has none of this digest and size.
  std::optional<AlignedMemory> find(const Digest& digest, std::size_t bytes) const;
  const std::string& path() const { return file_->path(); }

 private:
  explicit PackedFile(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
  void read(const std::string& origin, bool verify);

  std::shared_ptr<const MappedFile> file_;
  std::map<Digest, std::span<const std::byte>> entries_;
};

// Writes such a file under another name and renames it, so that readers see all of it or nothing. Throws SystemError
// naming the file; nothing of it is left then.
void write_packed_file(const std::string& path, const std::string& origin,
                       const std::map<Digest, std::span<const std::byte>>& entries);

}  // namespace graft
