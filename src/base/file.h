#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace graft {

// A file that replaces the one of its name as a whole: it is written under another name beside it, and commit() renames
// it once its bytes are on the disk. Without commit() nothing has changed. After the process was killed, or the disk
// was full, the old file is there; a file "<path>.<process>.<number><suffix>" may be left, whose lock says whether
// somebody still writes it. All throw SystemError naming the path.
class NewFile {
 public:
  explicit NewFile(const std::string& path, std::string_view suffix = ".tmp");
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

// Removes the unfinished files of this suffix that processes left in a folder. Writes of others go on.
void remove_unfinished(const std::string& folder, std::string_view suffix) noexcept;

}  // namespace graft
