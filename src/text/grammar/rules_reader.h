#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/grammar/expr.h"

namespace graft::text::grammar {

// What readers of rules share: a place in the text, and the rules by name.
class RulesReader {
 public:
  explicit RulesReader(Rules& rules) : rules_(rules) {}

 protected:
  static constexpr int kDeepest = 100;  // groups within groups
  static constexpr std::size_t kMostRules = 2000;
  static constexpr std::int64_t kMostTimes = 10'000;

  static bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
  [[noreturn]] void wrong(const std::string& what) const {
    throw InvalidArgument(str("the grammar is wrong in line ", line_, ": ", what));
  }
  bool more() const { return at_ < text_.size(); }
  bool take(char32_t c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::int64_t number() {
    std::int64_t value = 0;
    const std::size_t begin = at_;
    for (; more() && is_digit(text_[at_]); ++at_) {
      value = value * 10 + static_cast<std::int64_t>(text_[at_] - '0');
      GRAFT_CHECK(Unsupported, value <= kMostTimes, "the grammar has a count above ", kMostTimes);
    }
    if (at_ == begin) wrong("expected a number");
    return value;
  }

  // The character of an escape.
  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char32_t c = more() ? text_[at_] : 0;
      if (is_digit(c))
        value = value * 16 + (c - '0');
      else if ((c | 32) >= 'a' && (c | 32) <= 'f')
        value = value * 16 + ((c | 32) - 'a' + 10);
      else
        wrong("expected a hexadecimal digit");
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) wrong("an escape is no character");
    return value;
  }

  // Adds it without a body where the name is new.
  std::size_t rule_named(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) return found->second;
    GRAFT_CHECK(Unsupported, by_name_.size() < kMostRules, "the grammar has more than ", kMostRules, " rules");
    return by_name_[name] = rules_.add(name);
  }

  Rules& rules_;
  std::u32string text_;
  std::size_t at_ = 0, line_ = 1;
  std::map<std::string, std::size_t> by_name_;
};

}  // namespace graft::text::grammar
