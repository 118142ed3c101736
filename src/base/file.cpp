#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace graft {
namespace {

constexpr std::string_view kUnfinished = ".graft.tmp";

}  // namespace

bool write_all(int descriptor, std::span<const std::byte> bytes, std::size_t at) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = uninterrupted(
        [&] { return ::pwrite(descriptor, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at + done)); });
    if (wrote <= 0) return false;
    done += static_cast<std::size_t>(wrote);
  }
  return true;
}

NewFile::NewFile(const std::string& path) : path_(path) {
  const std::size_t slash = path.rfind('/');
  remove_unfinished(slash == std::string::npos ? "." : path.substr(0, slash + 1));
  static std::atomic<std::uint64_t> count = 0;
  struct stat now {};
  try {
    do {
      if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
      name_ = str(path, ".", ::getpid(), ".", ++count, kUnfinished);
      descriptor_ = uninterrupted([&] { return ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
      check(descriptor_ >= 0);
      check(uninterrupted([&] { return ::flock(descriptor_, LOCK_EX); }) == 0);
      check(::fstat(descriptor_, &now) == 0);
    } while (now.st_nlink == 0);  // removed as unfinished before it was locked
  } catch (...) {
    remove();
    throw;
  }
}

NewFile::~NewFile() { remove(); }

void NewFile::remove() noexcept {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  ::unlink(name_.c_str());
}

void NewFile::write(std::span<const std::byte> bytes, std::size_t at) { check(write_all(descriptor_, bytes, at)); }

void NewFile::resize(std::size_t bytes) {
  check(uninterrupted([&] { return ::ftruncate(descriptor_, static_cast<off_t>(bytes)); }) == 0);
}

void NewFile::commit() {
  // After a crash the name must not stand for lost bytes.
  check(uninterrupted([&] { return ::fsync(descriptor_); }) == 0);
  check(::rename(name_.c_str(), path_.c_str()) == 0);
  ::close(std::exchange(descriptor_, -1));
}

void NewFile::check(bool done) const {
  GRAFT_CHECK(SystemError, done, "cannot write '", path_, "': ", std::generic_category().message(errno));
}

void remove_unfinished(const std::string& folder) noexcept {
  // Not std::filesystem, which ends the process where it finds no memory in the middle of this.
  DIR* const entries = ::opendir(folder.c_str());
  if (entries == nullptr) return;
  const int here = ::dirfd(entries);
  while (const dirent* entry = ::readdir(entries)) {
    if (!std::string_view(entry->d_name).ends_with(kUnfinished)) continue;
    const int file = ::openat(here, entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) ::unlinkat(here, entry->d_name, 0);
    ::close(file);
  }
  ::closedir(entries);
}

}  // namespace graft
