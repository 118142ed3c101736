#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

// Grammars as trees: what a source (schema, expression, rules) says, before it becomes an automaton.
namespace graft::text::grammar {

struct CodeRange {
  char32_t first = 0, last = 0;  // both included
};
using CodeRanges = std::vector<CodeRange>;

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  enum class Kind : std::uint8_t { bytes, chars, sequence, choice, repeat, rule };
  Kind kind = Kind::sequence;
  std::string bytes = {};
  CodeRanges chars = {};
  std::vector<ExprPtr> parts = {};   // of sequence and choice; the one that repeats
  std::int64_t least = 0, most = 0;  // of repeat; most -1: any number
  std::size_t rule = 0;
};

ExprPtr bytes(std::string_view text);
ExprPtr chars(CodeRanges ranges);  // one of these characters
ExprPtr sequence(std::vector<ExprPtr> parts);
ExprPtr choice(std::vector<ExprPtr> parts);
ExprPtr repeat(ExprPtr part, std::int64_t least, std::int64_t most);
// One of the texts. What they begin with alike is there once, so that few places in the grammar are possible at a time.
ExprPtr one_of(std::vector<std::string> texts);
inline ExprPtr optional(ExprPtr part) { return repeat(std::move(part), 0, 1); }
ExprPtr rule(std::size_t index);

// Sorted, without overlaps.
CodeRanges united(CodeRanges ranges);
// All characters but these.
CodeRanges complement(const CodeRanges& ranges);
CodeRanges intersection(const CodeRanges& a, const CodeRanges& b);

// Rules that name each other; the first one added is where texts begin, unless `root` says otherwise.
struct Rules {
  std::vector<ExprPtr> bodies;
  std::vector<std::string> names;
  std::size_t root = 0;
  std::size_t add(std::string name, ExprPtr body = nullptr);
};

// How characters are written in the text.
enum class Writing : std::uint8_t {
  plain,
  json,  // within a JSON string
};
// Exactly one of the characters, as it is written.
ExprPtr written(const CodeRanges& ranges, Writing writing);

}  // namespace graft::text::grammar
