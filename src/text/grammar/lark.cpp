#include <map>
#include <set>

#include "base/check.h"
#include "base/utf8.h"
#include "text/grammar/rules_reader.h"
#include "text/grammar/sources.h"
#include "text/unicode.h"

namespace graft::text::grammar {
namespace {

// The terminals that `%import common.NAME` takes.
constexpr std::string_view kCommon = R"(
DIGIT: "0".."9"
HEXDIGIT: "a".."f" | "A".."F" | DIGIT
INT: DIGIT+
SIGNED_INT: ["+" | "-"] INT
DECIMAL: INT "." INT? | "." INT
FLOAT: INT _EXP | DECIMAL _EXP?
_EXP: ("e" | "E") SIGNED_INT
SIGNED_FLOAT: ["+" | "-"] FLOAT
NUMBER: FLOAT | INT
SIGNED_NUMBER: ["+" | "-"] NUMBER
ESCAPED_STRING: "\"" /([^"\\\n]|\\[^\n])*/ "\""
LCASE_LETTER: "a".."z"
UCASE_LETTER: "A".."Z"
LETTER: UCASE_LETTER | LCASE_LETTER
WORD: LETTER+
CNAME: ("_" | LETTER) ("_" | LETTER | DIGIT)*
WS_INLINE: (" " | "\t")+
WS: /[ \t\f\r\n]/+
CR: /\r/
LF: /\n/
NEWLINE: (CR? LF)+
SH_COMMENT: /#[^\n]*/
CPP_COMMENT: /\/\/[^\n]*/
)";

bool is_lower(char32_t c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char32_t c) { return c >= 'A' && c <= 'Z'; }
bool is_terminal(const std::string& name) {
  return is_upper(static_cast<unsigned char>(name[name.find_first_not_of('_')]));
}

// Whether a regular expression asks where in the text it is.
bool has_anchor(std::u32string_view expression) {
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char32_t c = expression[i];
    if (c == '\\')
      ++i;
    else if (in_class)
      in_class = c != ']';
    else if (c == '[')
      in_class = true, i += expression.substr(i + 1).starts_with(U"^") ? 1 : 0;
    else if (c == '^' || c == '$')
      return true;
  }
  return false;
}

class Parser : RulesReader {
 public:
  using RulesReader::RulesReader;

  void parse(std::string_view text) {
    GRAFT_CHECK(InvalidArgument, is_utf8(text), "the grammar is not UTF-8");
    ignores_ = text.find("%ignore") != std::string_view::npos;
    const std::size_t ignored = ignores_ ? rules_.add("%ignore") : 0;
    ignored_ = ignores_ ? rule(ignored) : nullptr;
    read(text);
    if (ignores_) rules_.bodies[ignored] = repeat(choice(std::move(what_is_ignored_)), 0, -1);
    for (const auto& [name, index] : by_name_)
      GRAFT_CHECK(InvalidArgument, rules_.bodies[index], "the grammar has no ",
                  is_terminal(name) ? "terminal '" : "rule '", name, "'");
    const auto start = by_name_.find("start");
    GRAFT_CHECK(InvalidArgument, start != by_name_.end(), "the grammar has no rule 'start'");
    check_terminals();
    for (const auto& [name, index] : by_name_) remove_left_recursion(index);
    rules_.root = start->second;
    if (ignores_) rules_.root = rules_.add("%start", sequence({ignored_, rule(start->second)}));
  }

 private:
  void read(std::string_view text) {
    text_ = chars_of(text);
    at_ = 0;
    line_ = 1;
    for (skip(true); more(); skip(true)) {
      if (take('%'))
        directive();
      else
        definition();
      skip(false);
      if (more() && text_[at_] != '\n') wrong("expected the end of the line");
    }
  }

  [[noreturn]] void unsupported(const std::string& what) const {
    throw Unsupported(str("the grammar has ", what, " in line ", line_, ", which is not supported"));
  }
  static bool in_name(char32_t c) { return is_lower(c) || is_upper(c) || is_digit(c) || c == '_'; }
  bool ahead(std::u32string_view what) const { return std::u32string_view(text_).substr(at_).starts_with(what); }
  using RulesReader::take;
  bool take(std::u32string_view what) {
    if (!ahead(what)) return false;
    at_ += what.size();
    return true;
  }

  // Blanks and comments; line ends too where lines go on.
  void skip(bool lines) {
    for (; more(); ++at_) {
      const char32_t c = text_[at_];
      if (c == '#' || ahead(U"//")) {
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (c == '\n') {
        if (!lines) return;
        ++line_;
      } else if (c != ' ' && c != '\t' && c != '\r' && c != '\f') {
        return;
      }
    }
  }
  // To the '|' of the next alternative, on a later line too.
  bool take_or(bool lines) {
    const std::size_t at = at_, line = line_;
    skip(true);
    if (take('|')) return true;
    if (lines) return false;
    at_ = at;
    line_ = line;
    skip(false);
    return false;
  }

  std::string name() {
    std::string out;
    while (more() && in_name(text_[at_])) append_char(out, text_[at_++]);
    if (out.find_first_not_of('_') == std::string::npos) wrong("expected a name");
    const char first = out[out.find_first_not_of('_')];
    if (is_digit(static_cast<unsigned char>(first))) wrong(str("'", out, "' is no name"));
    for (const char c : out)
      if (is_terminal(out) ? is_lower(static_cast<unsigned char>(c)) : is_upper(static_cast<unsigned char>(c)))
        wrong(str("the name '", out, "' has small and large letters"));
    return out;
  }

  void definition() {
    while (take('?') || take('!')) {
    }  // how trees are made
    const std::string of = name();
    if (take('{')) unsupported("a rule with parameters");
    if (take('[')) unsupported("attributes of a rule");
    if (take('.')) {  // a priority: of one reading before another
      take('-');
      number();
    }
    skip(false);
    if (!take(':')) wrong(str("expected ':' after '", of, "'"));
    const std::size_t index = rule_named(of);
    if (rules_.bodies[index]) wrong(str("'", of, "' is there twice"));
    within_ = of;
    in_terminal_ = is_terminal(of);
    rules_.bodies[index] = alternatives(0);
  }

  void directive() {
    const std::string of = name();
    skip(false);
    if (of == "ignore") {
      in_terminal_ = true;
      within_ = "%ignore";
      what_is_ignored_.push_back(alternatives(0));
    } else if (of == "import") {
      import();
    } else if (of == "llguidance") {
      if (!take(U"{}")) unsupported("options of '%llguidance'");
    } else {
      unsupported(str("'%", of, "'"));
    }
  }

  // `common.A`, `common.A -> B` or `common (A, B)`.
  void import() {
    if (name() != "common") unsupported("an import of other grammars than 'common'");
    std::vector<std::pair<std::string, std::string>> wanted;
    if (take('.')) {
      const std::string of = name();
      skip(false);
      const bool renamed = take(U"->");
      skip(false);
      wanted.emplace_back(of, renamed ? name() : of);
    } else {
      skip(false);
      if (!take('(')) wrong("expected '.' or '('");
      do {
        skip(true);
        wanted.emplace_back(name(), "");
        wanted.back().second = wanted.back().first;
        skip(true);
      } while (take(','));
      if (!take(')')) wrong("expected ')'");
    }
    for (const auto& [of, as] : wanted) {
      if (!common_.contains(of) && common_.empty()) read_common();
      const auto found = common_.find(of);
      if (found == common_.end() || of.starts_with('_')) unsupported(str("'common.", of, "'"));
      const std::size_t index = rule_named(as);
      if (rules_.bodies[index]) wrong(str("'", as, "' is there twice"));
      rules_.bodies[index] = rule(found->second);
    }
  }

  // With names of their own, so that a grammar may have the same ones.
  void read_common() {
    Parser parser(rules_);
    parser.read(kCommon);
    common_ = std::move(parser.by_name_);
  }

  ExprPtr alternatives(int depth) {
    if (depth > kDeepest) unsupported(str("more than ", kDeepest, " groups within each other"));
    std::vector<ExprPtr> all;
    do {
      all.push_back(terms(depth));
      skip(false);
      if (take(U"->")) {  // the name of a tree
        if (depth > 0 || in_terminal_) wrong("there is an alias within a group or a terminal");
        skip(false);
        name();
      }
    } while (take_or(depth > 0));
    return all.size() == 1 ? all[0] : choice(std::move(all));
  }

  ExprPtr terms(int depth) {
    std::vector<ExprPtr> parts;
    for (;;) {
      skip(depth > 0);
      if (!more() || text_[at_] == '|' || text_[at_] == ')' || text_[at_] == ']' || text_[at_] == '\n' || ahead(U"->"))
        break;
      parts.push_back(repeated(depth));
    }
    return parts.size() == 1 ? parts[0] : sequence(std::move(parts));
  }

  ExprPtr repeated(int depth) {
    ExprPtr part = atom(depth);
    if (take('*')) return repeat(std::move(part), 0, -1);
    if (take('+')) return repeat(std::move(part), 1, -1);
    if (take('?')) return optional(std::move(part));
    const std::size_t at = at_;
    skip(false);
    if (!take('~')) {
      at_ = at;
      return part;
    }
    skip(false);
    const std::int64_t least = number();
    const std::int64_t most = take(U"..") ? number() : least;
    if (most < least) wrong("the counts of a repetition are in the wrong order");
    return repeat(std::move(part), least, most);
  }

  ExprPtr atom(int depth) {
    if (take('(')) return group(depth, ')');
    if (take('[')) return optional(group(depth, ']'));
    const char32_t c = text_[at_];
    if (c == '"') return token(literal());
    if (c == '/') return token(regex());
    if (c == '<') unsupported("a special token");
    if (c == '%') unsupported("a grammar within the grammar");
    if (c != '_' && !is_lower(c) && !is_upper(c)) wrong("expected a string, an expression, a group or a name");
    const std::string of = name();
    if (ahead(U"{")) unsupported("a rule with parameters");
    if (in_terminal_ && !is_terminal(of)) wrong(str("the terminal '", within_, "' has the rule '", of, "' in it"));
    if (in_terminal_) terminals_[within_].insert(of);
    const ExprPtr called = rule(rule_named(of));
    return is_terminal(of) ? token(called) : called;
  }

  ExprPtr group(int depth, char32_t end) {
    skip(true);
    ExprPtr inner = alternatives(depth + 1);
    skip(true);
    if (!take(end)) wrong(end == ')' ? "expected ')'" : "expected ']'");
    return inner;
  }

  // What is ignored may follow each token of a rule.
  ExprPtr token(ExprPtr one) const { return in_terminal_ || !ignores_ ? one : sequence({std::move(one), ignored_}); }

  ExprPtr literal() {
    const std::u32string first = string();
    if (take(U"..")) {
      if (!more() || text_[at_] != '"') wrong("expected a string after '..'");
      const std::u32string last = string();
      if (first.size() != 1 || last.size() != 1 || last[0] < first[0]) wrong("a range of characters is wrong");
      return chars(intersection({{first[0], last[0]}}, complement({})));
    }
    if (first.empty()) wrong("there is an empty string");
    const bool any_case = more() && text_[at_] == 'i' && (at_ + 1 == text_.size() || !in_name(text_[at_ + 1]));
    if (any_case) ++at_;
    std::vector<ExprPtr> all;
    for (const char32_t c : first) {
      if (any_case && c >= 128) unsupported("a string of other letters than a to z in either case");
      const bool letter = any_case && (is_lower(c) || is_upper(c));
      all.push_back(chars(letter ? CodeRanges{{c | 32, c | 32}, {c & ~32u, c & ~32u}} : CodeRanges{{c, c}}));
    }
    return all.size() == 1 ? all[0] : sequence(std::move(all));
  }

  std::u32string string() {
    std::u32string out;
    for (++at_; !take('"');) {
      if (!more() || text_[at_] == '\n') wrong("expected '\"'");
      if (!take('\\')) {
        out += text_[at_++];
        continue;
      }
      const char32_t c = more() ? text_[at_++] : 0;
      constexpr std::u32string_view kLetters = U"nrtf", kMeant = U"\n\r\t\f";
      if (const std::size_t i = kLetters.find(c); i != std::u32string_view::npos)
        out += kMeant[i];
      else if (c == 'x' || c == 'u' || c == 'U')
        out += hex(c == 'x' ? 2 : c == 'u' ? 4 : 8);
      else if (c == '"' || c == '\\')
        out += c;
      else
        unsupported("a string with another escape than \\n, \\r, \\t, \\f, \\x, \\u, \\U, \\\" and \\\\");
    }
    return out;
  }

  ExprPtr regex() {
    std::u32string expression;
    for (++at_; !take('/');) {
      if (!more() || text_[at_] == '\n') wrong("expected '/'");
      if (text_[at_] == '\\') {
        expression += text_[at_++];
        if (!more() || text_[at_] == '\n') wrong("there is nothing after '\\'");
      }
      expression += text_[at_++];
    }
    if (more() && is_lower(text_[at_])) unsupported("an expression with flags");
    if (has_anchor(expression)) unsupported("an expression with '^' or '$'");
    std::string bytes;
    for (const char32_t c : expression) append_char(bytes, c);
    return parse_regex(bytes);
  }

  // A terminal that is part of itself is none.
  void check_terminals() const {
    std::map<std::string, int> color;  // 1: on the path, 2: done
    const auto search = [&](const auto& self, const std::string& of) -> void {
      color[of] = 1;
      if (const auto parts = terminals_.find(of); parts != terminals_.end())
        for (const std::string& part : parts->second) {
          GRAFT_CHECK(InvalidArgument, color[part] != 1, "the terminal '", part, "' is part of itself");
          if (color[part] == 0) self(self, part);
        }
      color[of] = 2;
    };
    for (const auto& [of, parts] : terminals_)
      if (color[of] == 0) search(search, of);
  }

  // a: a x | y has the texts of a: y x*.
  void remove_left_recursion(std::size_t index) {
    const ExprPtr body = rules_.bodies[index];
    const std::vector<ExprPtr> ways = body->kind == Expr::Kind::choice ? body->parts : std::vector<ExprPtr>{body};
    const auto is_same = [&](const Expr& part) { return part.kind == Expr::Kind::rule && part.rule == index; };
    std::vector<ExprPtr> first, then;
    for (const ExprPtr& way : ways) {
      if (is_same(*way)) continue;
      if (way->kind == Expr::Kind::sequence && !way->parts.empty() && is_same(*way->parts[0]))
        then.push_back(sequence({way->parts.begin() + 1, way->parts.end()}));
      else
        first.push_back(way);
    }
    if (first.size() == ways.size()) return;
    rules_.bodies[index] = sequence({choice(std::move(first)), repeat(choice(std::move(then)), 0, -1)});
  }

  std::map<std::string, std::size_t> common_;
  std::map<std::string, std::set<std::string>> terminals_;  // the terminals that each has in it
  std::string within_;                                      // what is being defined
  bool in_terminal_ = false, ignores_ = false;
  ExprPtr ignored_;  // what may come between tokens; null: nothing
  std::vector<ExprPtr> what_is_ignored_;
};

}  // namespace

void parse_lark(std::string_view text, Rules& rules) { Parser(rules).parse(text); }

}  // namespace graft::text::grammar
