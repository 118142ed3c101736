#include <algorithm>
#include <charconv>
#include <optional>

#include "base/check.h"
#include "base/utf8.h"
#include "text/grammar/sources.h"
#include "text/unicode.h"

namespace graft::text::grammar {
namespace {

constexpr int kDeepest = 100;                // groups within groups
constexpr std::int64_t kMostTimes = 10'000;  // of {m,n}

const CodeRanges kDigits = {{'0', '9'}};
const CodeRanges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodeRanges kSpace = {{'\t', '\r'}, {' ', ' '}};

class Parser {
 public:
  Parser(std::string_view text, Writing writing, bool anywhere) : writing_(writing), anywhere_(anywhere) {
    GRAFT_CHECK(InvalidArgument, is_utf8(text), "the regular expression is not UTF-8");
    text_ = chars_of(text);
  }

  ExprPtr parse() {
    ExprPtr all = alternatives(0);
    if (at_ < text_.size()) wrong("there is a ')' without its '('");
    return all;
  }

 private:
  [[noreturn]] void wrong(std::string_view what) const {
    throw InvalidArgument(str("the regular expression is wrong at character ", at_, ": ", what));
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    throw Unsupported(str("the regular expression has ", what, " at character ", at_, ", which is not supported"));
  }
  bool more() const { return at_ < text_.size(); }
  bool take(char32_t c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  ExprPtr anything() const { return repeat(written(complement({}), writing_), 0, -1); }

  ExprPtr alternatives(int depth) {
    if (depth > kDeepest) unsupported("more than 100 groups within each other");
    std::vector<ExprPtr> all = {terms(depth)};
    while (take('|')) all.push_back(terms(depth));
    return all.size() == 1 ? all[0] : choice(std::move(all));
  }

  ExprPtr terms(int depth) {
    std::vector<ExprPtr> parts;
    bool from_start = depth > 0, to_end = depth > 0;
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      if (to_end && depth == 0) unsupported("something after '$'");
      if (take('^')) {
        if (!parts.empty() || depth > 0) unsupported("'^' that is not at the beginning");
        from_start = true;
        continue;
      }
      if (take('$')) {
        if (depth > 0) unsupported("'$' that is not at the end");
        to_end = true;
        continue;
      }
      parts.push_back(repeated(depth));
    }
    if (anywhere_ && !from_start) parts.insert(parts.begin(), anything());
    if (anywhere_ && !to_end) parts.push_back(anything());
    return parts.size() == 1 ? parts[0] : sequence(std::move(parts));
  }

  std::int64_t number() {
    std::int64_t value = 0;
    const std::size_t begin = at_;
    for (; more() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<std::int64_t>(text_[at_] - '0');
      if (value > kMostTimes) unsupported(str("a count above ", kMostTimes));
    }
    if (at_ == begin) wrong("expected a number");
    return value;
  }

  ExprPtr repeated(int depth) {
    ExprPtr part = atom(depth);
    for (bool again = false;; again = true) {
      std::int64_t least = 0, most = -1;
      if (take('*')) {
      } else if (take('+')) {
        least = 1;
      } else if (take('?')) {
        most = 1;
      } else if (more() && text_[at_] == '{' && at_ + 1 < text_.size() && text_[at_ + 1] >= '0' &&
                 text_[at_ + 1] <= '9') {
        ++at_;
        least = most = number();
        if (take(',')) most = more() && text_[at_] != '}' ? number() : -1;
        if (!take('}')) wrong("expected '}'");
        if (most >= 0 && most < least) wrong("the counts of a repetition are in the wrong order");
      } else {
        return part;
      }
      if (again) wrong("there are two repetitions of one part");
      if (take('+')) unsupported("a possessive repetition");
      take('?');  // lazy: the same texts
      part = repeat(std::move(part), least, most);
    }
  }

  ExprPtr atom(int depth) {
    const char32_t c = text_[at_++];
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return written(char_class(), writing_);
      case '.':
        return written(complement({{'\n', '\n'}}), writing_);
      case '\\': {
        const CodeRanges escaped = escape(false);
        return written(escaped, writing_);
      }
      case '*':
      case '+':
      case '?':
        --at_;
        wrong("there is nothing to repeat");
      default:
        return written({{c, c}}, writing_);
    }
  }

  ExprPtr group(int depth) {
    if (take('?')) {
      if (take(':')) {
      } else if (take('P') || (more() && text_[at_] == '<' && at_ + 1 < text_.size() && text_[at_ + 1] != '=' &&
                               text_[at_ + 1] != '!')) {
        if (!take('<')) unsupported("a reference to a group");
        while (more() && text_[at_] != '>') ++at_;
        if (!take('>')) wrong("expected '>'");
      } else {
        unsupported("a look-around or an option");
      }
    }
    ExprPtr inner = alternatives(depth + 1);
    if (!take(')')) wrong("expected ')'");
    return inner;
  }

  char32_t hex(std::size_t digits) {
    char32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i, ++at_) {
      if (!more()) wrong("expected a hexadecimal digit");
      const char32_t c = text_[at_];
      if (c >= '0' && c <= '9')
        value = value * 16 + (c - '0');
      else if ((c | 32) >= 'a' && (c | 32) <= 'f')
        value = value * 16 + ((c | 32) - 'a' + 10);
      else
        wrong("expected a hexadecimal digit");
    }
    return value;
  }

  CodeRanges escape(bool in_class) {
    if (!more()) wrong("there is nothing after '\\'");
    const char32_t c = text_[at_++];
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 't':
        return {{'\t', '\t'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case '0':
        return {{0, 0}};
      case 'x': {
        const char32_t value = hex(2);
        return {{value, value}};
      }
      case 'u': {
        char32_t value = 0;
        if (take('{')) {
          std::size_t digits = 0;
          while (at_ + digits < text_.size() && text_[at_ + digits] != '}') ++digits;
          if (digits == 0 || digits > 6) wrong("expected from 1 to 6 hexadecimal digits");
          value = hex(digits);
          if (!take('}')) wrong("expected '}'");
        } else {
          value = hex(4);
        }
        return {{value, value}};
      }
      case 'b':
        if (in_class) return {{'\b', '\b'}};
        unsupported("a word boundary");
      default:
        break;
    }
    if ((c >= '1' && c <= '9') || c == 'k') unsupported("a back reference");
    if (c < 128 && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) unsupported("an escape of this letter");
    return {{c, c}};
  }

  CodeRanges char_class() {
    const bool negated = take('^');
    CodeRanges all;
    for (bool first = true;; first = false) {
      if (!more()) wrong("expected ']'");
      if (text_[at_] == ']' && !first) break;
      const CodeRanges from = class_item();
      if (more() && text_[at_] == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        const CodeRanges to = class_item();
        const bool single = from.size() == 1 && to.size() == 1 && from[0].first == from[0].last &&
                            to[0].first == to[0].last && from[0].first <= to[0].first;
        if (!single) wrong("a range of characters is wrong");
        all.push_back({from[0].first, to[0].first});
      } else {
        all.insert(all.end(), from.begin(), from.end());
      }
    }
    ++at_;
    return negated ? complement(all) : united(std::move(all));
  }

  CodeRanges class_item() {
    if (!more()) wrong("expected ']'");
    const char32_t c = text_[at_++];
    if (c == '\\') return escape(true);
    if (c == '[' && more() && text_[at_] == ':') unsupported("a named class");
    return {{c, c}};
  }

  std::u32string text_;
  std::size_t at_ = 0;
  Writing writing_;
  bool anywhere_;
};

}  // namespace

ExprPtr parse_regex(std::string_view expression, Writing writing, bool anywhere) {
  return Parser(expression, writing, anywhere).parse();
}

}  // namespace graft::text::grammar
