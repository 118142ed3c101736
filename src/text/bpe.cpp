#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "base/check.h"
#include "text/model.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

struct MergeTo {
  std::uint32_t rank;
  std::uint32_t id;
};

// Maps pairs of ids to merges. Open addressing, because this table is read several times per character.
class MergeTable {
 public:
  void reserve(std::size_t count) {
    std::size_t slots = 16;
    while (slots < count * 2) slots *= 2;
    shift_ = 64 - std::countr_zero(slots);
    keys_.assign(slots, kNone);
    values_.resize(slots);
  }
  void set(TokenId left, TokenId right, MergeTo to) {
    const std::uint64_t key = key_of(left, right);
    std::size_t at = slot(key);
    while (keys_[at] != kNone && keys_[at] != key) at = next(at);
    keys_[at] = key;
    values_[at] = to;
  }
  const MergeTo* find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t at = slot(key); keys_[at] != kNone; at = next(at))
      if (keys_[at] == key) return &values_[at];
    return nullptr;
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
  }
  // The upper bits of the product: all bits of both ids reach them, however regular the ids are.
  std::size_t slot(std::uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }
  std::size_t next(std::size_t at) const { return (at + 1) & (keys_.size() - 1); }

  int shift_ = 60;
  std::vector<std::uint64_t> keys_;
  std::vector<MergeTo> values_;
};

struct Symbol {
  TokenId id;
  std::int32_t before;
  std::int32_t after;
  bool alive = true;
};

struct Candidate {
  std::uint32_t rank;
  std::uint32_t position;
  std::uint32_t id;
  // The lowest rank first, then the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

class Bpe : public Model {
 public:
  Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
      : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {
    if (options_.byte_fallback) byte_ids_ = vocabulary_.byte_ids();
    if (!options_.unk_token.empty()) unk_id_ = vocabulary_.find(options_.unk_token);
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(const std::string& word, std::vector<TokenId>& ids) const override {
    if (options_.ignore_merges)
      if (const auto id = vocabulary_.find(word)) {
        ids.push_back(*id);
        return;
      }
    std::vector<TokenId> symbols;
    symbols.reserve(word.size());
    add_chars(word, symbols);
    GRAFT_CHECK(InvalidArgument, symbols.size() < std::size_t{1} << 31, "a word of ", word.size(),
                " bytes is too long for a tokenizer");
    merge_all(symbols, ids);
  }

 private:
  void add_chars(std::string_view word, std::vector<TokenId>& symbols) const {
    const bool plain = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
    bool unknown_waits = false;  // an unknown character is added when the next known one comes, or at the end
    std::string decorated;
    for (std::size_t at = 0; at < word.size();) {
      std::string_view c = word.substr(at, char_length(word[at]));
      const bool first = at == 0;
      at += c.size();
      if (!plain) {
        decorated.clear();
        if (!first) decorated += options_.continuing_subword_prefix;
        decorated += c;
        if (at == word.size()) decorated += options_.end_of_word_suffix;
        c = decorated;
      }
      if (const auto id = vocabulary_.find(c)) {
        if (unknown_waits) symbols.push_back(*unk_id_);
        unknown_waits = false;
        symbols.push_back(*id);
      } else if (!byte_ids_.empty()) {
        for (char byte : c) symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      } else if (!options_.unk_token.empty()) {
        GRAFT_CHECK(InvalidProgram, unk_id_, "the tokenizer's unk_token '", options_.unk_token,
                    "' is not in its vocabulary");
        if (unknown_waits && !options_.fuse_unk) symbols.push_back(*unk_id_);
        unknown_waits = true;
      }
    }
    if (unknown_waits) symbols.push_back(*unk_id_);
  }

  void merge_all(const std::vector<TokenId>& chars, std::vector<TokenId>& ids) const {
    if (chars.size() < 2) {
      ids.insert(ids.end(), chars.begin(), chars.end());
      return;
    }
    std::vector<Symbol> symbols(chars.size());
    std::vector<Candidate> start;
    const auto count = static_cast<std::int32_t>(chars.size());
    for (std::int32_t i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(i);
      symbols[index] = {chars[index], i - 1, i + 1 < count ? i + 1 : -1};
      if (i + 1 == count) continue;
      if (const MergeTo* to = merges_.find(chars[index], chars[index + 1]))
        start.push_back({to->rank, static_cast<std::uint32_t>(i), to->id});
    }
    std::priority_queue<Candidate> queue({}, std::move(start));
    const auto offer = [&](std::int32_t position) {
      const Symbol& left = symbols[static_cast<std::size_t>(position)];
      const Symbol& right = symbols[static_cast<std::size_t>(left.after)];
      if (const MergeTo* to = merges_.find(left.id, right.id))
        queue.push({to->rank, static_cast<std::uint32_t>(position), to->id});
    };
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      Symbol& left = symbols[top.position];
      if (!left.alive || left.after < 0) continue;
      Symbol& right = symbols[static_cast<std::size_t>(left.after)];
      // The neighbours may have merged since.
      const MergeTo* to = merges_.find(left.id, right.id);
      if (to == nullptr || to->id != top.id) continue;
      left.id = top.id;
      left.after = right.after;
      right.alive = false;
      if (left.after >= 0)
        symbols[static_cast<std::size_t>(left.after)].before = static_cast<std::int32_t>(top.position);
      if (left.before >= 0) offer(left.before);
      if (left.after >= 0) offer(static_cast<std::int32_t>(top.position));
    }
    for (const Symbol& symbol : symbols)
      if (symbol.alive) ids.push_back(symbol.id);
  }

  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::vector<TokenId> byte_ids_;  // empty: no fallback
  std::optional<TokenId> unk_id_;
};

}  // namespace

std::unique_ptr<const Model> make_bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options) {
  MergeTable table;
  table.reserve(merges.size());
  std::string merged;
  const auto id_of = [&](std::string_view piece, std::size_t rank) {
    const auto id = vocabulary.find(piece);
    GRAFT_CHECK(InvalidProgram, id, "merge ", rank, " of the tokenizer needs the token '", to_utf8(piece),
                "', which is not in the vocabulary");
    return *id;
  };
  const std::string& prefix = options.continuing_subword_prefix;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    GRAFT_CHECK(InvalidProgram, merge.right.size() >= prefix.size(), "merge ", rank, " of the tokenizer has '",
                merge.right, "' on the right, which is shorter than the prefix '", prefix, "'");
    merged = merge.left;
    merged += std::string_view(merge.right).substr(prefix.size());
    table.set(id_of(merge.left, rank), id_of(merge.right, rank),
              {static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(id_of(merged, rank))});
  }
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(table), std::move(options));
}

std::unique_ptr<const Model> make_scored_bpe(Vocabulary vocabulary, const std::vector<float>& scores,
                                             BpeOptions options) {
  // Equal scores have equal ranks: the leftmost pair is next.
  std::vector<float> order(scores);
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  struct Found {
    TokenId left, right;
    MergeTo to;
  };
  std::vector<Found> found;
  for (TokenId id = 0; id < vocabulary.end_id(); ++id) {
    const std::string* piece = vocabulary.piece(id);
    if (piece == nullptr) continue;
    const auto rank =
        std::lower_bound(order.begin(), order.end(), scores[static_cast<std::size_t>(id)], std::greater<>());
    const MergeTo to{static_cast<std::uint32_t>(rank - order.begin()), static_cast<std::uint32_t>(id)};
    for (std::size_t cut = 0; cut < piece->size();) {
      cut += char_length((*piece)[cut]);
      if (cut >= piece->size()) break;
      const auto left = vocabulary.find(std::string_view(*piece).substr(0, cut));
      const auto right = vocabulary.find(std::string_view(*piece).substr(cut));
      if (left && right) found.push_back({*left, *right, to});
    }
  }
  MergeTable table;
  table.reserve(found.size());
  for (const Found& merge : found) table.set(merge.left, merge.right, merge.to);
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(table), std::move(options));
}

}  // namespace graft::text
