#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace graft::batch {

// A file of text that is read once from its beginning, line by line.
class InputFile {
 public:
  // Throws NotFound when there is no such file, SystemError when it cannot be read or is no regular file.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  enum class Line : std::uint8_t { read, too_long, end };
  // The next line without its "\n"; of one longer than `most` bytes nothing is kept.
  Line next(std::string& line, std::size_t most);
  std::uint64_t line() const { return line_; }  // that was read last, from 1
  std::uint64_t bytes() const { return read_; }
  // Of all that was read. Once.
  std::string sha256();
  // Throws SystemError when somebody has written to the file since it was opened.
  void check_unchanged() const;
  const std::string& path() const { return path_; }

 private:
  bool fill();
  struct stat status() const;

  std::string path_;
  int descriptor_ = -1;
  struct stat opened_ {};
  std::vector<char> buffer_;
  std::size_t at_ = 0, end_ = 0;
  std::uint64_t line_ = 0, read_ = 0;
  Sha256 hash_;
};

// SHA-256 and size of a whole file. Throws as InputFile.
struct FileIdentity {
  std::uint64_t bytes = 0;
  std::string sha256;
};
FileIdentity identity_of(const std::string& path);

}  // namespace graft::batch
