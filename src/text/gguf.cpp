#include <gguf.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/rethrow.h"
#include "base/utf8.h"
#include "package/container.h"
#include "text/json.h"
#include "text/pipeline.h"
#include "text/unicode.h"

// The vocabulary of a GGUF file. It holds less than tokenizer.json: only the name of the pre-tokenizer, not its
// expressions.
namespace graft {
namespace text {
namespace {

struct FreeGguf {
  void operator()(gguf_context* context) const { gguf_free(context); }
};

// The values of tokenizer.ggml.token_type.
enum TokenType : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class Head {
 public:
  explicit Head(const std::string& path) {
    context_.reset(gguf_init_from_file(path.c_str(), kHeadAlone));
    check();
  }
  explicit Head(std::span<const std::byte> bytes) {
    context_.reset(gguf_init_from_buffer(bytes.data(), bytes.size(), kHeadAlone));
    check();
  }

  std::optional<std::string> text(const char* key) const {
    const std::int64_t at = find(key, GGUF_TYPE_STRING);
    return at < 0 ? std::nullopt : std::optional<std::string>(gguf_get_val_str(context_.get(), at));
  }
  std::optional<bool> flag(const char* key) const {
    const std::int64_t at = find(key, GGUF_TYPE_BOOL);
    return at < 0 ? std::nullopt : std::optional<bool>(gguf_get_val_bool(context_.get(), at));
  }
  std::optional<TokenId> id(const char* key) const {
    const std::int64_t at = find(key, GGUF_TYPE_UINT32);
    return at < 0 ? std::nullopt : std::optional<TokenId>(gguf_get_val_u32(context_.get(), at));
  }
  std::vector<std::string> strings(const char* key) const {
    std::vector<std::string> out;
    const std::int64_t at = find_array(key, GGUF_TYPE_STRING);
    const std::size_t count = at < 0 ? 0 : gguf_get_arr_n(context_.get(), at);
    for (std::size_t i = 0; i < count; ++i) out.emplace_back(gguf_get_arr_str(context_.get(), at, i));
    return out;
  }
  template <typename T>
  std::vector<T> numbers(const char* key, gguf_type type) const {
    const std::int64_t at = find_array(key, type);
    if (at < 0) return {};
    const auto* data = static_cast<const T*>(gguf_get_arr_data(context_.get(), at));
    return {data, data + gguf_get_arr_n(context_.get(), at)};
  }

 private:
  static constexpr gguf_init_params kHeadAlone = {/*no_alloc=*/true, /*ctx=*/nullptr};

  void check() const { GRAFT_CHECK(InvalidProgram, context_, "it is not a GGUF file, or its head is damaged"); }
  std::int64_t find(const char* key, gguf_type type) const {
    const std::int64_t at = gguf_find_key(context_.get(), key);
    if (at < 0) return at;
    check_type(key, gguf_get_kv_type(context_.get(), at), type);
    return at;
  }
  std::int64_t find_array(const char* key, gguf_type type) const {
    const std::int64_t at = find(key, GGUF_TYPE_ARRAY);
    if (at >= 0) check_type(key, gguf_get_arr_type(context_.get(), at), type);
    return at;
  }
  static void check_type(const char* key, gguf_type found, gguf_type wanted) {
    GRAFT_CHECK(InvalidProgram, found == wanted, key, " should be of type ", gguf_type_name(wanted), ", is ",
                gguf_type_name(found));
  }

  std::unique_ptr<gguf_context, FreeGguf> context_;
};

// The expressions of named byte-level pre-tokenizers, from their models' tokenizer.json.
struct PreTokenizers {
  std::vector<std::string> names;
  std::vector<std::string> expressions;
  bool nfc = false;  // the model's tokenizer.json normalizes; GGUF does not record it
  bool ignore_merges = false;
};

const std::string kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kUpperLower = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ENDING|)"
                                R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*ENDING|)"
                                R"(DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Upper-case letters, then lower-case ones; `ending` may follow a word.
std::string upper_lower(std::string_view ending, std::string_view digits) {
  std::string out = kUpperLower;
  const auto put = [&](std::string_view name, std::string_view value) {
    for (std::size_t at = out.find(name); at != std::string::npos; at = out.find(name, at + value.size()))
      out.replace(at, name.size(), value);
  };
  put("ENDING", ending);
  put("DIGITS", digits);
  return out;
}

PreTokenizers pre_tokenizer_named(const std::string& name) {
  const std::vector<PreTokenizers> all = {
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "modern-bert", "granite-docling", "trillion"}, {kGpt2}},
      {{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {kLlama3},
       false,
       true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {kLlama3}},
      {{"qwen2", "deepseek-r1-qwen"}, {kQwen2}, true},
      {{"stablelm2", "hunyuan", "grok-2"}, {kQwen2}},
      {{"qwen35"}, {kQwen35}, true},
      {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}, {R"(\p{N})", kGpt2}},
      {{"deepseek-v3", "hunyuan-dense"}, {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepSeek3}},
      {{"tekken"}, {upper_lower("", R"(\p{N})")}, false, true},
      {{"gpt-4o", "llama4"}, {upper_lower(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)", R"(\p{N}{1,3})")}},
  };
  for (const PreTokenizers& entry : all)
    if (std::find(entry.names.begin(), entry.names.end(), name) != entry.names.end()) return entry;
  throw Unsupported(str("the file's pre-tokenizer '", to_utf8(name),
                        "' (tokenizer.ggml.pre) is not known; give the model's tokenizer.json instead"));
}

std::unique_ptr<const Decoder> decoder_of(const char* json) { return make_decoder(read_json<Json>(json)); }

// SentencePiece: a space before the text where the file says so, and ▁ for spaces.
void read_sentence_piece(const Head& head, Parts& parts) {
  const bool add_space = head.flag("tokenizer.ggml.add_space_prefix").value_or(true);
  if (add_space) {
    parts.normalizer = make_normalizer(read_json<Json>(R"({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})"));
    parts.decoder = decoder_of(R"({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  } else {
    parts.normalizer =
        make_normalizer(read_json<Json>(R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})"));
    parts.decoder = decoder_of(R"({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]})");
  }
}

std::vector<Merge> merges_of(const Head& head) {
  std::vector<Merge> out;
  for (const std::string& line : head.strings("tokenizer.ggml.merges")) {
    const std::size_t space = line.find(' ', 1);
    GRAFT_CHECK(InvalidProgram, space != std::string::npos, "the merge '", to_utf8(line), "' has no two parts");
    out.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return out;
}

struct Vocab {
  std::vector<std::pair<std::string, TokenId>> entries;
  std::vector<std::int32_t> types;
  std::vector<float> scores;
};

Vocab read_vocab(const Head& head, const TextLimits& limits) {
  Vocab out;
  for (std::string& piece : head.strings("tokenizer.ggml.tokens"))
    out.entries.emplace_back(std::move(piece), static_cast<TokenId>(out.entries.size()));
  check_vocabulary(out.entries.size(), limits);
  GRAFT_CHECK(NotFound, !out.entries.empty(), "it holds no vocabulary (tokenizer.ggml.tokens)");
  out.types = head.numbers<std::int32_t>("tokenizer.ggml.token_type", GGUF_TYPE_INT32);
  out.scores = head.numbers<float>("tokenizer.ggml.scores", GGUF_TYPE_FLOAT32);
  GRAFT_CHECK(InvalidProgram, out.types.empty() || out.types.size() == out.entries.size(), "it has ",
              out.entries.size(), " tokens and ", out.types.size(), " token types");
  GRAFT_CHECK(InvalidProgram, out.scores.empty() || out.scores.size() == out.entries.size(), "it has ",
              out.entries.size(), " tokens and ", out.scores.size(), " scores");
  return out;
}

void read_added_tokens(const Vocab& vocab, Parts& parts) {
  for (std::size_t i = 0; i < vocab.types.size(); ++i) {
    const std::int32_t type = vocab.types[i];
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    AddedToken token;
    token.content = vocab.entries[i].first;
    token.special = type != kUserDefined;
    parts.added_tokens.push_back(std::move(token));
  }
}

// BERT's vocabulary: the first piece of a word has a ▁, the others have no ##.
void read_word_piece(const Head& head, Vocab& vocab, Parts& parts) {
  for (auto& [piece, id] : vocab.entries) {
    const bool special = !vocab.types.empty() && vocab.types[static_cast<std::size_t>(id)] != kNormal;
    if (special) continue;
    constexpr std::string_view word_begin = "▁";
    piece = piece.starts_with(word_begin) ? piece.substr(word_begin.size()) : "##" + piece;
  }
  parts.normalizer = make_normalizer(read_json<Json>(R"({"type": "BertNormalizer"})"));
  parts.pre_tokenizer = make_pre_tokenizer(read_json<Json>(R"({"type": "BertPreTokenizer"})"));
  parts.decoder = decoder_of(R"({"type": "WordPiece", "prefix": "##", "cleanup": true})");
  const auto unk = head.id("tokenizer.ggml.unknown_token_id");
  WordPieceOptions options;
  if (unk && *unk < static_cast<TokenId>(vocab.entries.size()))
    options.unk_token = vocab.entries[static_cast<std::size_t>(*unk)].first;
  parts.model = make_word_piece(Vocabulary(std::move(vocab.entries)), std::move(options));
}

void read_model(const Head& head, const std::string& model, Vocab vocab, Parts& parts) {
  if (model == "bert") return read_word_piece(head, vocab, parts);
  if (model == "llama") {
    GRAFT_CHECK(InvalidProgram, !vocab.scores.empty(), "it has no tokenizer.ggml.scores");
    read_sentence_piece(head, parts);
    BpeOptions options;
    options.byte_fallback = true;
    options.fuse_unk = true;
    const auto unk = head.id("tokenizer.ggml.unknown_token_id");
    if (unk && *unk < static_cast<TokenId>(vocab.entries.size()))
      options.unk_token = vocab.entries[static_cast<std::size_t>(*unk)].first;
    parts.model = make_scored_bpe(Vocabulary(std::move(vocab.entries)), vocab.scores, std::move(options));
    return;
  }
  GRAFT_CHECK(Unsupported, model == "gpt2", "its vocabulary is of the unknown kind '", to_utf8(model),
              "' (tokenizer.ggml.model); give the model's tokenizer.json instead");
  const PreTokenizers known = pre_tokenizer_named(head.text("tokenizer.ggml.pre").value_or("default"));
  if (known.nfc) parts.normalizer = make_normalizer(read_json<Json>(R"({"type": "NFC"})"));
  parts.pre_tokenizer = make_byte_level_split(known.expressions);
  parts.decoder = decoder_of(R"({"type": "ByteLevel"})");
  BpeOptions options;
  options.ignore_merges = known.ignore_merges;
  parts.model = make_bpe(Vocabulary(std::move(vocab.entries)), merges_of(head), std::move(options));
}

std::shared_ptr<const Tokenizer> read(const Head& head, const TextLimits& limits) {
  const std::string model = head.text("tokenizer.ggml.model").value_or("");
  GRAFT_CHECK(NotFound, !model.empty(), "it holds no vocabulary (tokenizer.ggml.model)");
  Parts parts;
  parts.limits = limits;
  Vocab vocab = read_vocab(head, limits);
  read_added_tokens(vocab, parts);
  const std::vector<std::pair<std::string, TokenId>> pieces = vocab.entries;

  Surroundings around;
  Json variables = Json::object();
  const auto special = [&](const char* key, const char* variable, std::string& name) {
    const auto id = head.id(key);
    if (!id) return;
    GRAFT_CHECK(InvalidProgram, *id < static_cast<TokenId>(pieces.size()), key, " is ", *id, ", of ", pieces.size(),
                " tokens");
    name = pieces[static_cast<std::size_t>(*id)].first;
    GRAFT_CHECK(InvalidProgram, is_utf8(name), key, " is ", *id, ", a token that is not UTF-8");
    variables[variable] = name;
  };
  special("tokenizer.ggml.bos_token_id", "bos_token", around.bos);
  special("tokenizer.ggml.eos_token_id", "eos_token", around.eos);
  special("tokenizer.ggml.unknown_token_id", "unk_token", around.unk);
  special("tokenizer.ggml.padding_token_id", "pad_token", around.pad);
  around.template_variables = variables.dump();
  around.chat_template = head.text("tokenizer.chat_template").value_or("");

  const bool bert = model == "bert";
  if (bert) {  // added around every input, whatever the file calls them
    const auto first = head.id("tokenizer.ggml.cls_token_id");
    const auto bos = first ? first : head.id("tokenizer.ggml.bos_token_id");
    const auto last = head.id("tokenizer.ggml.seperator_token_id");
    if (bos) parts.prefix.push_back(*bos);
    if (last) parts.suffix.push_back(*last);
  } else {
    const auto bos = head.id("tokenizer.ggml.bos_token_id");
    const auto eos = head.id("tokenizer.ggml.eos_token_id");
    if (bos && head.flag("tokenizer.ggml.add_bos_token").value_or(model == "llama")) parts.prefix.push_back(*bos);
    if (eos && head.flag("tokenizer.ggml.add_eos_token").value_or(false)) parts.suffix.push_back(*eos);
  }
  read_model(head, model, std::move(vocab), parts);
  return make_tokenizer(std::move(parts), std::move(around));
}

}  // namespace
}  // namespace text

std::shared_ptr<const Tokenizer> Tokenizer::from_gguf(const std::string& path, const TextLimits& limits) try {
  MappedFile::open(path);  // for its errors: ggml's reader reports all failures alike
  return naming_file(path, [&] { return text::read(text::Head(path), limits); });
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<const Tokenizer> text::read_gguf_tokenizer(std::span<const std::byte> bytes, const TextLimits& limits) {
  return read(Head(bytes), limits);
}

}  // namespace graft
