#include "text/vocabulary.h"

#include <algorithm>

namespace graft::text {

Vocabulary::Vocabulary(std::vector<std::pair<std::string, TokenId>> entries) {
  TokenId end = 0;
  for (const auto& [piece, id] : entries) {
    GRAFT_CHECK(InvalidProgram, id >= 0 && id <= kMaxId, "the token '", piece, "' has the id ", id,
                ", expected one from 0 to ", kMaxId);
    end = std::max(end, id + 1);
  }
  pieces_.resize(static_cast<std::size_t>(end));
  used_.resize(pieces_.size());
  std::size_t slots = 16;
  while (slots < entries.size() * 2) slots *= 2;
  slots_.resize(slots);
  for (auto& [piece, id] : entries) {
    const auto index = static_cast<std::size_t>(id);
    GRAFT_CHECK(InvalidProgram, !used_[index] || pieces_[index] == piece, "the tokens '", pieces_[index], "' and '",
                piece, "' have the same id ", id);
    if (used_[index]) continue;
    pieces_[index] = std::move(piece);
    used_[index] = true;
    const std::uint32_t hash = hash_of(pieces_[index]);
    Slot& slot = slots_[slot_of(pieces_[index], hash)];
    size_ += slot.id < 0;
    slot = {hash, static_cast<std::int32_t>(id)};
  }
}

std::vector<TokenId> Vocabulary::byte_ids() const {
  constexpr char digits[] = "0123456789ABCDEF";
  std::vector<TokenId> out;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char piece[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
    const auto id = find({piece, sizeof piece});
    if (!id) return {};
    out.push_back(*id);
  }
  return out;
}

}  // namespace graft::text
