#include <algorithm>
#include <limits>

#include "base/check.h"
#include "text/model.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

// How much less than the lowest score an unknown character scores.
constexpr double kUnknownPenalty = 10.0;

class Unigram : public Model {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, TokenId unk_id, bool byte_fallback)
      : vocabulary_(std::move(vocabulary)), scores_(std::move(scores)), unk_id_(unk_id) {
    if (byte_fallback) byte_ids_ = vocabulary_.byte_ids();
    double lowest = std::numeric_limits<double>::infinity();
    for (double score : scores_) lowest = std::min(lowest, score);
    unk_score_ = lowest - kUnknownPenalty;
    for (TokenId id = 0; id < vocabulary_.end_id(); ++id) {
      const std::string* piece = vocabulary_.piece(id);
      if (piece == nullptr || piece->empty() || vocabulary_.find(*piece) != id) continue;  // of equal pieces the last
      sorted_.push_back({*piece, id});
    }
    std::sort(sorted_.begin(), sorted_.end());
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
      for_each_prefix(std::string_view(word).substr(at), [&](std::size_t size, TokenId id) {
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

  // Calls `found(bytes, id)` for every token that the text begins with, the shortest first.
  template <typename Found>
  void for_each_prefix(std::string_view text, Found&& found) const {
    auto begin = sorted_.begin();
    auto end = sorted_.end();
    for (std::size_t depth = 0; depth < text.size(); ++depth) {
      const auto byte = static_cast<unsigned char>(text[depth]);
      const auto byte_of = [depth](const Entry& entry) {
        return static_cast<int>(static_cast<unsigned char>(entry.piece[depth]));
      };
      begin = std::lower_bound(begin, end, static_cast<int>(byte),
                               [&](const Entry& entry, int value) { return byte_of(entry) < value; });
      end = std::upper_bound(begin, end, static_cast<int>(byte),
                             [&](int value, const Entry& entry) { return value < byte_of(entry); });
      if (begin == end) return;
      if (begin->piece.size() == depth + 1) {
        found(depth + 1, begin->id);
        ++begin;  // the remaining entries are longer
      }
    }
  }

  void add(std::string_view piece, std::vector<TokenId>& ids) const {
    if (const auto id = vocabulary_.find(piece)) {
      ids.push_back(*id);
    } else if (!byte_ids_.empty()) {
      for (char byte : piece) ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    } else {
      ids.push_back(unk_id_);
    }
  }

  struct Entry {
    std::string_view piece;  // in the vocabulary
    TokenId id;
    bool operator<(const Entry& other) const { return piece < other.piece; }
  };

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  TokenId unk_id_;
  double unk_score_ = 0;
  std::vector<Entry> sorted_;  // no two pieces are equal
  std::vector<TokenId> byte_ids_;
};

}  // namespace

std::unique_ptr<const Model> make_unigram(Vocabulary vocabulary, std::vector<double> scores, TokenId unk_id,
                                          bool byte_fallback) {
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), unk_id, byte_fallback);
}

}  // namespace graft::text
