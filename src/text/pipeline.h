#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graft/tokenizer.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace graft::text {

// The parts of a tokenizer, whichever file they come from.
struct Parts {
  std::unique_ptr<const Normalizer> normalizer;       // may be null
  std::unique_ptr<const PreTokenizer> pre_tokenizer;  // may be null
  std::unique_ptr<const Model> model;                 // never null
  std::unique_ptr<const Decoder> decoder;             // null: tokens joined by spaces
  std::vector<AddedToken> added_tokens;               // without ids: assigned as Hugging Face tokenizers does
  std::vector<TokenId> prefix, suffix;                // added around the ids with add_special
  std::optional<std::size_t> truncation;
  TextLimits limits;
};

// What accompanies the vocabulary: names of special tokens and the chat template.
struct Surroundings {
  std::string bos, eos, unk, pad;  // empty: none
  std::string chat_template;
  std::string template_variables = "{}";
};

std::shared_ptr<const Tokenizer> make_tokenizer(Parts parts, Surroundings surroundings);

// The vocabulary of a GGUF file in memory. Throws as Tokenizer::from_gguf.
std::shared_ptr<const Tokenizer> read_gguf_tokenizer(std::span<const std::byte> bytes, const TextLimits& limits);

// tokenizer_config.json; may be empty.
Surroundings read_config(std::string_view config_json);
// The same document with another chat template.
std::string with_chat_template(std::string_view config_json, std::string_view chat_template);

}  // namespace graft::text
