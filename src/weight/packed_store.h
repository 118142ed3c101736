#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/aligned.h"
#include "graft/graft.h"
#include "weight/packed_file.h"

namespace graft {

// Where one load looks for what was made of weights before, by whatever process, and keeps what it makes: a file beside
// the package, and a folder with a file for each entry, named by its digest. A file that cannot be used is skipped and
// counted; in the folder another one takes its place.
class PackedStore {
 public:
  // `origin`: what made the entries, part of their digests. With `verify` the bytes of entries are compared with their
  // SHA-256.
  PackedStore(std::string origin, bool verify) : origin_(std::move(origin)), verify_(verify) {}

  // Looks there too. A file that is not there is no fault.
  void add_file(const std::string& path);
  void set_folder(std::string folder) { folder_ = std::move(folder); }
  // Remembers entries for write().
  void record() { recording_ = true; }
  bool records() const { return recording_; }
  // Throws SystemError. Without entries it writes nothing.
  PackedInfo write(const std::string& path) const;

  Digest digest(std::string_view description) const;
  // nullopt if it is not there, or has another size.
  std::optional<AlignedMemory> find(const Digest& digest, std::size_t bytes);
  // Whether keep() does anything with memory of that size.
  bool keeps(std::size_t bytes) const { return !folder_.empty() && bytes >= kLeastKept; }
  // The memory, which may now be that of a file.
  AlignedMemory keep(const Digest& digest, AlignedMemory memory);
  void recorded(const Digest& digest, std::shared_ptr<const AlignedMemory> memory) {
    recorded_.emplace(digest, std::move(memory));
  }

  // After the load: a file beside the package that had nothing of what was made counts as refused.
  void finish();

  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t written() const { return written_; }
  std::uint64_t refused() const { return refused_; }
  const std::string& refusal() const { return refusal_; }  // of the last file

 private:
  static constexpr std::size_t kLeastKept = 64 * 1024;

  std::string path_of(const Digest& digest) const { return folder_ + "/" + hex(digest) + ".packed"; }
  std::shared_ptr<const PackedFile> open(const std::string& path);  // null: not there, or refused
  void refuse(const std::string& why);

  const std::string origin_;
  const bool verify_;
  std::shared_ptr<const PackedFile> file_;
  std::string folder_;
  bool recording_ = false;
  std::map<Digest, std::shared_ptr<const AlignedMemory>> recorded_;
  bool file_used_ = false, missed_ = false;
  std::uint64_t used_bytes_ = 0, written_ = 0, refused_ = 0;
  std::string refusal_;
};

}  // namespace graft
