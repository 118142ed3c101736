#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace graft::text {

// A part of a text that is split at matches; the parts in order cover the text.
struct Cut {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool match = false;
};
using Cuts = std::vector<Cut>;

// A search pattern: a literal string, or a regular expression in the dialect of tokenizer.json (Oniguruma, Ruby
// syntax). Immutable; any number of threads may search with it.
class Pattern {
 public:
  static Pattern literal(std::string text);
  // Throws InvalidProgram naming the expression and what is wrong with it.
  static Pattern regex(const std::string& expression);

  // Splits well-formed text at its matches, from left to right. Throws ExecutionError when the search gives up (an
  // expression with exponential backtracking).
  Cuts find(std::string_view text) const;
  // The text with every match replaced.
  std::string replace(std::string_view text, std::string_view content) const;

 private:
  class Compiled;
  std::string literal_;
  std::shared_ptr<const Compiled> regex_;  // null for a literal
};

// Splits a text at single characters that match: `is_match(char32_t)`.
template <typename Predicate>
Cuts cut_at_chars(std::string_view text, Predicate&& is_match);

// What happens to the matches that separate words, as tokenizer.json names it.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
// The parts that remain, without empty ones.
Cuts split(const Cuts& cuts, SplitBehavior behavior);

}  // namespace graft::text

#include "text/unicode.h"

template <typename Predicate>
graft::text::Cuts graft::text::cut_at_chars(std::string_view text, Predicate&& is_match) {
  Cuts out;
  std::size_t last = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (!is_match(next_char(text, at))) continue;
    if (last < begin) out.push_back({last, begin, false});
    out.push_back({begin, at, true});
    last = at;
  }
  if (last < text.size()) out.push_back({last, text.size(), false});
  return out;
}
