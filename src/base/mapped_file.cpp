#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/aligned.h"
#include "base/check.h"

namespace graft {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

namespace {

// Mappings that are alive. A file keeps its inode while one has it open, so equal identities are one file, unless it is
// written to without a change of its time.
struct Mappings {
  using Identity = std::tuple<std::string, dev_t, ino_t, off_t, std::int64_t, std::int64_t>;
  std::mutex mutex;
  std::map<Identity, std::weak_ptr<const MappedFile>> alive;

  static Identity of(const std::string& path, const struct stat& found) {
    return {path, found.st_dev, found.st_ino, found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
  }
};

// Never destroyed: files may be unmapped while the process ends.
Mappings& mappings() {
  static auto* mappings = new Mappings;
  return *mappings;
}

}  // namespace

std::shared_ptr<MappedFile> MappedFile::opened(const std::string& path) {
  int descriptor;
  // Opening a pipe would block until it has a writer; O_NONBLOCK does not affect regular files.
  do descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    const int error = errno;
    GRAFT_CHECK(NotFound, error != ENOENT && error != ENOTDIR, "no file '", path, "'");
    throw SystemError(str("cannot open '", path, "': ", reason(error)));
  }
  try {
    return std::shared_ptr<MappedFile>(new MappedFile(path, descriptor));
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

std::uint64_t MappedFile::size_of(const std::string& path) {
  return static_cast<std::uint64_t>(opened(path)->regular().st_size);
}

std::shared_ptr<const MappedFile> MappedFile::read_in(const std::string& path) {
  const std::shared_ptr<MappedFile> file = opened(path);
  const auto memory = std::make_shared<const AlignedMemory>(static_cast<std::size_t>(file->regular().st_size));
  const std::span<std::byte> bytes(memory->data(), memory->size());
  file->read_from_descriptor(0, bytes);
  return of_memory(bytes, path, memory);
}

std::vector<std::byte> MappedFile::read_whole(const std::string& path) {
  const std::shared_ptr<MappedFile> file = opened(path);
  const struct stat found = file->regular();
  std::vector<std::byte> out(static_cast<std::size_t>(found.st_size));
  file->read_from_descriptor(0, out);
  return out;
}

std::shared_ptr<const MappedFile> MappedFile::open_without_descriptor(const std::string& path) {
  const std::shared_ptr<MappedFile> file = opened(path);
  file->map();
  ::close(std::exchange(file->descriptor_, -1));
  return file;
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const std::shared_ptr<MappedFile> file = opened(path);
  const Mappings::Identity identity = Mappings::of(path, file->status());
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.alive, [](const auto& entry) { return entry.second.expired(); });
  if (const auto known = all.alive.find(identity); known != all.alive.end())
    if (std::shared_ptr<const MappedFile> mapped = known->second.lock()) return mapped;
  file->map();
  all.alive[identity] = file;
  return file;
}

void MappedFile::forget(const MappedFile& file) {
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.alive, [&](const auto& entry) { return entry.second.lock().get() == &file; });
}

std::shared_ptr<const MappedFile> MappedFile::of_memory(std::span<const std::byte> bytes, std::string label,
                                                        std::shared_ptr<const void> owner) {
  std::shared_ptr<MappedFile> file(new MappedFile(std::move(label), -1));
  file->bytes_ = bytes;
  file->owner_ = std::move(owner);
  return file;
}

struct stat MappedFile::status() const {
  struct stat out {};
  GRAFT_CHECK(SystemError, ::fstat(descriptor_, &out) == 0, "cannot read '", path_, "': ", reason(errno));
  return out;
}

std::string MappedFile::identity() const {
  const struct stat found = status();
  return str(found.st_dev, ":", found.st_ino, ":", bytes_.size(), ":", modified_.tv_sec, ".", modified_.tv_nsec);
}

struct stat MappedFile::regular() const {
  const struct stat found = status();
  GRAFT_CHECK(SystemError, S_ISREG(found.st_mode), "cannot read '", path_, "': not a regular file");
  return found;
}

void MappedFile::map() {
  const struct stat found = regular();
  modified_ = found.st_mtim;
  static_assert(sizeof(std::size_t) >= sizeof(found.st_size));
  const auto size = static_cast<std::size_t>(found.st_size);
  if (size == 0) return;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor_, 0);
  GRAFT_CHECK(SystemError, data != MAP_FAILED, "cannot map the ", size, " bytes of '", path_, "': ", reason(errno));
  bytes_ = {static_cast<const std::byte*>(data), size};
}

std::vector<std::byte> MappedFile::read(std::uint64_t offset, std::size_t count) const {
  std::vector<std::byte> out(count);
  read_into(offset, out);
  return out;
}

void MappedFile::read_into(std::uint64_t offset, std::span<std::byte> out) const {
  GRAFT_ASSERT(offset <= bytes_.size() && out.size() <= bytes_.size() - offset);
  if (!is_memory()) return read_from_descriptor(offset, out);
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

void MappedFile::read_from_descriptor(std::uint64_t offset, std::span<std::byte> out) const {
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    GRAFT_CHECK(SystemError, got >= 0, "cannot read '", path_, "': ", reason(errno));
    GRAFT_CHECK(InvalidProgram, got > 0, "'", path_, "' changed on disk since it was loaded: it ends at byte ",
                offset + done, ", expected ", offset + out.size());
    done += static_cast<std::size_t>(got);
  }
}

void MappedFile::release(std::span<const std::byte> range) const {
  if (is_memory() || range.empty()) return;
  GRAFT_ASSERT(range.data() >= bytes_.data() && range.data() + range.size() <= bytes_.data() + bytes_.size());
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(range.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(range.data() + range.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // NOLINT
}

void MappedFile::check_unchanged() const {
  if (is_memory()) return;
  const struct stat now = status();
  const auto size = static_cast<std::size_t>(now.st_size);
  GRAFT_CHECK(InvalidProgram, size == bytes_.size(), "'", path_, "' changed on disk since it was loaded: it had ",
              bytes_.size(), " bytes, now ", size);
  GRAFT_CHECK(InvalidProgram, now.st_mtim.tv_sec == modified_.tv_sec && now.st_mtim.tv_nsec == modified_.tv_nsec, "'",
              path_, "' changed on disk since it was loaded: it was written to");
}

MappedFile::~MappedFile() {
  if (is_memory()) return;
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace graft
