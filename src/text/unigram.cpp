#include <algorithm>
#include <limits>

#include "base/check.h"
#include "text/model.h"
#include "text/sorted_pieces.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

// How much less than the lowest score an unknown character scores.
constexpr double kUnknownPenalty = 10.0;

class Unigram : public Model {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, TokenId unk_id, bool byte_fallback)
      : vocabulary_(std::move(vocabulary)), sorted_(vocabulary_), scores_(std::move(scores)), unk_id_(unk_id) {
    if (byte_fallback) byte_ids_ = vocabulary_.byte_ids();
    double lowest = std::numeric_limits<double>::infinity();
    for (double score : scores_) lowest = std::min(lowest, score);
    unk_score_ = lowest - kUnknownPenalty;
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(const std::string& word, std::vector<TokenId>& ids) const override {
    // The best segmentation up to each position: where its last token begins.
    struct Best {
      double score = 0;
      std::size_t from = kNowhere;
      TokenId id = -1;
    };
    std::vector<Best> best(word.size() + 1);
    const auto offer = [&](std::size_t from, std::size_t to, double score, TokenId id) {
      const double sum = score + best[from].score;
      if (best[to].from == kNowhere || sum > best[to].score) best[to] = {sum, from, id};
    };
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t length = char_length(word[at]);
      bool has_char = false;
      sorted_.for_each_prefix({}, std::string_view(word).substr(at), [&](std::size_t size, TokenId id) {
        offer(at, at + size, scores_[static_cast<std::size_t>(id)], id);
        has_char |= size == length;
      });
      if (!has_char) {
        GRAFT_CHECK(InvalidProgram, unk_id_ >= 0, "the tokenizer's Unigram model has no unk_id, and the text has '",
                    word.substr(at, length), "', which is in none of its tokens");
        offer(at, at + length, unk_score_, unk_id_);
      }
      at += length;
    }
    struct Piece {
      std::size_t begin, end;
    };
    std::vector<Piece> pieces;  // from the end; adjacent unknown characters are one
    bool unknown_before = false;
    for (std::size_t end = word.size(); end > 0;) {
      const Best& node = best[end];
      const bool unknown = node.id == unk_id_;
      if (unknown && unknown_before)
        pieces.back().begin = node.from;
      else
        pieces.push_back({node.from, end});
      unknown_before = unknown;
      end = node.from;
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece)
      add(std::string_view(word).substr(piece->begin, piece->end - piece->begin), ids);
  }

 private:
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  void add(std::string_view piece, std::vector<TokenId>& ids) const {
    if (const auto id = vocabulary_.find(piece)) {
      ids.push_back(*id);
    } else if (!byte_ids_.empty()) {
      for (char byte : piece) ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    } else {
      ids.push_back(unk_id_);
    }
  }

  Vocabulary vocabulary_;
  SortedPieces sorted_;
  std::vector<double> scores_;
  TokenId unk_id_;
  double unk_score_ = 0;
  std::vector<TokenId> byte_ids_;
};

}  // namespace

std::unique_ptr<const Model> make_unigram(Vocabulary vocabulary, std::vector<double> scores, TokenId unk_id,
                                          bool byte_fallback) {
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), unk_id, byte_fallback);
}

}  // namespace graft::text
