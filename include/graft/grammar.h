#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/error.h"
#include "graft/export.h"
#include "graft/tokenizer.h"

// Text that must have a form: a JSON schema, a regular expression, a grammar. A mask says, token by token, which tokens
// may come next.
//
//   auto vocabulary = graft::GrammarVocabulary::of(*model->tokenizer(), model->info().eos_token_ids);
//   auto grammar = graft::Grammar::json_schema(schema, vocabulary);
//   generator.submit(prompt, {}, {.mask = grammar->mask()});
namespace graft {

// Which tokens may come next in one sequence. Engines of others plug in here: a bit per token is what xgrammar and
// llguidance fill in. For one thread at a time.
class GRAFT_API TokenMask {
 public:
  virtual ~TokenMask();
  // Writes a bit for each token of the vocabulary, whose size is at most 32 * words.size(): bit i % 32 of word i / 32
  // is 1 where token i may come next. Bits above the vocabulary are 0.
  virtual void allowed(std::span<std::uint32_t> words) = 0;
  // The next token of the sequence. Throws InvalidArgument for one that may not come.
  virtual void accept(std::int64_t id) = 0;
  // Whether the text is complete and nothing may follow: the sequence ends here, without an EOS token.
  virtual bool done() const = 0;
};

namespace text::grammar {
class Compiled;
class Trie;
}  // namespace text::grammar

// The tokens of a vocabulary as bytes, in a trie. Special tokens are no part of any text. Immutable.
class GRAFT_API GrammarVocabulary {
 public:
  // `eos_token_ids` may come where a text may end.
  static std::shared_ptr<const GrammarVocabulary> of(const Tokenizer& tokenizer,
                                                     std::span<const std::int64_t> eos_token_ids);
  // From the bytes of each token; those of no bytes never come.
  static std::shared_ptr<const GrammarVocabulary> of(std::span<const std::string> tokens,
                                                     std::span<const std::int64_t> eos_token_ids);
  ~GrammarVocabulary();
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  const text::grammar::Trie& trie() const { return *trie_; }

 private:
  explicit GrammarVocabulary(std::unique_ptr<const text::grammar::Trie> trie);
  std::unique_ptr<const text::grammar::Trie> trie_;
};

// A part of a text's form.
struct GrammarPart {
  enum class Kind : std::uint8_t {
    literal,      // `text` as it is
    json_schema,  // a JSON value for the schema `text`
    regex,        // a text that the expression `text` matches as a whole
    any_text,     // any text, of no characters too, without `text` in it; all of it where `text` is empty
  };
  Kind kind = Kind::literal;
  std::string text;
};

// What all functions that make one throw: InvalidArgument for a source that is wrong; Unsupported naming the keyword,
// construct or limit that is not served. A grammar never allows a text that its source does not: where it cannot tell,
// it is refused. Masks of one grammar share what they have learnt; from any thread.
class GRAFT_API Grammar {
 public:
  using Vocabulary = std::shared_ptr<const GrammarVocabulary>;
  // A JSON value for a schema (draft 2020-12). Keywords: type, enum, const, anyOf, $ref within the document,
  // properties, required, additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern,
  // format, minimum, maximum, exclusiveMinimum and exclusiveMaximum (of integers), multipleOf, and annotations.
  // Properties come in the schema's order, and no others beside them. Between the parts of a value there is at most a
  // space, or a line end and up to 20 spaces.
  static std::shared_ptr<Grammar> json_schema(std::string_view schema, Vocabulary vocabulary);
  static std::shared_ptr<Grammar> json_object(Vocabulary vocabulary);  // any
  // The whole text matches. Python's syntax without look-around, back references and word boundaries.
  static std::shared_ptr<Grammar> regex(std::string_view expression, Vocabulary vocabulary);
  // Rules `name ::= ...` of "literals", [classes], names, groups, |, ?, *, +, {m,n}, and # comments, beginning with
  // `root`: llama.cpp's GBNF. Left recursion is Unsupported.
  static std::shared_ptr<Grammar> ebnf(std::string_view rules, Vocabulary vocabulary);
  // A grammar of Lark that begins with `start`, read as Lark's Earley parser with the lexer "dynamic_complete" reads
  // it: rules, terminals, "strings", "strings"i, /expressions/ as of `regex`, "a".."z", (), [], |, ?, *, +, ~ n..m,
  // %ignore, and %import of numbers, words, names, quoted strings, blanks and comments from `common`. Priorities,
  // aliases and what shapes trees change no text. Rules with parameters, flags and anchors of expressions are
  // Unsupported, and left recursion through another rule.
  static std::shared_ptr<Grammar> lark(std::string_view rules, Vocabulary vocabulary);
  static std::shared_ptr<Grammar> choice(std::span<const std::string> texts, Vocabulary vocabulary);
  // One of the alternatives, each the sequence of its parts; again `least` to `most` times (-1: any number), with
  // `separator` between two.
  static std::shared_ptr<Grammar> parts(std::span<const std::vector<GrammarPart>> alternatives, std::int64_t least,
                                        std::int64_t most, std::string_view separator, Vocabulary vocabulary);
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  // At the beginning of a text. The mask keeps what it needs of the grammar.
  std::shared_ptr<TokenMask> mask() const;
  // Whether the whole text has the form.
  bool matches(std::string_view text) const;
  // Whether it is the beginning of one that has.
  bool begins(std::string_view text) const;

 private:
  explicit Grammar(std::shared_ptr<text::grammar::Compiled> compiled);
  std::shared_ptr<text::grammar::Compiled> compiled_;
};

}  // namespace graft
