#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "graft/llm.h"

namespace graft::llm {

// Keys and values that sequences have computed, for sequences that begin with the same tokens: a tree whose edges are
// blocks of kBlock tokens. Where room is short, the block makes it that was used longest ago and that none continues.
// In memory, or in a file that later processes find again; there a block is read only if its checksum is right.
// For one thread at a time, and for models whose states are keys and values alone.
class PrefixCache {
 public:
  static constexpr std::int64_t kBlock = 64;
  using Tokens = std::span<const std::int64_t>;

  // A file that was written with another package, or another type of keys and values, is emptied. Throws SystemError
  // for a file that cannot be opened, Busy for one that another process has, InvalidArgument for one that is no prefix
  // cache and for fewer bytes than a block has.
  PrefixCache(Session& session, const PrefixCacheOptions& options);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The length of the longest prefix of these tokens that is here, in whole blocks, left by a sequence with this salt.
  std::int64_t find(Tokens tokens, std::uint64_t salt) const;
  // Fills a row that holds the first `from` of these tokens, in whole blocks, up to their end. Returns how many it then
  // holds: fewer where a block of the file is damaged.
  std::int64_t restore(Tokens tokens, std::uint64_t salt, std::int64_t from, std::int64_t row);
  // Keeps the whole blocks of these tokens, which the row holds. Not those that a layer has lost. A file that cannot be
  // written ends the keeping, and nothing else: see stats().
  void store(Tokens tokens, std::uint64_t salt, std::int64_t row);

  const PrefixCacheStats& stats() const { return stats_; }

 private:
  static constexpr std::int32_t kNone = -1;
  class File;
  // Of a block: also what the file has in front of its keys and values.
  struct Entry {
    std::uint64_t serial;  // of the block, from 1 on; 0: an empty slot
    std::uint64_t parent;  // serial of the block that it continues; 0: none
    std::uint64_t salt;
    std::uint64_t checksum;  // of all else and of the keys and values; in the file alone
    std::int32_t tokens[kBlock];
  };
  struct Node {
    std::int32_t parent = kNone, children = 0;
    std::int32_t newer = kNone, older = kNone;  // in the order of use
    std::int32_t next = kNone;                  // of its bucket
    bool checked = true;                        // its checksum, since the file was opened
    bool damaged = false;
  };

  std::uint64_t serial_of(std::int32_t slot) const { return slot == kNone ? 0 : entries_[slot].serial; }
  std::size_t bucket_of(std::uint64_t parent, std::uint64_t salt, const std::int32_t* tokens) const;
  // The block that continues this one with these tokens; kNone where there is none.
  std::int32_t child(std::int32_t parent, std::uint64_t salt, Tokens tokens) const;
  std::int32_t walk(Tokens tokens, std::uint64_t salt, std::int64_t* length) const;
  void touch_path(std::int32_t slot);
  void link_newest(std::int32_t slot);
  void unlink(std::int32_t slot);
  void insert(std::int32_t slot, std::int32_t parent);
  void remove(std::int32_t slot);
  // An empty slot, at the expense of the block that was used longest ago; kNone where all blocks lead to `parent`.
  std::int32_t make_room(std::int32_t parent);
  std::uint64_t checksum_of(const Entry& entry, std::span<const std::byte> data) const;
  std::span<std::byte> data_of(std::int32_t slot);
  bool keep(std::int32_t slot, Entry& entry, std::int64_t first, std::int64_t row) noexcept;
  void give_up(const char* why) noexcept;
  void read_file();

  Session& session_;
  const std::size_t block_bytes_;
  std::vector<Entry> entries_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> buckets_;
  std::vector<std::int32_t> empty_;
  std::int32_t newest_ = kNone, oldest_ = kNone;
  std::uint64_t next_serial_ = 1;
  AlignedMemory memory_;  // of all slots, or of one that comes from the file or goes to it
  std::unique_ptr<File> file_;
  PrefixCacheStats stats_;
};

}  // namespace graft::llm
