#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>

#include "base/check.h"

namespace graft {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  int descriptor;
  do descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    const int error = errno;
    GRAFT_CHECK(NotFound, error != ENOENT && error != ENOTDIR, "no file '", path, "'");
    throw SystemError(str("cannot open '", path, "': ", reason(error)));
  }
  std::shared_ptr<MappedFile> file(new MappedFile(path, descriptor));
  file->map();
  return file;
}

void MappedFile::map() {
  struct stat status {};
  GRAFT_CHECK(SystemError, ::fstat(descriptor_, &status) == 0, "cannot read '", path_, "': ", reason(errno));
  GRAFT_CHECK(SystemError, S_ISREG(status.st_mode), "cannot map '", path_, "': not a regular file");
  static_assert(sizeof(std::size_t) >= sizeof(status.st_size));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor_, 0);
  GRAFT_CHECK(SystemError, data != MAP_FAILED, "cannot map the ", size, " bytes of '", path_, "': ", reason(errno));
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  ::close(descriptor_);
}

}  // namespace graft
