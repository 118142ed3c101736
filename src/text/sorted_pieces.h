#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace graft::text {

// The pieces of a vocabulary in the order of their bytes, for those that a text begins with: each byte of the text
// narrows the range of pieces that agree with it so far, so that a text costs no more than the longest piece it begins
// with, however many pieces there are.
class SortedPieces {
 public:
  // The vocabulary must outlive it: it keeps views of the pieces. Of equal pieces the last id; empty ones are left out.
  explicit SortedPieces(const Vocabulary& vocabulary) {
    for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
      const std::string* piece = vocabulary.piece(id);
      if (piece == nullptr || piece->empty() || vocabulary.find(*piece) != id) continue;
      sorted_.push_back({*piece, id});
    }
    std::sort(sorted_.begin(), sorted_.end());
  }

  // Calls `found(bytes, id)` for every piece that `head` and `text`, one after the other, begin with and that is longer
  // than `head`, the shortest first. `bytes`: how many of the text.
  template <typename Found>
  void for_each_prefix(std::string_view head, std::string_view text, Found&& found) const {
    auto begin = sorted_.begin();
    auto end = sorted_.end();
    for (std::size_t depth = 0; depth < head.size() + text.size(); ++depth) {
      const char byte = depth < head.size() ? head[depth] : text[depth - head.size()];
      const auto below = [depth](const Entry& entry, unsigned char value) { return entry.byte(depth) < value; };
      const auto above = [depth](unsigned char value, const Entry& entry) { return value < entry.byte(depth); };
      begin = std::lower_bound(begin, end, static_cast<unsigned char>(byte), below);
      end = std::upper_bound(begin, end, static_cast<unsigned char>(byte), above);
      if (begin == end) return;
      if (begin->piece.size() == depth + 1) {
        if (depth >= head.size()) found(depth + 1 - head.size(), begin->id);
        ++begin;  // the remaining ones are longer
      }
    }
  }

 private:
  struct Entry {
    std::string_view piece;
    TokenId id;

    unsigned char byte(std::size_t at) const { return static_cast<unsigned char>(piece[at]); }
    auto operator<=>(const Entry&) const = default;
  };
  std::vector<Entry> sorted_;
};

}  // namespace graft::text
