#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/error.h"
#include "graft/export.h"

namespace graft {

// A file mapped read-only into memory, or memory of the caller instead. The descriptor stays open as long as the
// mapping, so that the file can be read again even if it was renamed or unlinked.
//
// Readers of a file that is replaced by rename() keep the old content. Truncating a file in place removes pages from
// its mappings: touching them raises SIGBUS, which no library can handle for its process. So files that are not trusted
// to stay are read in (read_in), and data that is parsed again later is read with read(), which fails with an error
// instead, after check_unchanged().
class GRAFT_API MappedFile {
 public:
  // Throws NotFound if there is no such file, SystemError if it cannot be opened or mapped; both name the path.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  // A mapping of its own without a descriptor, of which a process has few: read(), identity() and check_unchanged()
  // must not be called. Throws the same.
  static std::shared_ptr<const MappedFile> open_without_descriptor(const std::string& path);
  static std::uint64_t size_of(const std::string& path);
  // Not mapped: as of_memory(), with the bytes of the file, aligned to kAlignment. Throws as read_whole().
  static std::shared_ptr<const MappedFile> read_in(const std::string& path);
  // The bytes of a file, which is closed again. Throws the same, and InvalidProgram when it becomes shorter meanwhile.
  static std::vector<std::byte> read_whole(const std::string& path);
  // Memory that `owner` keeps alive, or the caller if that is null; `label` replaces the path in messages.
  static std::shared_ptr<const MappedFile> of_memory(std::span<const std::byte> bytes, std::string label,
                                                     std::shared_ptr<const void> owner);
  // open() maps the file again, even while this mapping lives.
  static void forget(const MappedFile& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Page-aligned for a file; empty for an empty one.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  bool is_memory() const { return is_memory_; }
  // Device, inode, size and time, as text; not for memory.
  std::string identity() const;

  // A copy of `count` bytes at `offset`, read from the file. Throws InvalidProgram if they no longer exist, SystemError
  // if they cannot be read.
  std::vector<std::byte> read(std::uint64_t offset, std::size_t count) const;
  // The same of a part of bytes().
  std::vector<std::byte> read(std::span<const std::byte> part) const {
    return read(static_cast<std::uint64_t>(part.data() - bytes_.data()), part.size());
  }
  // The same into the caller's memory.
  void read_into(std::uint64_t offset, std::span<std::byte> out) const;
  // Releases the pages entirely inside `range` of bytes(), which are no longer needed; reading them again is correct
  // but slow. Does nothing for the caller's memory.
  void release(std::span<const std::byte> range) const;
  // Throws InvalidProgram if the file's size or modification time changed since it was mapped.
  void check_unchanged() const;

 private:
  MappedFile(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor), is_memory_(descriptor < 0) {}
  static std::shared_ptr<MappedFile> opened(const std::string& path);  // not mapped yet
  void map();
  struct stat status() const;
  struct stat regular() const;  // of a file that is a regular one
  void read_from_descriptor(std::uint64_t offset, std::span<std::byte> out) const;

  std::string path_;
  int descriptor_ = -1;
  bool is_memory_;
  std::span<const std::byte> bytes_;
  struct timespec modified_ {};
  std::shared_ptr<const void> owner_;
};

// Does `work`; prefixes the file's name to the message of an InvalidProgram that lacks it.
template <typename Work>
auto naming_file(const std::string& path, Work&& work) {
  const std::string quoted = "'" + path + "'";
  try {
    return work();
  } catch (const InvalidProgram& error) {
    if (std::string_view(error.what()).starts_with(quoted)) throw;
    throw InvalidProgram(quoted + ": " + error.what());
  }
}

}  // namespace graft
