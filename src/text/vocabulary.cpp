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
  index_of_.resize(static_cast<std::size_t>(end), -1);
  entries_.reserve(entries.size());
  std::size_t slots = 16;
  while (slots < entries.size() * 2) slots *= 2;
  slots_.resize(slots);
  for (auto& [piece, id] : entries) {
    if (const std::string* other = this->piece(id)) {
      GRAFT_CHECK(InvalidProgram, *other == piece, "the tokens '", *other, "' and '", piece, "' have the same id ", id);
      continue;
    }
    const auto index = static_cast<std::int32_t>(entries_.size());
    index_of_[static_cast<std::size_t>(id)] = index;
    entries_.push_back({std::move(piece), id});
    const std::uint32_t hash = hash_of(entries_.back().piece);
    Slot& slot = slots_[slot_of(entries_.back().piece, hash)];
    size_ += slot.index < 0;
    slot = {hash, index};
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
