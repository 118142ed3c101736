#pragma once

#include "serve/openai/text_request.h"

namespace graft::serve {

// What a bias of false adds: biases must be finite.
inline constexpr float kNeverBias = -1e9f;

struct LlamaRequest : TextRequest {
  bool list = false;            // the prompt is an array of prompts: so is the answer
  std::int64_t n_predict = -1;  // -1: as many as the context has room for
  bool return_tokens = false;
  std::vector<std::string> response_fields;  // those that the answer has, "a/b" of an object within; empty: all
};

// Throws ApiError (400).
LlamaRequest read_llama_completion(const Json& json, const App& app);

}  // namespace graft::serve
