#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace graft::text {

// A table of replacements as SentencePiece compiles it: a double-array trie over bytes (darts-clone) and a pool of
// replacements, each ended by a zero.
class Charsmap {
 public:
  // `blob`: little-endian bytes. Throws InvalidProgram when its parts do not fit.
  explicit Charsmap(std::string_view blob);

  // Text of well-formed UTF-8, replaced grapheme by grapheme where short ones are in the table, otherwise character by
  // character.
  std::string apply(std::string_view text) const;

 private:
  // What begins the key's shortest entry; false when there is none.
  bool find(std::string_view key, std::string_view& replacement) const;

  std::vector<std::uint32_t> units_;
  std::string pool_;
};

// Throws InvalidProgram when the text is not base64.
std::string from_base64(std::string_view text);

}  // namespace graft::text
