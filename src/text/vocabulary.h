#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "graft/limits.h"

namespace graft::text {

using TokenId = std::int64_t;

// Throws Unsupported for a vocabulary of more tokens than allowed.
inline void check_vocabulary(std::size_t tokens, const TextLimits& limits) {
  GRAFT_CHECK(Unsupported, static_cast<std::int64_t>(tokens) <= limits.max_vocabulary, "the vocabulary has ", tokens,
              " tokens, at most ", limits.max_vocabulary, " are allowed (max_vocabulary)");
}

// Pieces by id and ids by piece. Ids may have gaps.
class Vocabulary {
 public:
  static constexpr TokenId kMaxId = (1 << 24) - 1;

  // From pairs of piece and id. Throws InvalidProgram for an id that is negative or above kMaxId, and for an id that
  // two pieces have. A piece that comes twice has its last id.
  explicit Vocabulary(std::vector<std::pair<std::string, TokenId>> entries);

  std::optional<TokenId> find(std::string_view piece) const {
    const Slot& slot = slots_[slot_of(piece, hash_of(piece))];
    return slot.index < 0 ? std::nullopt : std::optional<TokenId>(entries_[static_cast<std::size_t>(slot.index)].id);
  }
  // Null for an id without a piece.
  const std::string* piece(TokenId id) const {
    if (id < 0 || id >= end_id()) return nullptr;
    const std::int32_t index = index_of_[static_cast<std::size_t>(id)];
    return index < 0 ? nullptr : &entries_[static_cast<std::size_t>(index)].piece;
  }
  // How many pieces there are.
  std::size_t size() const { return size_; }
  // One more than the largest id.
  TokenId end_id() const { return static_cast<TokenId>(index_of_.size()); }

  // The ids of <0x00> to <0xFF>; empty unless all are there.
  std::vector<TokenId> byte_ids() const;

 private:
  // Open addressing, for speed: loading a merge looks up three pieces, tokenizing one piece per character.
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t index = -1;  // -1: free
  };
  static std::uint32_t hash_of(std::string_view piece) {
    const std::size_t hash = std::hash<std::string_view>()(piece);
    return static_cast<std::uint32_t>(hash ^ hash >> 32);
  }
  // The slot that has the piece, or the free one where it belongs.
  std::size_t slot_of(std::string_view piece, std::uint32_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.index < 0 || (slot.hash == hash && entries_[static_cast<std::size_t>(slot.index)].piece == piece))
        return at;
    }
  }

  struct Entry {
    std::string piece;
    TokenId id;
  };
  std::vector<Entry> entries_;
  std::vector<std::int32_t> index_of_;  // by id; -1: none. A file with one large id must not cost a string for each.
  std::vector<Slot> slots_;             // a power of two, at most half of them used
  std::size_t size_ = 0;
};

}  // namespace graft::text
