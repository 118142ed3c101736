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

// A file mapped read-only into memory, or memory of the caller in the place of one. The descriptor stays open as long
// as the mapping, so that the file can be read again although it was renamed or unlinked meanwhile.
//
// A file that is replaced by rename() stays as it was for those who have it open. One that is truncated in place takes
// pages away from its mappings: touching them is SIGBUS, which no library can handle for its process. So what is parsed
// again later is read with read(), which fails with an error instead, and check_unchanged() comes before it.
class GRAFT_API MappedFile {
 public:
  // Throws NotFound when there is no such file, SystemError when it cannot be opened or mapped; both name the path.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  // Memory that `owner` keeps alive, or that the caller does when it is null; `label` is its path in messages.
  static std::shared_ptr<const MappedFile> of_memory(std::span<const std::byte> bytes, std::string label,
                                                     std::shared_ptr<const void> owner);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Page-aligned (a file); empty for an empty one.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  bool is_memory() const { return descriptor_ < 0; }

  // A copy of `count` bytes at `offset`, by a read of the file. Throws InvalidProgram when they are no longer there,
  // SystemError when they cannot be read.
  std::vector<std::byte> read(std::uint64_t offset, std::size_t count) const;
  // The same into memory of the caller.
  void read_into(std::uint64_t offset, std::span<std::byte> out) const;
  // Gives the memory of pages back that lie wholly in `range` of bytes(), which is not read any more; reading it again
  // is right, and slow. Does nothing for memory of the caller.
  void release(std::span<const std::byte> range) const;
  // Throws InvalidProgram when size or time of modification are not those of the time it was mapped.
  void check_unchanged() const;

 private:
  MappedFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  void map();
  struct stat status() const;

  std::string path_;
  int descriptor_ = -1;
  std::span<const std::byte> bytes_;
  struct timespec modified_ {};
  std::shared_ptr<const void> owner_;
};

// Does `work`; an InvalidProgram that does not begin with the file's name gets it in front.
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
