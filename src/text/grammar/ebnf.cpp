#include "base/check.h"
#include "base/utf8.h"
#include "text/grammar/rules_reader.h"
#include "text/grammar/sources.h"
#include "text/unicode.h"

namespace graft::text::grammar {
namespace {

class Parser : RulesReader {
 public:
  Parser(std::string_view text, Rules& rules) : RulesReader(rules) {
    GRAFT_CHECK(InvalidArgument, is_utf8(text), "the grammar is not UTF-8");
    text_ = chars_of(text);
  }

  void parse() {
    for (skip(true); more(); skip(true)) {
      const std::size_t line = line_;
      const std::string name = word();
      skip(false);
      if (!(take(':') && take(':') && take('='))) wrong("expected '::='");
      const std::size_t index = rule_named(name);
      if (rules_.bodies[index]) wrong(str("the rule '", name, "' of line ", line, " is there twice"));
      skip(true);
      rules_.bodies[index] = alternatives(0);
      if (more() && text_[at_] != '\n' && text_[at_] != '\r') wrong("expected the end of the rule");
    }
    for (const auto& [name, index] : by_name_)
      GRAFT_CHECK(InvalidArgument, rules_.bodies[index], "the grammar has no rule '", name, "'");
    const auto root = by_name_.find("root");
    GRAFT_CHECK(InvalidArgument, root != by_name_.end(), "the grammar has no rule 'root'");
    rules_.root = root->second;
  }

 private:
  static bool in_word(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  }

  // Blanks and comments; line ends too where a rule goes on behind them.
  void skip(bool lines) {
    for (; more(); ++at_) {
      const char32_t c = text_[at_];
      if (c == '#') {
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (c == '\n' || c == '\r') {
        if (!lines) return;
        line_ += c == '\n';
      } else if (c != ' ' && c != '\t') {
        return;
      }
    }
  }

  std::string word() {
    std::string out;
    while (more() && in_word(text_[at_])) append_char(out, text_[at_++]);
    if (out.empty()) wrong("expected the name of a rule");
    return out;
  }

  ExprPtr alternatives(int depth) {
    GRAFT_CHECK(Unsupported, depth <= kDeepest, "the grammar has more than ", kDeepest, " groups within each other");
    std::vector<ExprPtr> all = {terms(depth)};
    while (take('|')) {
      skip(true);
      all.push_back(terms(depth));
    }
    return all.size() == 1 ? all[0] : choice(std::move(all));
  }

  ExprPtr terms(int depth) {
    std::vector<ExprPtr> parts;
    for (;;) {
      // Within a group lines go on; outside the next line is the next rule.
      skip(depth > 0);
      if (!more()) break;
      const char32_t c = text_[at_];
      if (c == '|' || c == ')' || c == '\n' || c == '\r') break;
      parts.push_back(repeated(depth));
    }
    return parts.size() == 1 ? parts[0] : sequence(std::move(parts));
  }

  ExprPtr repeated(int depth) {
    ExprPtr part = atom(depth);
    for (;;) {
      if (take('*')) {
        part = repeat(std::move(part), 0, -1);
      } else if (take('+')) {
        part = repeat(std::move(part), 1, -1);
      } else if (take('?')) {
        part = repeat(std::move(part), 0, 1);
      } else if (take('{')) {
        skip(false);
        const std::int64_t least = number();
        std::int64_t most = least;
        skip(false);
        if (take(',')) {
          skip(false);
          most = more() && text_[at_] != '}' ? number() : -1;
          skip(false);
        }
        if (!take('}')) wrong("expected '}'");
        if (most >= 0 && most < least) wrong("the counts of a repetition are in the wrong order");
        part = repeat(std::move(part), least, most);
      } else {
        return part;
      }
    }
  }

  ExprPtr atom(int depth) {
    if (take('(')) {
      skip(true);
      ExprPtr inner = alternatives(depth + 1);
      if (!take(')')) wrong("expected ')'");
      return inner;
    }
    if (take('"')) {
      std::string literal;
      while (!take('"')) {
        if (!more() || text_[at_] == '\n') wrong("expected '\"'");
        append_char(literal, character());
      }
      return bytes(literal);
    }
    if (take('[')) return char_class();
    if (take('.')) return chars(complement({}));
    if (!in_word(text_[at_])) wrong("expected a literal, a class, a group or the name of a rule");
    return rule(rule_named(word()));
  }

  ExprPtr char_class() {
    const bool negated = take('^');
    CodeRanges all;
    while (!take(']')) {
      if (!more() || text_[at_] == '\n') wrong("expected ']'");
      const char32_t first = character();
      char32_t last = first;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        last = character();
        if (last < first) wrong("a range of characters is wrong");
      }
      all.push_back({first, last});
    }
    return chars(negated ? complement(all) : intersection(all, complement({})));
  }

  char32_t character() {
    if (!take('\\')) return text_[at_++];
    if (!more()) wrong("there is nothing after '\\'");
    const char32_t c = text_[at_++];
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        if (c < 128 && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')))
          wrong("an escape is not known");
        return c;
    }
  }
};

}  // namespace

void parse_ebnf(std::string_view text, Rules& rules) { Parser(text, rules).parse(); }

}  // namespace graft::text::grammar
