#include "base/check.h"
#include "text/model.h"
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
    const std::string& prefix = options_.continuing_subword_prefix;
    std::string piece;
    for (std::size_t begin = 0; begin < word.size();) {
      piece = begin > 0 ? prefix : "";
      const std::size_t prefix_size = piece.size();
      piece += word.substr(begin);
      std::optional<TokenId> id;
      while (piece.size() > prefix_size && !(id = vocabulary_.find(piece))) {
        while ((static_cast<unsigned char>(piece.back()) & 0xC0) == 0x80) piece.pop_back();
        piece.pop_back();
      }
      if (!id) return false;
      ids.push_back(*id);
      begin += piece.size() - prefix_size;
    }
    return true;
  }

  Vocabulary vocabulary_;
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
