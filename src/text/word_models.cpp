#include "base/check.h"
#include "text/model.h"
#include "text/sorted_pieces.h"
#include "text/unicode.h"

// Models without merges or scores: WordPiece and WordLevel.
namespace graft::text {
namespace {

TokenId unk_of(const Vocabulary& vocabulary, const std::string& unk_token) {
  const auto id = vocabulary.find(unk_token);
  GRAFT_CHECK(InvalidProgram, id, "the tokenizer's unk_token '", unk_token, "' is not in its vocabulary");
  return *id;
}

class WordPiece : public Model {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options)
      : vocabulary_(std::move(vocabulary)),
        sorted_(vocabulary_),
        options_(std::move(options)),
        unk_(unk_of(vocabulary_, options_.unk_token)) {}

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(const std::string& word, std::vector<TokenId>& ids) const override {
    const std::size_t size_before = ids.size();
    const bool known = count_chars(word) <= options_.max_input_chars_per_word && tokenize_known(word, ids);
    if (known) return;
    ids.resize(size_before);
    ids.push_back(unk_);
  }

 private:
  bool tokenize_known(std::string_view word, std::vector<TokenId>& ids) const {
    // Most words are tokens.
    if (const auto id = vocabulary_.find(word); id && !word.empty()) {
      ids.push_back(*id);
      return true;
    }
    for (std::size_t begin = 0; begin < word.size();) {
      const std::string_view rest = word.substr(begin);
      std::size_t longest = 0;
      TokenId token = -1;
      sorted_.for_each_prefix(begin > 0 ? options_.continuing_subword_prefix : "", rest,
                              [&](std::size_t bytes, TokenId id) {
                                if (bytes < rest.size() && continues_char(rest[bytes])) return;
                                longest = bytes;
                                token = id;
                              });
      if (longest == 0) return false;
      ids.push_back(token);
      begin += longest;
    }
    return true;
  }

  Vocabulary vocabulary_;
  SortedPieces sorted_;
  WordPieceOptions options_;
  TokenId unk_;
};

class WordLevel : public Model {
 public:
  WordLevel(Vocabulary vocabulary, const std::string& unk_token)
      : vocabulary_(std::move(vocabulary)), unk_(unk_of(vocabulary_, unk_token)) {}

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(const std::string& word, std::vector<TokenId>& ids) const override {
    ids.push_back(vocabulary_.find(word).value_or(unk_));
  }

 private:
  Vocabulary vocabulary_;
  TokenId unk_;
};

}  // namespace

std::unique_ptr<const Model> make_word_piece(Vocabulary vocabulary, WordPieceOptions options) {
  return std::make_unique<WordPiece>(std::move(vocabulary), std::move(options));
}

std::unique_ptr<const Model> make_word_level(Vocabulary vocabulary, const std::string& unk_token) {
  return std::make_unique<WordLevel>(std::move(vocabulary), unk_token);
}

}  // namespace graft::text
