#include "graft/grammar.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "base/utf8.h"
#include "text/grammar/matcher.h"
#include "text/grammar/sources.h"

namespace graft {
namespace {

using text::grammar::Compiled;
using text::grammar::ExprPtr;
using text::grammar::Rules;

std::shared_ptr<Compiled> compiled(Rules rules, Grammar::Vocabulary vocabulary) {
  return std::make_shared<Compiled>(text::grammar::compile(rules), std::move(vocabulary));
}

std::shared_ptr<Compiled> compiled(Rules rules, ExprPtr whole, Grammar::Vocabulary vocabulary) {
  rules.root = rules.add("root", std::move(whole));
  return compiled(std::move(rules), std::move(vocabulary));
}

class MaskOfGrammar : public TokenMask {
 public:
  explicit MaskOfGrammar(std::shared_ptr<Compiled> compiled_grammar)
      : compiled_(std::move(compiled_grammar)), at_(compiled_->begin()) {}

  void allowed(std::span<std::uint32_t> words) override try {
    if (ended_)
      std::ranges::fill(words, 0u);
    else
      compiled_->allowed(at_, words);
  } catch (...) {
    rethrow_typed();
  }

  void accept(std::int64_t id) override try {
    const text::grammar::Trie& trie = compiled_->trie();
    GRAFT_CHECK(InvalidArgument, id >= 0 && id < trie.size(), "token ", id, " is not in the vocabulary of ",
                trie.size(), " tokens");
    const bool eos = std::ranges::find(trie.eos(), id) != trie.eos().end();
    const Compiled::Config next =
        eos || ended_ || trie.bytes_of(id).empty() ? Compiled::kDead : compiled_->after(at_, trie.bytes_of(id));
    GRAFT_CHECK(InvalidArgument, next != Compiled::kDead || (eos && !ended_ && compiled_->may_end(at_)), "token ", id,
                " may not come next: it does not have the form of the grammar");
    if (eos)
      ended_ = true;
    else
      at_ = next;
  } catch (...) {
    rethrow_typed();
  }

  bool done() const override { return ended_ || compiled_->only_ends(at_); }

 private:
  std::shared_ptr<Compiled> compiled_;
  Compiled::Config at_;
  bool ended_ = false;
};

// Any text without `forbidden` in it: the automaton that searches for it (Knuth, Morris and Pratt), as rules.
ExprPtr text_without(const std::string& forbidden, Rules& rules) {
  using namespace text::grammar;
  if (forbidden.empty()) return repeat(chars(complement({})), 0, -1);
  for (const char c : forbidden)
    GRAFT_CHECK(Unsupported, static_cast<unsigned char>(c) < 128, "only texts of ASCII can be forbidden, found '",
                forbidden, "'");
  const std::size_t size = forbidden.size();
  std::vector<std::size_t> state(size);
  for (std::size_t i = 0; i < size; ++i) state[i] = rules.add("text");
  for (std::size_t i = 0; i < size; ++i) {
    std::vector<ExprPtr> ways = {sequence({})};
    CodeRanges others;
    for (char32_t c = 0; c < 128; ++c) {
      const std::string seen = forbidden.substr(0, i) + static_cast<char>(c);
      std::size_t same = std::min(seen.size(), size);
      while (same > 0 && !seen.ends_with(forbidden.substr(0, same))) --same;
      if (same == size) continue;
      if (same == 0)
        others.push_back({c, c});
      else
        ways.push_back(sequence({chars({{c, c}}), rule(state[same])}));
    }
    others.push_back({128, 0x10FFFF});
    ways.push_back(sequence({chars(intersection(united(others), complement({}))), rule(state[0])}));
    rules.bodies[state[i]] = choice(std::move(ways));
  }
  return rule(state[0]);
}

ExprPtr part_of(const GrammarPart& part, Rules& rules) {
  switch (part.kind) {
    case GrammarPart::Kind::literal:
      GRAFT_CHECK(InvalidArgument, is_utf8(part.text), "a literal of the grammar is not UTF-8");
      return text::grammar::bytes(part.text);
    case GrammarPart::Kind::json_schema:
      return text::grammar::parse_json_schema(part.text, rules);
    case GrammarPart::Kind::regex:
      return text::grammar::parse_regex(part.text);
    case GrammarPart::Kind::any_text:
      return text_without(part.text, rules);
  }
  throw InvalidArgument("a part of the grammar has no known kind");
}

}  // namespace

TokenMask::~TokenMask() = default;

GrammarVocabulary::GrammarVocabulary(std::unique_ptr<const text::grammar::Trie> trie) : trie_(std::move(trie)) {}
GrammarVocabulary::~GrammarVocabulary() = default;

std::shared_ptr<const GrammarVocabulary> GrammarVocabulary::of(const Tokenizer& tokenizer,
                                                               std::span<const std::int64_t> eos_token_ids) try {
  std::vector<std::string> tokens(static_cast<std::size_t>(tokenizer.size()));
  for (std::int64_t id = 0; id < tokenizer.size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    try {
      tokens[static_cast<std::size_t>(id)] = tokenizer.token_bytes(id);
    } catch (const InvalidArgument&) {  // a gap in the vocabulary
    }
  }
  return of(tokens, eos_token_ids);
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<const GrammarVocabulary> GrammarVocabulary::of(std::span<const std::string> tokens,
                                                               std::span<const std::int64_t> eos_token_ids) try {
  return std::shared_ptr<const GrammarVocabulary>(
      new GrammarVocabulary(std::make_unique<const text::grammar::Trie>(tokens, eos_token_ids)));
} catch (...) {
  rethrow_typed();
}

Grammar::Grammar(std::shared_ptr<Compiled> with) : compiled_(std::move(with)) {}
Grammar::~Grammar() = default;

std::shared_ptr<Grammar> Grammar::json_schema(std::string_view schema, Vocabulary vocabulary) try {
  Rules rules;
  ExprPtr whole = text::grammar::parse_json_schema(schema, rules);
  return std::shared_ptr<Grammar>(new Grammar(compiled(std::move(rules), std::move(whole), std::move(vocabulary))));
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<Grammar> Grammar::json_object(Vocabulary vocabulary) try {
  Rules rules;
  ExprPtr whole = text::grammar::any_json_object(rules);
  return std::shared_ptr<Grammar>(new Grammar(compiled(std::move(rules), std::move(whole), std::move(vocabulary))));
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<Grammar> Grammar::regex(std::string_view expression, Vocabulary vocabulary) try {
  return std::shared_ptr<Grammar>(
      new Grammar(compiled({}, text::grammar::parse_regex(expression), std::move(vocabulary))));
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<Grammar> Grammar::ebnf(std::string_view text, Vocabulary vocabulary) try {
  Rules rules;
  text::grammar::parse_ebnf(text, rules);
  return std::shared_ptr<Grammar>(new Grammar(compiled(std::move(rules), std::move(vocabulary))));
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<Grammar> Grammar::lark(std::string_view text, Vocabulary vocabulary) try {
  Rules rules;
  text::grammar::parse_lark(text, rules);
  return std::shared_ptr<Grammar>(new Grammar(compiled(std::move(rules), std::move(vocabulary))));
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<Grammar> Grammar::choice(std::span<const std::string> texts, Vocabulary vocabulary) try {
  GRAFT_CHECK(InvalidArgument, !texts.empty(), "there is nothing to choose from");
  for (const std::string& text : texts)
    GRAFT_CHECK(InvalidArgument, is_utf8(text), "a text to choose from is not UTF-8");
  ExprPtr whole = text::grammar::one_of({texts.begin(), texts.end()});
  return std::shared_ptr<Grammar>(new Grammar(compiled({}, std::move(whole), std::move(vocabulary))));
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<Grammar> Grammar::parts(std::span<const std::vector<GrammarPart>> alternatives, std::int64_t least,
                                        std::int64_t most, std::string_view separator, Vocabulary vocabulary) try {
  GRAFT_CHECK(InvalidArgument, least >= 0 && (most < 0 || (most >= least && most > 0)), "a part of a text is there ",
              least, " to ", most, " times");
  Rules rules;
  std::vector<ExprPtr> ways;
  for (const auto& alternative : alternatives) {
    std::vector<ExprPtr> sequence;
    for (const GrammarPart& part : alternative) sequence.push_back(part_of(part, rules));
    ways.push_back(text::grammar::sequence(std::move(sequence)));
  }
  const std::size_t one = rules.add("one", text::grammar::choice(std::move(ways)));
  ExprPtr more =
      text::grammar::repeat(text::grammar::sequence({text::grammar::bytes(separator), text::grammar::rule(one)}),
                            std::max<std::int64_t>(least - 1, 0), most < 0 ? -1 : most - 1);
  ExprPtr whole = text::grammar::sequence({text::grammar::rule(one), std::move(more)});
  if (least == 0) whole = text::grammar::optional(std::move(whole));
  return std::shared_ptr<Grammar>(new Grammar(compiled(std::move(rules), std::move(whole), std::move(vocabulary))));
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<TokenMask> Grammar::mask() const try {
  return std::make_shared<MaskOfGrammar>(compiled_);
} catch (...) {
  rethrow_typed();
}

bool Grammar::matches(std::string_view text) const try {
  return compiled_->may_end(compiled_->after(compiled_->begin(), text));
} catch (...) {
  rethrow_typed();
}

bool Grammar::begins(std::string_view text) const try {
  return compiled_->after(compiled_->begin(), text) != Compiled::kDead;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
