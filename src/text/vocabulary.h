#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/check.h"

namespace graft::text {

using TokenId = std::int64_t;

// Pieces by id and ids by piece. Ids may have gaps.
class Vocabulary {
 public:
  static constexpr TokenId kMaxId = (1 << 24) - 1;

  // From pairs of piece and id. Throws InvalidProgram for an id that is negative or above kMaxId, and for an id that
  // two pieces have. A piece that comes twice has its last id.
  explicit Vocabulary(std::vector<std::pair<std::string, TokenId>> entries);

  // Views into the pieces: not to be copied.
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  std::optional<TokenId> find(std::string_view piece) const {
    const auto found = ids_.find(piece);
    return found == ids_.end() ? std::nullopt : std::optional<TokenId>(found->second);
  }
  // Null for an id without a piece.
  const std::string* piece(TokenId id) const {
    const auto index = static_cast<std::size_t>(id);
    return id >= 0 && index < pieces_.size() && used_[index] ? &pieces_[index] : nullptr;
  }
  std::size_t size() const { return ids_.size(); }
  // One more than the largest id.
  TokenId end_id() const { return static_cast<TokenId>(pieces_.size()); }

  // The ids of <0x00> to <0xFF>; empty unless all are there.
  std::vector<TokenId> byte_ids() const;

 private:
  std::vector<std::string> pieces_;
  std::vector<bool> used_;
  std::unordered_map<std::string_view, TokenId> ids_;
};

}  // namespace graft::text
