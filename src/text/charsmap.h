#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace graft::text {

// SentencePiece's compiled replacement table: a double-array trie over bytes (darts-clone) and a pool of replacements,
// each terminated by a zero byte.
class Charsmap {
 public:
  // `blob`: little-endian bytes. Throws InvalidProgram when its parts do not fit.
  explicit Charsmap(std::string_view blob);

  // Replaces well-formed UTF-8 by grapheme where the table has a short one, otherwise by character.
  std::string apply(std::string_view text) const;

 private:
  // The replacement of the shortest entry that is a prefix of `key`; false when there is none.
  bool find(std::string_view key, std::string_view& replacement) const;

  std::vector<std::uint32_t> units_;
  std::string pool_;
};

}  // namespace graft::text
