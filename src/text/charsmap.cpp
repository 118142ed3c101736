#include "text/charsmap.h"

#include "base/check.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

std::uint32_t u32_at(std::string_view bytes, std::size_t at) {
  std::uint32_t out = 0;
  for (std::size_t i = 0; i < 4; ++i)
    out |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return out;
}

// The fields of a unit of a darts-clone array.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t label(std::uint32_t unit) { return unit & (1u << 31 | 0xFF); }
std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }
std::uint32_t value(std::uint32_t unit) { return unit & ~(1u << 31); }

// Longer graphemes are never looked up as a whole.
constexpr std::size_t kMaxGraphemeBytes = 5;

}  // namespace

Charsmap::Charsmap(std::string_view blob) {
  if (blob.empty()) return;  // the identity
  GRAFT_CHECK(InvalidProgram, blob.size() >= 4, "precompiled_charsmap has ", blob.size(), " bytes, expected 4 or more");
  const std::size_t trie_bytes = u32_at(blob, 0);
  GRAFT_CHECK(InvalidProgram, trie_bytes % 4 == 0 && trie_bytes <= blob.size() - 4,
              "precompiled_charsmap states a trie of ", trie_bytes, " bytes in ", blob.size() - 4);
  for (std::size_t at = 4; at < 4 + trie_bytes; at += 4) units_.push_back(u32_at(blob, at));
  pool_ = blob.substr(4 + trie_bytes);
  GRAFT_CHECK(InvalidProgram, is_utf8(pool_), "precompiled_charsmap holds replacements that are not UTF-8");
}

bool Charsmap::find(std::string_view key, std::string_view& replacement) const {
  if (units_.empty()) return false;
  std::size_t node = offset(units_[0]);
  for (char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return false;
    node ^= byte;
    if (node >= units_.size() || label(units_[node]) != byte) return false;
    const std::uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    GRAFT_CHECK(InvalidProgram, node < units_.size() && value(units_[node]) <= pool_.size(),
                "precompiled_charsmap points outside of itself");
    const std::size_t begin = value(units_[node]);
    GRAFT_CHECK(InvalidProgram, begin == pool_.size() || !continues_char(pool_[begin]),
                "precompiled_charsmap points into the middle of a character");
    const std::size_t end = pool_.find('\0', begin);
    replacement = std::string_view(pool_).substr(begin, end == std::string::npos ? end : end - begin);
    return true;
  }
  return false;
}

std::string Charsmap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  std::string_view replacement;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = grapheme_end(text, at);
    if (end - at <= kMaxGraphemeBytes && find(text.substr(at, end - at), replacement)) {
      out += replacement;
      at = end;
      continue;
    }
    while (at < end) {
      const std::string_view c = text.substr(at, char_length(text[at]));
      out += find(c, replacement) ? replacement : c;
      at += c.size();
    }
  }
  return out;
}

}  // namespace graft::text
