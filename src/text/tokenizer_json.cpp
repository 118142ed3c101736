#include <algorithm>
#include <unordered_set>

#include "base/check.h"
#include "base/rethrow.h"
#include "base/utf8.h"
#include "text/json.h"
#include "text/pipeline.h"

// tokenizer.json and tokenizer_config.json of Hugging Face.
namespace graft {
namespace text {
namespace {

// Reads the document into a value, except a model's vocabulary and merges: those have hundreds of thousands of entries
// and are read directly into their final form. Anything unexpected goes into the value, whose reader reports it.
class DocumentReader : public nlohmann::json_sax<Json> {
 public:
  explicit DocumentReader(const TextLimits& limits) : limits_(limits) {}

  Json document;
  LargeParts large;
  std::string error;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put_number(value); }
  bool number_unsigned(std::uint64_t value) override {
    return value <= INT64_MAX ? put_number(static_cast<std::int64_t>(value)) : put(value);
  }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool binary(Json::binary_t&) override { return false; }
  bool string(std::string& value) override {
    if (inside_ == Part::merges) {
      if (stack_.size() == kPartDepth) return add_merge(value);
      pair_.push_back(std::move(value));
      return true;
    }
    return put(std::move(value));
  }
  bool key(std::string& name) override {
    key_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t) override {
    const Part part = part_here(Part::vocab);
    return open(part, Json::object());
  }
  bool start_array(std::size_t) override {
    if (inside_ == Part::merges) {
      pair_.clear();
      stack_.push_back(nullptr);
      return true;
    }
    return open(part_here(Part::merges), Json::array());
  }
  bool end_object() override { return close(); }
  bool end_array() override {
    if (inside_ == Part::merges && stack_.size() > kPartDepth) {
      GRAFT_CHECK(InvalidProgram, pair_.size() == 2 && stack_.size() == kPartDepth + 1, "tokenizer.json: merge ",
                  large.merges.size(), " should be two tokens");
      large.merges.push_back({std::move(pair_[0]), std::move(pair_[1])});
    }
    return close();
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error = e.what();
    return false;
  }

 private:
  enum class Part { none, vocab, merges };
  // Nesting of a large part: document, model, part.
  static constexpr std::size_t kPartDepth = 3;

  // The large part that begins here, if it is `begun`.
  Part part_here(Part begun) const {
    if (inside_ != Part::none || stack_.size() + 1 != kPartDepth || !stack_.back()->is_object() || !in_model_)
      return Part::none;
    return key_ == (begun == Part::vocab ? "vocab" : "merges") ? begun : Part::none;
  }
  bool open(Part part, Json value) {
    GRAFT_CHECK(InvalidProgram, inside_ == Part::none && stack_.size() < kMaxJsonDepth, "tokenizer.json: ",
                inside_ == Part::none ? "it is nested too deeply" : "the vocabulary or the merges have lists in lists");
    if (stack_.size() == 1) in_model_ = key_ == "model";
    Json* at = place(std::move(value));
    stack_.push_back(at);
    inside_ = part;
    return true;
  }
  bool close() {
    stack_.pop_back();
    if (stack_.size() < kPartDepth) inside_ = Part::none;
    return true;
  }
  Json* place(Json value) {
    if (stack_.empty()) return &(document = std::move(value));
    Json& parent = *stack_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool put(Json value) {
    GRAFT_CHECK(InvalidProgram, inside_ == Part::none, "tokenizer.json: the model's ",
                inside_ == Part::vocab ? "vocabulary has '" + key_ + "' with " : "merges have ",
                value.dump().substr(0, 80), inside_ == Part::vocab ? " for an id" : "");
    place(std::move(value));
    return true;
  }
  bool put_number(std::int64_t value) {
    if (inside_ != Part::vocab) return put(value);
    large.vocab.emplace_back(std::move(key_), value);
    check_vocabulary(large.vocab.size(), limits_);
    // Memory is for all ids up to the largest.
    GRAFT_CHECK(Unsupported, value < limits_.max_vocabulary, "the token '", large.vocab.back().first, "' has the id ",
                value, ", at most ", limits_.max_vocabulary, " ids are allowed (max_vocabulary)");
    return true;
  }
  bool add_merge(const std::string& line) {
    if (line.starts_with("#version")) return true;
    const std::size_t space = line.find(' ');
    GRAFT_CHECK(InvalidProgram, space != std::string::npos && line.find(' ', space + 1) == std::string::npos,
                "tokenizer.json: merge ", large.merges.size(), " is '", line,
                "', expected two tokens and a space between");
    large.merges.push_back({line.substr(0, space), line.substr(space + 1)});
    return true;
  }

  const TextLimits& limits_;
  std::vector<Json*> stack_;  // the open values; null: a pair of merges
  Part inside_ = Part::none;
  bool in_model_ = false;
  std::string key_;
  std::vector<std::string> pair_;
};

AddedToken added_token(const Json& entry, const std::string& where) {
  AddedToken out;
  out.content = string_at(entry, "content", where);
  out.single_word = bool_at(entry, "single_word", false, where);
  out.lstrip = bool_at(entry, "lstrip", false, where);
  out.rstrip = bool_at(entry, "rstrip", false, where);
  out.special = bool_at(entry, "special", false, where);
  out.normalized = bool_at(entry, "normalized", !out.special, where);
  return out;
}

// A post-processor's template: the tokens before and after the text.
void read_template(const Json& description, Parts& parts) {
  const Json& special = member(description, "special_tokens");
  std::vector<TokenId> before;
  std::vector<TokenId> after;
  bool seen = false;
  for (const Json& piece : array_at(description, "single", "TemplateProcessing")) {
    const Json& sequence = member(piece, "Sequence");
    if (!sequence.is_null()) {
      GRAFT_CHECK(Unsupported, !seen && is_text(member(sequence, "id"), "A"),
                  "the tokenizer's TemplateProcessing does not have the text exactly once");
      seen = true;
      continue;
    }
    const std::string name = string_at(member(piece, "SpecialToken"), "id", "TemplateProcessing.single.SpecialToken");
    for (const Json& id : array_at(member(special, name), "ids", "TemplateProcessing.special_tokens." + name)) {
      GRAFT_CHECK(InvalidProgram, id.is_number_integer(), "TemplateProcessing has the id ", id.dump(),
                  ", expected an integer");
      (seen ? after : before).push_back(id.get<TokenId>());
    }
  }
  GRAFT_CHECK(Unsupported, seen, "the tokenizer's TemplateProcessing leaves the text out");
  parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
  parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
}

TokenId id_of_pair(const Json& description, const std::string& name, const std::string& where) {
  const Json& pair = array_at(description, name, where);
  GRAFT_CHECK(InvalidProgram, pair.size() == 2 && pair[1].is_number_integer(), where, ".", name,
              " should be a pair of token and id, found ", pair.dump().substr(0, 80));
  return pair[1].get<TokenId>();
}

void read_post_processor(const Json& description, Parts& parts) {
  if (description.is_null()) return;
  const std::string type = string_at(description, "type", "post_processor");
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "Sequence") {
    for (const Json& part : array_at(description, "processors", "post_processor")) read_post_processor(part, parts);
  } else if (type == "TemplateProcessing") {
    read_template(description, parts);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    parts.prefix.insert(parts.prefix.begin(), id_of_pair(description, "cls", type));
    parts.suffix.push_back(id_of_pair(description, "sep", type));
  } else {
    throw Unsupported(str("the tokenizer has a post-processor of the unknown type '", type, "'"));
  }
}

// A special token of tokenizer_config.json: a string, an object with "content", or null.
std::string token_named(const Json& config, const std::string& name) {
  const Json& value = member(config, name);
  if (value.is_null()) return "";
  if (value.is_object()) return string_at(value, "content", "tokenizer_config.json: " + name);
  return text_of(value, "tokenizer_config.json: " + name);
}

// One template, or several with names.
std::string template_of(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  GRAFT_CHECK(InvalidProgram, value.is_array(), "tokenizer_config.json: chat_template should be a string or an array");
  for (const Json& entry : value)
    if (is_text(member(entry, "name"), "default"))
      return string_at(entry, "template", "tokenizer_config.json: chat_template");
  throw InvalidProgram("tokenizer_config.json: none of the chat_templates is named 'default'");
}

// Tokens that only the configuration adds, in the order of their ids.
void add_tokens_of(const Json& config, Parts& parts) {
  const Json& more = member(config, "added_tokens_decoder");
  if (!more.is_object()) return;
  std::unordered_set<std::string> known;
  for (const AddedToken& token : parts.added_tokens) known.insert(token.content);
  std::vector<std::pair<TokenId, AddedToken>> tokens;
  for (const auto& [id, entry] : more.items()) {
    AddedToken token = added_token(entry, "tokenizer_config.json: added_tokens_decoder." + id);
    if (known.contains(token.content)) continue;
    GRAFT_CHECK(InvalidProgram,
                !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos,
                "tokenizer_config.json: added_tokens_decoder has the key '", id, "', expected an id");
    tokens.emplace_back(std::stoll(id), std::move(token));
  }
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [id, token] : tokens) parts.added_tokens.push_back(std::move(token));
}

}  // namespace

Surroundings read_config(std::string_view config_json) {
  Surroundings out;
  if (config_json.empty()) return out;
  const Json config = parse_json(config_json, "tokenizer_config.json");
  out.bos = token_named(config, "bos_token");
  out.eos = token_named(config, "eos_token");
  out.unk = token_named(config, "unk_token");
  out.pad = token_named(config, "pad_token");
  out.chat_template = template_of(member(config, "chat_template"));
  Json variables = Json::object();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (const std::string token = token_named(config, name); !token.empty()) variables[name] = token;
  out.template_variables = variables.dump();
  return out;
}

std::string with_chat_template(std::string_view config_json, std::string_view chat_template) {
  Json config = config_json.empty() ? Json::object() : parse_json(config_json, "tokenizer_config.json");
  GRAFT_CHECK(InvalidProgram, config.is_object(), "tokenizer_config.json should be an object");
  GRAFT_CHECK(InvalidProgram, is_utf8(chat_template), "the chat template is not UTF-8");
  config["chat_template"] = chat_template;
  return config.dump();
}

}  // namespace text

std::shared_ptr<const Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view config_json,
                                                      const TextLimits& limits) try {
  using namespace text;  // NOLINT: the reader of this document is defined there
  DocumentReader reader(limits);
  const bool parsed = Json::sax_parse(tokenizer_json.begin(), tokenizer_json.end(), &reader);
  GRAFT_CHECK(InvalidProgram, parsed, "tokenizer.json is not valid JSON: ", reader.error);
  const Json& document = reader.document;
  GRAFT_CHECK(InvalidProgram, document.is_object(), "tokenizer.json should be an object");
  const Json& version = member(document, "version");
  GRAFT_CHECK(Unsupported, version.is_null() || is_text(version, "1.0"), "tokenizer.json has the unknown version ",
              version.dump());

  Parts parts;
  parts.limits = limits;
  parts.normalizer = make_normalizer(member(document, "normalizer"));
  parts.pre_tokenizer = make_pre_tokenizer(member(document, "pre_tokenizer"));
  parts.model = make_model(member(document, "model"), std::move(reader.large));
  parts.decoder = make_decoder(member(document, "decoder"));
  read_post_processor(member(document, "post_processor"), parts);
  if (!member(document, "added_tokens").is_null())
    for (const Json& entry : array_at(document, "added_tokens", "tokenizer.json"))
      parts.added_tokens.push_back(added_token(entry, "tokenizer.json: added_tokens"));
  const Json& truncation = member(document, "truncation");
  if (!truncation.is_null()) {
    const std::int64_t length = integer_at(truncation, "max_length", "tokenizer.json: truncation");
    GRAFT_CHECK(InvalidProgram, length >= 0, "tokenizer.json: truncation.max_length is ", length);
    parts.truncation = static_cast<std::size_t>(length);
  }
  if (!config_json.empty()) add_tokens_of(parse_json(config_json, "tokenizer_config.json"), parts);
  check_vocabulary(parts.model->vocabulary().size() + parts.added_tokens.size(), limits);
  return make_tokenizer(std::move(parts), read_config(config_json));
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
