#include "text/pipeline.h"

#include <algorithm>

#include "base/check.h"
#include "base/rethrow.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

class Pipeline : public Tokenizer {
 public:
  Pipeline(Parts parts, Surroundings surroundings) : parts_(std::move(parts)), surroundings_(std::move(surroundings)) {
    give_ids();
    for (const AddedToken& token : parts_.added_tokens) {
      Normalized key{token.content, false};
      if (token.normalized && parts_.normalizer && is_utf8(key.text)) parts_.normalizer->apply(key);
      by_id_[token.id] = {&token, key.text};
      // In well-formed text a key that is not UTF-8 could match only in the middle of a character.
      if (!key.text.empty() && is_utf8(key.text)) (token.normalized ? in_normalized_ : in_text_).add(key.text, &token);
      end_id_ = std::max(end_id_, token.id + 1);
    }
    end_id_ = std::max(end_id_, parts_.model->vocabulary().end_id());
    const auto id_of = [&](const std::string& piece) { return piece.empty() ? std::nullopt : find(piece); };
    special_ids_ = {id_of(surroundings_.bos), id_of(surroundings_.eos), id_of(surroundings_.unk),
                    id_of(surroundings_.pad)};
    for (TokenId id : parts_.prefix) check_id(id);
    for (TokenId id : parts_.suffix) check_id(id);
  }

  std::vector<std::int64_t> encode(std::string_view bytes, const EncodeOptions& options) const override try {
    std::vector<TokenId> ids;
    if (options.add_special) ids = parts_.prefix;
    encode_text(to_utf8(bytes), ids);
    const std::size_t suffix = options.add_special ? parts_.suffix.size() : 0;
    if (options.max_length > 0 && ids.size() + suffix > options.max_length) {
      const std::size_t around = suffix + (options.add_special ? parts_.prefix.size() : 0);
      GRAFT_CHECK(InvalidArgument, options.max_length >= around, "max_length is ", options.max_length,
                  ", but the tokenizer adds ", around, " special tokens to every text");
      ids.resize(options.max_length - suffix);
    }
    if (options.add_special) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
    return ids;
  } catch (...) {
    rethrow_typed();
  }

  std::string decode(std::span<const std::int64_t> ids, bool skip_special) const override try {
    std::vector<std::string> pieces;
    pieces.reserve(ids.size());
    for (std::int64_t id : ids) {
      const auto added = by_id_.find(id);
      if (added == by_id_.end())
        pieces.push_back(piece(id));
      else if (!skip_special || !added->second.token->special)
        pieces.push_back(added->second.key);
    }
    std::string out;
    if (parts_.decoder) {
      parts_.decoder->apply(pieces);
      for (const std::string& text : pieces) out += text;
    } else {
      for (std::size_t i = 0; i < pieces.size(); ++i) out += (i > 0 ? " " : "") + pieces[i];
    }
    return is_utf8(out) ? out : to_utf8(out);  // GGUF files hold tokens that are bytes
  } catch (...) {
    rethrow_typed();
  }

  std::int64_t size() const override { return end_id_; }

  const std::string& piece(std::int64_t id) const override try {
    const auto added = by_id_.find(id);
    if (added != by_id_.end()) return added->second.token->content;
    const std::string* known = parts_.model->vocabulary().piece(id);
    GRAFT_CHECK(InvalidArgument, known != nullptr, "the tokenizer has no token ", id, "; its ids are below ", end_id_);
    return *known;
  } catch (...) {
    rethrow_typed();
  }

  std::optional<std::int64_t> find(std::string_view piece) const override try {
    const auto added = ids_of_added_.find(std::string(piece));
    return added != ids_of_added_.end() ? added->second : parts_.model->vocabulary().find(piece);
  } catch (...) {
    rethrow_typed();
  }

  bool is_special(std::int64_t id) const override {
    const auto added = by_id_.find(id);
    return added != by_id_.end() && added->second.token->special;
  }

  const SpecialIds& special_ids() const override { return special_ids_; }
  std::optional<std::size_t> truncation() const override { return parts_.truncation; }
  const std::string& chat_template() const override { return surroundings_.chat_template; }
  const std::string& template_variables() const override { return surroundings_.template_variables; }
  TextLimits limits() const override { return parts_.limits; }

  std::string identity() const override try {
    std::string all;
    for (TokenId id = 0; id < end_id_; ++id) {
      const auto added = by_id_.find(id);
      const std::string* known = parts_.model->vocabulary().piece(id);
      if (added == by_id_.end() && known == nullptr) continue;
      const std::string& text = added != by_id_.end() ? added->second.token->content : *known;
      all += str(id, ' ', text.size(), ' ') + text;
    }
    std::string out;
    for (std::uint8_t byte : sha256(std::as_bytes(std::span(all)))) {
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    }
    return out;
  } catch (...) {
    rethrow_typed();
  }

 private:
  struct Added {
    const AddedToken* token = nullptr;
    std::string key;  // the string to match: normalized where the token says so
  };

  // A token of the model keeps its id; the others get the ids after the model's, in order.
  void give_ids() {
    const Vocabulary& vocabulary = parts_.model->vocabulary();
    const auto model_size = static_cast<TokenId>(vocabulary.size());
    TokenId next = model_size;
    std::vector<AddedToken> kept;
    std::unordered_map<std::string, std::size_t> seen;
    for (AddedToken& token : parts_.added_tokens) {
      if (token.content.empty()) continue;
      const auto again = seen.find(token.content);
      if (again != seen.end()) {
        token.id = kept[again->second].id;
        kept[again->second] = std::move(token);
        continue;
      }
      const auto known = vocabulary.find(token.content);
      token.id = known ? *known : next++;
      seen.emplace(token.content, kept.size());
      ids_of_added_.emplace(token.content, token.id);
      kept.push_back(std::move(token));
    }
    parts_.added_tokens = std::move(kept);
  }

  void check_id(TokenId id) const {
    GRAFT_CHECK(InvalidProgram, by_id_.contains(id) || parts_.model->vocabulary().piece(id) != nullptr,
                "the tokenizer's post-processor adds the token ", id, ", which does not exist");
  }

  void encode_text(const std::string& text, std::vector<TokenId>& ids) const {
    for (const auto& part : in_text_.find(text)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continue;
      }
      Normalized normalized{text.substr(part.begin, part.end - part.begin), part.begin == 0};
      if (parts_.normalizer) parts_.normalizer->apply(normalized);
      for (const auto& inner : in_normalized_.find(normalized.text)) {
        if (inner.token != nullptr)
          ids.push_back(inner.token->id);
        else
          encode_words(
              {normalized.text.substr(inner.begin, inner.end - inner.begin), normalized.at_start && inner.begin == 0},
              ids);
      }
    }
  }

  void encode_words(Normalized text, std::vector<TokenId>& ids) const {
    Words words;
    words.push_back(std::move(text));
    if (parts_.pre_tokenizer) parts_.pre_tokenizer->apply(words);
    for (const Normalized& word : words)
      if (!word.text.empty()) parts_.model->tokenize(word.text, ids);
  }

  Parts parts_;
  Surroundings surroundings_;
  AddedTokenFinder in_text_;
  AddedTokenFinder in_normalized_;
  std::unordered_map<TokenId, Added> by_id_;
  std::unordered_map<std::string, TokenId> ids_of_added_;
  TokenId end_id_ = 0;
  SpecialIds special_ids_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer(Parts parts, Surroundings surroundings) {
  return std::make_shared<const Pipeline>(std::move(parts), std::move(surroundings));
}

}  // namespace graft::text
