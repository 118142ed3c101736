#include "base/check.h"
#include "text/json.h"
#include "text/model.h"

namespace graft::text {
namespace {

// The member as a string; empty where it is missing or null.
std::string optional_string(const Json& description, const std::string& name, const std::string& where) {
  return member(description, name).is_null() ? "" : string_at(description, name, where);
}

std::unique_ptr<const Model> make_bpe_from(const Json& description, LargeParts large) {
  const Json& dropout = member(description, "dropout");
  GRAFT_CHECK(Unsupported, dropout.is_null() || dropout == 0.0, "the tokenizer's BPE has a dropout of ", dropout.dump(),
              ": its tokens would be chance");
  BpeOptions options;
  options.unk_token = optional_string(description, "unk_token", "BPE");
  options.continuing_subword_prefix = optional_string(description, "continuing_subword_prefix", "BPE");
  options.end_of_word_suffix = optional_string(description, "end_of_word_suffix", "BPE");
  options.fuse_unk = bool_at(description, "fuse_unk", false, "BPE");
  options.byte_fallback = bool_at(description, "byte_fallback", false, "BPE");
  options.ignore_merges = bool_at(description, "ignore_merges", false, "BPE");
  return make_bpe(Vocabulary(std::move(large.vocab)), large.merges, std::move(options));
}

std::unique_ptr<const Model> make_unigram_from(const Json& description) {
  std::vector<std::pair<std::string, TokenId>> entries;
  std::vector<double> scores;
  for (const Json& entry : array_at(description, "vocab", "Unigram")) {
    GRAFT_CHECK(InvalidProgram, entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number(),
                "Unigram.vocab should have pairs of token and score, found ", entry.dump().substr(0, 80));
    entries.emplace_back(entry[0].get<std::string>(), static_cast<TokenId>(entries.size()));
    scores.push_back(entry[1].get<double>());
  }
  const TokenId unk_id = member(description, "unk_id").is_null() ? -1 : integer_at(description, "unk_id", "Unigram");
  GRAFT_CHECK(InvalidProgram, unk_id < static_cast<TokenId>(entries.size()), "Unigram.unk_id is ", unk_id, ", of ",
              entries.size(), " tokens");
  return make_unigram(Vocabulary(std::move(entries)), std::move(scores), unk_id,
                      bool_at(description, "byte_fallback", false, "Unigram"));
}

// Files of old versions do not name the type.
std::string type_of(const Json& description, const LargeParts& large) {
  if (!member(description, "type").is_null()) return string_at(description, "type", "model");
  if (member(description, "vocab").is_array()) return "Unigram";
  if (!large.merges.empty()) return "BPE";
  return member(description, "max_input_chars_per_word").is_null() ? "WordLevel" : "WordPiece";
}

}  // namespace

std::unique_ptr<const Model> make_model(const Json& description, LargeParts large) {
  GRAFT_CHECK(InvalidProgram, description.is_object(), "the tokenizer has no model");
  const std::string type = type_of(description, large);
  if (type == "Unigram") return make_unigram_from(description);
  const bool known = type == "BPE" || type == "WordPiece" || type == "WordLevel";
  GRAFT_CHECK(Unsupported, known, "the tokenizer has a model of the unknown type '", type, "'");
  GRAFT_CHECK(InvalidProgram, !large.vocab.empty(), "the tokenizer's model has no vocabulary");
  if (type == "BPE") return make_bpe_from(description, std::move(large));
  if (type == "WordLevel")
    return make_word_level(Vocabulary(std::move(large.vocab)), string_at(description, "unk_token", type));
  WordPieceOptions options;
  options.unk_token = string_at(description, "unk_token", type);
  options.continuing_subword_prefix = string_at(description, "continuing_subword_prefix", type);
  if (!member(description, "max_input_chars_per_word").is_null()) {
    const std::int64_t most = integer_at(description, "max_input_chars_per_word", type);
    GRAFT_CHECK(InvalidProgram, most >= 0, "WordPiece.max_input_chars_per_word is ", most);
    options.max_input_chars_per_word = static_cast<std::size_t>(most);
  }
  return make_word_piece(Vocabulary(std::move(large.vocab)), std::move(options));
}

}  // namespace graft::text
