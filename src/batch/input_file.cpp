#include "batch/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/check.h"
#include "base/file.h"

namespace graft::batch {
namespace {

constexpr std::size_t kBuffer = 1 << 20;

std::string reason() { return std::generic_category().message(errno); }

bool same(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path), buffer_(kBuffer) {
  descriptor_ = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  GRAFT_CHECK(NotFound, descriptor_ >= 0 || errno != ENOENT, "there is no file '", path, "'");
  GRAFT_CHECK(SystemError, descriptor_ >= 0, "cannot read '", path, "': ", reason());
  try {
    opened_ = status();
    GRAFT_CHECK(SystemError, S_ISREG(opened_.st_mode), "cannot read '", path, "': it is no regular file");
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() { ::close(descriptor_); }

struct stat InputFile::status() const {
  struct stat now {};
  GRAFT_CHECK(SystemError, ::fstat(descriptor_, &now) == 0, "cannot read '", path_, "': ", reason());
  return now;
}

bool InputFile::fill() {
  const ssize_t count = uninterrupted([&] { return ::read(descriptor_, buffer_.data(), buffer_.size()); });
  GRAFT_CHECK(SystemError, count >= 0, "cannot read '", path_, "': ", reason());
  at_ = 0;
  end_ = static_cast<std::size_t>(count);
  read_ += end_;
  hash_.add(std::as_bytes(std::span(buffer_.data(), end_)));
  return end_ > 0;
}

InputFile::Line InputFile::next(std::string& line, std::size_t most) {
  line.clear();
  bool any = false, too_long = false;
  for (bool ended = false; !ended;) {
    if (at_ == end_ && !fill()) break;
    any = true;
    const char* const from = buffer_.data() + at_;
    const void* const found = std::memchr(from, '\n', end_ - at_);
    ended = found != nullptr;
    const std::size_t count = ended ? static_cast<std::size_t>(static_cast<const char*>(found) - from) : end_ - at_;
    at_ += count + (ended ? 1 : 0);
    too_long |= line.size() + count > most;
    if (too_long)
      line = {};
    else
      line.append(from, count);
  }
  if (!any) return Line::end;
  ++line_;
  return too_long ? Line::too_long : Line::read;
}

std::string InputFile::sha256() { return hex_of(hash_.digest()); }

void InputFile::check_unchanged() const {
  const struct stat now = status();
  GRAFT_CHECK(SystemError, now.st_size == opened_.st_size && same(now.st_mtim, opened_.st_mtim), "'", path_,
              "' was changed while it was read");
}

FileIdentity identity_of(const std::string& path) {
  InputFile file(path);
  std::string line;
  while (file.next(line, 0) != InputFile::Line::end) continue;
  return {file.bytes(), file.sha256()};
}

}  // namespace graft::batch
