#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "graft/export.h"

namespace graft {

// A file mapped read-only into memory. The descriptor stays open as long as the mapping, so that the file can be
// mapped or read again although it was renamed or unlinked meanwhile.
class GRAFT_API MappedFile {
 public:
  // Throws NotFound when there is no such file, SystemError when it cannot be opened or mapped; both name the path.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Page-aligned; empty for an empty file.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }

 private:
  MappedFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  void map();

  std::string path_;
  int descriptor_ = -1;
  std::span<const std::byte> bytes_;
};

}  // namespace graft
