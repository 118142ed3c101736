#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "text/vocabulary.h"

namespace graft::text {

// Splits one word into tokens of a vocabulary. Immutable.
class Model {
 public:
  virtual ~Model() = default;
  // `word` is well-formed UTF-8 and not empty.
  virtual void tokenize(const std::string& word, std::vector<TokenId>& ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

// Byte-pair encoding: pairs of neighbours become one token, in the order of the merges.
struct BpeOptions {
  std::string unk_token;  // empty: unknown characters are dropped
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word that is a token is not split
};
struct Merge {
  std::string left;
  std::string right;
};
std::unique_ptr<const Model> make_bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options);
// SentencePiece's BPE: any two adjacent tokens whose concatenation is a token may merge, the highest score first.
// `scores`: by id.
std::unique_ptr<const Model> make_scored_bpe(Vocabulary vocabulary, const std::vector<float>& scores,
                                             BpeOptions options);

// Greedy: the longest token that matches, then the longest after it.
struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string continuing_subword_prefix = "##";
  std::size_t max_input_chars_per_word = 100;
};
std::unique_ptr<const Model> make_word_piece(Vocabulary vocabulary, WordPieceOptions options);

// A word is a token or is unknown.
std::unique_ptr<const Model> make_word_level(Vocabulary vocabulary, const std::string& unk_token);

// The segmentation with the highest sum of scores. `scores`: by id, as many as the vocabulary has; `unk_id` below 0:
// none.
std::unique_ptr<const Model> make_unigram(Vocabulary vocabulary, std::vector<double> scores, TokenId unk_id,
                                          bool byte_fallback);

// Makes tokenizer.json's "model". Its large parts are passed separately, since the reader does not keep them in the
// document. Throws InvalidProgram, or Unsupported naming a type that is not known.
struct LargeParts {
  std::vector<std::pair<std::string, TokenId>> vocab;
  std::vector<Merge> merges;
};
std::unique_ptr<const Model> make_model(const Json& description, LargeParts large);

}  // namespace graft::text
