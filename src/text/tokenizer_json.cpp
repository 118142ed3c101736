#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "text/json.h"
#include "text/pipeline.h"

// tokenizer.json and tokenizer_config.json of Hugging Face.
namespace graft {
namespace text {
namespace {

// Takes a model's vocabulary and merges out of the document while it is parsed: as JSON values they would take several
// times the memory and the time. What is not as expected stays in the document, for the reader to complain about.
class LargePartsReader {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::key:
        if (depth == 1) in_model_ = value == "model";
        if (depth == 2)
          part_ = !in_model_          ? Part::none
                  : value == "vocab"  ? Part::vocab
                  : value == "merges" ? Part::merges
                                      : Part::none;
        if (depth == 3 && part_ == Part::vocab) token_ = value.get_ref<const std::string&>();
        return true;
      case Json::parse_event_t::value:
        if (part_ == Part::vocab && depth == 3 && value.is_number_integer()) {
          // In an array (Unigram) the depth is the same, but no key came before.
          if (in_array_) return true;
          large.vocab.emplace_back(std::move(token_), value.get<TokenId>());
          return false;
        }
        if (part_ == Part::merges && depth == 3 && value.is_string()) {
          add_merge(value.get_ref<const std::string&>());
          return false;
        }
        if (part_ == Part::merges && depth == 4 && value.is_string()) {
          pair_.push_back(std::move(value.get_ref<std::string&>()));
          return false;
        }
        return true;
      case Json::parse_event_t::array_start:
        if (depth == 2) in_array_ = true;
        if (depth == 3) pair_.clear();
        return true;
      case Json::parse_event_t::array_end:
        if (depth == 2) in_array_ = false;
        if (part_ != Part::merges || depth != 3) return true;
        GRAFT_CHECK(InvalidProgram, pair_.size() == 2, "tokenizer.json: merge ", large.merges.size(), " has ",
                    pair_.size(), " parts, expected 2");
        large.merges.push_back({std::move(pair_[0]), std::move(pair_[1])});
        return false;
      default:
        return true;
    }
  }

  LargeParts large;

 private:
  enum class Part { none, vocab, merges };

  void add_merge(const std::string& line) {
    if (line.starts_with("#version")) return;
    const std::size_t space = line.find(' ');
    GRAFT_CHECK(InvalidProgram, space != std::string::npos && line.find(' ', space + 1) == std::string::npos,
                "tokenizer.json: merge ", large.merges.size(), " is '", line,
                "', expected two tokens and a space between");
    large.merges.push_back({line.substr(0, space), line.substr(space + 1)});
  }

  Part part_ = Part::none;
  bool in_model_ = false;
  bool in_array_ = false;
  std::string token_;
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

// The parts of a template: what stands before the text and behind it.
void read_template(const Json& description, Parts& parts) {
  const Json& special = member(description, "special_tokens");
  std::vector<TokenId> before;
  std::vector<TokenId> after;
  bool seen = false;
  for (const Json& piece : array_at(description, "single", "TemplateProcessing")) {
    const Json& sequence = member(piece, "Sequence");
    if (!sequence.is_null()) {
      GRAFT_CHECK(Unsupported, !seen && member(sequence, "id") == "A",
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
  return get_as<std::string>(value, "tokenizer_config.json: " + name, "a string");
}

// One template, or several with names.
std::string template_of(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  GRAFT_CHECK(InvalidProgram, value.is_array(), "tokenizer_config.json: chat_template should be a string or an array");
  for (const Json& entry : value)
    if (member(entry, "name") == "default") return string_at(entry, "template", "tokenizer_config.json: chat_template");
  throw InvalidProgram("tokenizer_config.json: none of the chat_templates is named 'default'");
}

// Tokens that only the configuration adds, in the order of their ids.
void add_tokens_of(const Json& config, Parts& parts) {
  const Json& more = member(config, "added_tokens_decoder");
  if (!more.is_object()) return;
  std::vector<std::pair<TokenId, AddedToken>> tokens;
  for (const auto& [id, entry] : more.items()) {
    AddedToken token = added_token(entry, "tokenizer_config.json: added_tokens_decoder." + id);
    const auto is_it = [&](const AddedToken& other) { return other.content == token.content; };
    if (std::any_of(parts.added_tokens.begin(), parts.added_tokens.end(), is_it)) continue;
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

std::shared_ptr<const Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view config_json) {
  using namespace text;  // NOLINT: the reader of this document is all there
  text::LargePartsReader reader;
  const Json document = parse_json(tokenizer_json, "tokenizer.json", std::ref(reader));
  GRAFT_CHECK(InvalidProgram, document.is_object(), "tokenizer.json should be an object");
  const Json& version = member(document, "version");
  GRAFT_CHECK(Unsupported, version.is_null() || version == "1.0", "tokenizer.json has the unknown version ",
              version.dump());

  Parts parts;
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
  return make_tokenizer(std::move(parts), read_config(config_json));
}

}  // namespace graft
