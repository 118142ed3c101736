#include "text/grammar/expr.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace graft::text::grammar {
namespace {

constexpr char32_t kLast = 0x10FFFF;
const CodeRanges kSurrogates = {{0xD800, 0xDFFF}};

constexpr int kDeepest = 50;

ExprPtr make(Expr expr) { return std::make_shared<const Expr>(std::move(expr)); }

// Sorted texts, from their byte `at` on, before which they are the same.
ExprPtr one_of_sorted(std::span<const std::string> texts, std::size_t at, int depth) {
  if (texts.size() == 1) return bytes(std::string_view(texts[0]).substr(at));
  const auto& first = texts.front();
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(first, texts.back()).in1 - first.begin());
  std::vector<ExprPtr> ways;
  for (std::size_t i = 0, end = 0; i < texts.size(); i = end) {
    const auto goes_on_as = [&](const std::string& text) {
      return text.size() > same && texts[i].size() > same && text[same] == texts[i][same];
    };
    for (end = i + 1; depth < kDeepest && end < texts.size() && goes_on_as(texts[end]);) ++end;
    ways.push_back(one_of_sorted(texts.subspan(i, end - i), same, depth + 1));
  }
  return sequence({bytes(std::string_view(first).substr(at, same - at)), choice(std::move(ways))});
}

}  // namespace

ExprPtr bytes(std::string_view text) { return make({.kind = Expr::Kind::bytes, .bytes = std::string(text)}); }
ExprPtr chars(CodeRanges ranges) { return make({.kind = Expr::Kind::chars, .chars = united(std::move(ranges))}); }
ExprPtr sequence(std::vector<ExprPtr> parts) { return make({.kind = Expr::Kind::sequence, .parts = std::move(parts)}); }
ExprPtr choice(std::vector<ExprPtr> parts) { return make({.kind = Expr::Kind::choice, .parts = std::move(parts)}); }
ExprPtr one_of(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return texts.empty() ? choice({}) : one_of_sorted(texts, 0, 0);
}
ExprPtr repeat(ExprPtr part, std::int64_t least, std::int64_t most) {
  return make({.kind = Expr::Kind::repeat, .parts = {std::move(part)}, .least = least, .most = most});
}
ExprPtr rule(std::size_t index) { return make({.kind = Expr::Kind::rule, .rule = index}); }

CodeRanges united(CodeRanges ranges) {
  std::ranges::sort(ranges, {}, &CodeRange::first);
  CodeRanges out;
  for (const CodeRange& range : ranges) {
    if (!out.empty() && range.first <= out.back().last + 1)
      out.back().last = std::max(out.back().last, range.last);
    else
      out.push_back(range);
  }
  return out;
}

CodeRanges complement(const CodeRanges& ranges) {
  CodeRanges all = ranges;
  all.insert(all.end(), kSurrogates.begin(), kSurrogates.end());
  CodeRanges out;
  char32_t from = 0;
  for (const CodeRange& range : united(all)) {
    if (range.first > from) out.push_back({from, range.first - 1});
    from = range.last + 1;
  }
  if (from <= kLast) out.push_back({from, kLast});
  return out;
}

CodeRanges intersection(const CodeRanges& a, const CodeRanges& b) {
  CodeRanges out;
  for (const CodeRange& x : a)
    for (const CodeRange& y : b)
      if (std::max(x.first, y.first) <= std::min(x.last, y.last))
        out.push_back({std::max(x.first, y.first), std::min(x.last, y.last)});
  return united(out);
}

std::size_t Rules::add(std::string name, ExprPtr body) {
  names.push_back(std::move(name));
  bodies.push_back(std::move(body));
  return bodies.size() - 1;
}

ExprPtr written(const CodeRanges& ranges, Writing writing) {
  if (writing == Writing::plain) return chars(intersection(united(ranges), complement({})));
  const CodeRanges must_escape = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  std::vector<ExprPtr> forms;
  if (CodeRanges raw = intersection(united(ranges), complement(must_escape)); !raw.empty())
    forms.push_back(chars(std::move(raw)));
  constexpr std::array<std::pair<char32_t, char>, 8> kShort = {
      {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}}};
  for (const auto& [c, letter] : kShort)
    if (!intersection(ranges, {{c, c}}).empty()) forms.push_back(bytes(std::string{'\\', letter}));
  for (char32_t high = 0; high < 2; ++high) {
    CodeRanges digits;
    for (const CodeRange& range : intersection(united(ranges), {{high * 16, high * 16 + 15}}))
      for (char32_t c = range.first; c <= range.last; ++c) {
        const char32_t digit = (c & 15) < 10 ? '0' + (c & 15) : 'a' + (c & 15) - 10;
        digits.push_back({digit, digit});
      }
    if (!digits.empty()) forms.push_back(sequence({bytes(high ? "\\u001" : "\\u000"), chars(std::move(digits))}));
  }
  return forms.size() == 1 ? forms[0] : choice(std::move(forms));
}

}  // namespace graft::text::grammar
