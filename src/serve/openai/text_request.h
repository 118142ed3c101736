#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graft/image.h"
#include "serve/app.h"
#include "serve/tools/answer_parser.h"

namespace graft::serve {

// A request for texts of a model, of /v1/completions or /v1/chat/completions.
struct TextRequest {
  std::shared_ptr<ServedModel> model;
  std::vector<std::vector<std::int64_t>> prompts;
  std::shared_ptr<const llm::PreparedImages> images;  // of all prompts: chats, which have one; null: none
  std::int64_t n = 1;                                 // texts for each prompt
  GenerationOptions options;
  RequestOptions request;
  bool seeded = false;  // the request names its seed
  bool stream = false;
  bool include_usage = false;              // as the last event of a stream
  bool echo = false;                       // the answer begins with the prompt
  bool timings = false;                    // the answer says how long its parts took
  bool reuse = true;                       // of keys and values of other requests
  bool no_new_tokens = false;              // max_tokens 0: only the prompt is read
  std::vector<std::string> echoed;         // with `echo`: the texts of the prompts
  std::shared_ptr<const Grammar> grammar;  // the form of all texts; null: any
  AnswerStyle style;                       // of chat: what texts are taken apart into
};

// Reads the parameters that both have, from the model's own settings where they are absent. Throws ApiError (400).
void read_sampling(Fields& fields, TextRequest& request);
// Of `given` and llama-server's "n_predict", which mean the same; -1 there is as many as there is room for. Throws
// ApiError (400).
std::optional<std::int64_t> max_tokens_of(Fields& fields, std::optional<std::int64_t> given,
                                          std::optional<std::int64_t> otherwise);
// Reads what llama-server's clients send besides. Throws ApiError (400).
void read_llama_fields(Fields& fields, TextRequest& request);
// Gives `max_new_tokens`; absent: as many as the cache has room for. Throws ApiError (400).
void set_max_tokens(TextRequest& request, std::optional<std::int64_t> most);

// Who asks, and with whom the request shares keys and values in the cache.
void set_caller(TextRequest& request, const Call& call);

TextRequest read_completion(const Json& json, const App& app);
// `pictures`: unless it is empty, parts of type image_url have indices of these.
TextRequest read_chat(const Json& json, const App& app, std::vector<Image> pictures = {});

// Throws ApiError (400) for an array that does not hold ids below `end` alone.
std::vector<std::int64_t> token_ids(const Json& array, const std::string& path, std::int64_t end);
void check_prompt_bytes(std::size_t bytes, const RequestLimits& limits);
// Throws ApiError (400) for a request with too many texts, or a prompt that is longer than the cache.
void check_prompts(const TextRequest& request, const RequestLimits& limits, const std::string& param);

}  // namespace graft::serve
