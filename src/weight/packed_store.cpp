#include "weight/packed_store.h"

#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/sha256.h"

namespace graft {

void PackedStore::add_file(const std::string& path) { file_ = open(path); }

std::shared_ptr<const PackedFile> PackedStore::open(const std::string& path) {
  try {
    return PackedFile::open(path, origin_, verify_);
  } catch (const NotFound&) {
    return nullptr;
  } catch (const Error& error) {
    refuse(error.what());
    return nullptr;
  }
}

void PackedStore::refuse(const std::string& why) {
  ++refused_;
  refusal_ = why;
  log(LogLevel::warning, "packed weights: " + why);
}

Digest PackedStore::digest(std::string_view description) const {
  const std::string text = str(origin_.size(), " ", origin_, " ", description);
  return sha256(std::as_bytes(std::span(text)));
}

std::optional<AlignedMemory> PackedStore::find(const Digest& digest, std::size_t bytes) {
  std::optional<AlignedMemory> found = file_ ? file_->find(digest, bytes) : std::nullopt;
  file_used_ = file_used_ || found;
  missed_ = missed_ || !found;
  if (!found && !folder_.empty() && bytes >= kLeastKept)
    if (const auto file = open(path_of(digest))) found = file->find(digest, bytes);
  if (found) used_bytes_ += bytes;
  return found;
}

AlignedMemory PackedStore::keep(const Digest& digest, AlignedMemory memory) {
  if (folder_.empty() || memory.size() < kLeastKept) return memory;
  const std::string path = path_of(digest);
  try {
    std::error_code ignored;  // writing says what is wrong
    std::filesystem::create_directories(folder_, ignored);
    write_packed_file(path, origin_, {{digest, {memory.data(), memory.size()}}});
    ++written_;
    std::optional<AlignedMemory> mapped =
        PackedFile::open(path, origin_, /*verify=*/false)->find(digest, memory.size());
    if (!mapped) return memory;
    used_bytes_ += memory.size();
    return *std::move(mapped);
  } catch (const Error& error) {
    refuse(error.what());
    return memory;
  }
}

void PackedStore::finish() {
  if (file_ && missed_ && !file_used_)
    refuse(str("'", file_->path(), "' was packed from other weights or another program: it has nothing of this one"));
  file_ = nullptr;
}

PackedInfo PackedStore::write(const std::string& path) const {
  PackedInfo info{path, recorded_.size()};
  std::map<Digest, std::span<const std::byte>> entries;
  for (const auto& [digest, memory] : recorded_) {
    entries[digest] = {memory->data(), memory->size()};
    info.bytes += memory->size();
  }
  if (entries.empty()) return info;
  write_packed_file(path, origin_, entries);
  return info;
}

}  // namespace graft
