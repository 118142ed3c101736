#include "text/jinja/lexer.h"

#include <cctype>
#include <charconv>

#include "text/unicode.h"

namespace graft::text::jinja {
namespace {

// Normalizes line ends to \n and drops the last one.
std::string normalized_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_name_start(char32_t c) { return c == '_' || is_letter(c); }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    add(Token::Kind::end);
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidProgram(graft::str("chat template, line ", line_, ": ", what));
  }

  Token& add(Token::Kind kind, std::string text = "") {
    out_.push_back({kind, std::move(text), Value(), line_});
    return out_.back();
  }

  bool next_is(std::string_view what) const { return std::string_view(source_).substr(at_).starts_with(what); }

  void advance(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) line_ += source_[at_ + i] == '\n';
    at_ += count;
  }

  void skip_space() {
    while (at_ < source_.size()) {
      std::size_t after = at_;
      if (!is_python_space(next_char(source_, after))) return;
      advance(after - at_);
    }
  }

  // Text up to the next tag, then that tag.
  void read_text() {
    std::size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos) tag = source_.size();
      if (tag >= source_.size() || source_.compare(tag, 2, "{{") == 0 || source_.compare(tag, 2, "{%") == 0 ||
          source_.compare(tag, 2, "{#") == 0)
        break;
      ++tag;
    }
    std::string text = source_.substr(at_, tag - at_);
    const bool line_starting = at_ == 0 || source_[at_ - 1] == '\n';
    const bool is_output = source_.compare(tag, 2, "{{") == 0;
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (tag < source_.size()) strip_before_tag(text, sign, is_output, line_starting);
    if (!text.empty()) add(Token::Kind::text, std::move(text));
    advance(tag - at_);
    if (at_ >= source_.size()) return;
    if (next_is("{#")) return read_comment();
    advance(2);
    if (at_ < source_.size() && (sign == '-' || sign == '+')) advance(1);
    if (!is_output && read_raw()) return;
    add(is_output ? Token::Kind::output_begin : Token::Kind::block_begin);
    read_inside(is_output);
  }

  static void strip_before_tag(std::string& text, char sign, bool is_output, bool line_starting) {
    if (sign == '-') {
      text = stripped(text, false, true);
    } else if (sign != '+' && !is_output) {
      const std::size_t line_end = text.rfind('\n');
      const std::size_t begin = line_end == std::string::npos ? 0 : line_end + 1;
      if ((begin > 0 || line_starting) && stripped(std::string_view(text).substr(begin), true, true).empty())
        text.resize(begin);
    }
  }

  // Skips what follows a block or a comment: all space after "-", nothing after "+", otherwise one line end.
  void skip_after_tag(char sign) {
    if (sign == '-')
      skip_space();
    else if (sign != '+' && next_is("\n"))
      advance(1);
  }

  void read_comment() {
    const std::size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) fail("a comment does not end");
    const char sign = end > at_ + 2 ? source_[end - 1] : ' ';
    advance(end + 2 - at_);
    skip_after_tag(sign);
  }

  // Reads a raw block as text; false when none begins here.
  bool read_raw() {
    std::size_t at = at_;
    if (!skip_word(at, "raw")) return false;
    const bool strip = at < source_.size() && source_[at] == '-';
    if (strip) ++at;
    if (source_.compare(at, 2, "%}") != 0) return false;
    advance(at + 2 - at_);
    if (strip) skip_space();
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      std::size_t end = tag + 2;
      const char sign = end < source_.size() ? source_[end] : ' ';
      if (sign == '-' || sign == '+') ++end;
      if (!skip_word(end, "endraw")) continue;
      char end_sign = end < source_.size() ? source_[end] : ' ';
      if (end_sign == '-' || end_sign == '+') ++end;
      if (source_.compare(end, 2, "%}") != 0) continue;
      std::string text = source_.substr(at_, tag - at_);
      strip_before_tag(text, sign, false, source_[at_ - 1] == '\n');
      if (!text.empty()) add(Token::Kind::text, std::move(text));
      advance(end + 2 - at_);
      skip_after_tag(end_sign);
      return true;
    }
    fail("a raw block does not end");
  }

  // Moves `at` behind the word and the space around it.
  bool skip_word(std::size_t& at, std::string_view word) const {
    const auto space = [&] {
      while (at < source_.size() && std::isspace(static_cast<unsigned char>(source_[at])) != 0) ++at;
    };
    space();
    if (source_.compare(at, word.size(), word) != 0) return false;
    at += word.size();
    space();
    return true;
  }

  void read_inside(bool is_output) {
    const std::string_view close = is_output ? "}}" : "%}";
    std::string open;  // brackets that are not closed yet
    while (true) {
      skip_space();
      if (at_ >= source_.size()) fail(is_output ? "'{{' is not closed" : "'{%' is not closed");
      if (open.empty()) {
        const char sign = source_[at_];
        const bool signed_close = (sign == '-' || (sign == '+' && !is_output)) &&
                                  std::string_view(source_).substr(at_ + 1).starts_with(close);
        if (signed_close || next_is(close)) {
          add(is_output ? Token::Kind::output_end : Token::Kind::block_end);
          advance(signed_close ? 3 : 2);
          if (is_output)
            signed_close ? skip_space() : void();
          else
            skip_after_tag(signed_close ? sign : ' ');
          return;
        }
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = source_[at_];
    if (c == '\'' || c == '"') return read_string(c);
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) return read_number();
    std::size_t after = at_;
    if (is_name_start(next_char(source_, after))) {
      while (after < source_.size()) {
        std::size_t more = after;
        if (!is_word_char(next_char(source_, more))) break;
        after = more;
      }
      add(Token::Kind::name, source_.substr(at_, after - at_));
      return advance(after - at_);
    }
    for (const char* sign : {"==", "!=", ">=", "<=", "//", "**"})
      if (next_is(sign)) {
        add(Token::Kind::sign, sign);
        return advance(2);
      }
    if (std::string_view("+-*/%~<>=.:|,;()[]{}").find(c) == std::string_view::npos)
      fail(graft::str("unexpected character '", source_.substr(at_, char_length(c)), "'"));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(graft::str("unexpected '", c, "'"));
      open.pop_back();
    }
    add(Token::Kind::sign, std::string(1, c));
    advance(1);
  }

  void read_number() {
    std::string digits;
    bool real = false;
    std::size_t at = at_;
    const auto is_digit_at = [&](std::size_t i) {
      return i < source_.size() && std::isdigit(static_cast<unsigned char>(source_[i])) != 0;
    };
    const auto take_digits = [&] {
      while (is_digit_at(at) || (at < source_.size() && source_[at] == '_' && is_digit_at(at + 1))) {
        if (source_[at] != '_') digits += source_[at];
        ++at;
      }
    };
    take_digits();
    if (at < source_.size() && source_[at] == '.' && is_digit_at(at + 1)) {
      real = true;
      digits += source_[at++];
      take_digits();
    }
    if (at < source_.size() && (source_[at] == 'e' || source_[at] == 'E')) {
      const bool sign = at + 1 < source_.size() && (source_[at + 1] == '+' || source_[at + 1] == '-');
      if (is_digit_at(at + (sign ? 2 : 1))) {
        real = true;
        digits += source_[at++];
        if (sign) digits += source_[at++];
        take_digits();
      }
    }
    Token& token = add(Token::Kind::constant);
    if (real) {
      double value = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
      token.value = value;
    } else {
      std::int64_t value = 0;
      if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
        fail(graft::str("the number ", digits, " is too large"));
      token.value = value;
    }
    advance(at - at_);
  }

  void read_string(char quote) {
    std::string out;
    std::size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\') {
        out += source_[at++];
        continue;
      }
      if (++at >= source_.size()) break;
      read_escape(at, out);
    }
    if (at >= source_.size()) fail("a string does not end");
    add(Token::Kind::constant).value = std::move(out);
    advance(at + 1 - at_);
  }

  // An escape sequence of Python's strings; `at` is after the backslash.
  void read_escape(std::size_t& at, std::string& out) {
    constexpr std::string_view from = "nrtbfav\\'\"";
    constexpr std::string_view to = "\n\r\t\b\f\a\v\\'\"";
    const char c = source_[at++];
    if (const std::size_t known = from.find(c); known != std::string_view::npos) {
      out += to[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      std::uint32_t code = 0;
      const char* begin = source_.data() + at;
      if (source_.size() - at < digits || std::from_chars(begin, begin + digits, code, 16).ptr != begin + digits ||
          code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        fail(graft::str("'\\", c, "' is not followed by the ", digits, " digits of a character"));
      append_char(out, code);
      at += digits;
    } else if (c == '0') {
      out += '\0';
    } else if (c != '\n') {  // a continued line
      out += '\\';
      out += c;
    }
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(normalized_source(source)).run(); }

}  // namespace graft::text::jinja
