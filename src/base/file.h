#pragma once

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>

#include "graft/export.h"

namespace graft {

// Calls again what a signal interrupted.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Writes all bytes at this place of the file. False where that fails: errno says why.
bool write_all(int descriptor, std::span<const std::byte> bytes, std::size_t at);

// A file that replaces the one of its name as a whole: it is written under another name beside it, and commit() renames
// it once its bytes are on the disk. Without commit() nothing has changed. After the process was killed, or the disk
// was full, the old file is there. All throw SystemError naming the path.
//
// What is not finished is named "<path>.<process>.<number>.graft.tmp" and locked (flock) by who writes it. Whoever
// begins a new file removes those of its folder that nobody has locked: their writers have ended.
// python/graft/_files.py does the same with files and folders.
class GRAFT_API NewFile {
 public:
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes, std::size_t at);
  void resize(std::size_t bytes);
  void commit();

 private:
  void check(bool done) const;
  void remove() noexcept;

  const std::string path_;
  std::string name_;
  int descriptor_ = -1;
};

// Removes the unfinished files that processes left in a folder. Writes of others go on.
GRAFT_API void remove_unfinished(const std::string& folder) noexcept;

}  // namespace graft
