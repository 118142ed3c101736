#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/export.h"
#include "graft/limits.h"

// Text to token ids and back, and prompts from chat messages. Ids are those of Hugging Face tokenizers for the same
// file.
namespace graft {

// Keys of the named data of a package that hold a tokenizer: tokenizer.json, and tokenizer_config.json with its chat
// template; or the key-value pairs of a GGUF file, as a GGUF file without tensors.
inline constexpr std::string_view kTokenizerKey = "graft.tokenizer.json";
inline constexpr std::string_view kTokenizerConfigKey = "graft.tokenizer_config.json";
inline constexpr std::string_view kTokenizerGgufKey = "graft.tokenizer.gguf";

struct EncodeOptions {
  // Adds the special tokens of the file's post-processor, such as BOS or [CLS] and [SEP].
  bool add_special = true;
  // At most this many ids, special tokens included; the end of the text is cut off. 0: no limit. The limit that a file
  // states is truncation(); it is not applied by default.
  std::size_t max_length = 0;
};

// Immutable; any number of threads may use one.
class GRAFT_API Tokenizer {
 public:
  // `tokenizer_json`: the content of a Hugging Face tokenizer.json. `config_json`: that of tokenizer_config.json, which
  // names the special tokens and often holds the chat template; may be empty. Throws InvalidProgram for documents that
  // are damaged or contradict themselves, Unsupported naming a part (normalizer, pre-tokenizer, model, post-processor,
  // decoder) that is not known.
  static std::shared_ptr<const Tokenizer> from_json(std::string_view tokenizer_json, std::string_view config_json = {},
                                                    const TextLimits& limits = {});
  // From the vocabulary in a GGUF file, whose weights are not read. Throws as from_json, and NotFound or SystemError.
  static std::shared_ptr<const Tokenizer> from_gguf(const std::string& path, const TextLimits& limits = {});
  // `path`: a folder with tokenizer.json (and optional tokenizer_config.json, chat_template.jinja), a tokenizer.json
  // with the same files beside it, a .gguf file, or a package of graft that carries a tokenizer.
  static std::shared_ptr<const Tokenizer> load(const std::string& path, const TextLimits& limits = {});

  virtual ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Bytes that are not UTF-8 become U+FFFD, one for each maximal part that is ill-formed (Python's errors="replace").
  virtual std::vector<std::int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const = 0;
  // UTF-8; bytes of tokens that form none become U+FFFD. Throws InvalidArgument for an id that has no token.
  virtual std::string decode(std::span<const std::int64_t> ids, bool skip_special = false) const = 0;

  // One more than the largest id.
  virtual std::int64_t size() const = 0;
  // How the vocabulary writes a token ("Ġthe", "<0x0A>"). Throws InvalidArgument for an id that has no token.
  virtual const std::string& piece(std::int64_t id) const = 0;
  // Empty when there is no such token.
  virtual std::optional<std::int64_t> find(std::string_view piece) const = 0;
  virtual bool is_special(std::int64_t id) const = 0;

  // Ids of the special tokens that the files name; empty for others. A model may stop at more tokens than `eos`.
  struct SpecialIds {
    std::optional<std::int64_t> bos, eos, unk, pad;
  };
  virtual const SpecialIds& special_ids() const = 0;
  // The max_length of the file's truncation; empty when it has none.
  virtual std::optional<std::size_t> truncation() const = 0;
  // The Jinja chat template of the files; empty when they have none.
  virtual const std::string& chat_template() const = 0;
  // SHA-256 of all pieces with their ids, in hex: the same vocabulary has the same one.
  virtual std::string identity() const = 0;

  // What a token adds to a text that other tokens begin: UTF-8, or a part of a character where tokens are bytes. Throws
  // InvalidArgument for an id that has no token.
  std::string token_bytes(std::int64_t id) const;

  // The chat template on `variables_json`, an object: {"messages": [{"role": ..., "content": ...}, ...],
  // "add_generation_prompt": true, "tools": ..., ...}, with bos_token and the like added. As transformers'
  // apply_chat_template(tokenize=False). Throws InvalidArgument when there is no template, the variables are no JSON
  // object, or the template raises an exception; InvalidProgram for a template that cannot be parsed.
  std::string apply_chat_template(std::string_view variables_json) const;
  // With another template than the tokenizer's own.
  std::string apply_chat_template(std::string_view variables_json, std::string_view chat_template) const;

 protected:
  Tokenizer() = default;
  // bos_token, eos_token and further names that templates use, as a JSON object.
  virtual const std::string& template_variables() const = 0;
  virtual TextLimits limits() const { return {}; }  // of templates
};

// Streaming decode: the strings from add() and finish(), joined, are decode() of all ids, each in whole UTF-8
// characters. Ids whose bytes do not form a character yet are kept until it is complete. One thread at a time.
class GRAFT_API Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true);
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;
  ~Detokenizer();

  // The text that this id adds, possibly none yet.
  std::string add(std::int64_t id);
  // What is left; bytes of an unfinished character become U+FFFD. The next add() begins a new text.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace graft
