#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json_fields.h"
#include "serve/models.h"
#include "serve/openai/media.h"

namespace graft::serve {

// The text of a content called `path`: a string, or parts of these types, each with a "text". `ignored`: arrays that a
// part may have besides. `separator`: between parts. Throws ApiError (400).
std::string text_of_parts(const Json& content, const std::string& path, std::initializer_list<std::string_view> types,
                          std::initializer_list<const char*> ignored = {}, std::string_view separator = {});

// Variables of a chat template that callers give. Throws ApiError (400) for those that requests have by themselves.
void check_template_variables(const Json& variables, const std::string& path);

// Reads "messages" and "chat_template_kwargs" and applies the model's chat template; the prompt ends where the answer
// begins. Throws ApiError (400) for messages that are not as OpenAI's API has them, hold something else than text, or
// that the template refuses.
// `tools`: as OpenAI's API has them, which the template is told of. `add_generation_prompt`: false for a prompt that
// ends with the last message. `media`: of a model that takes pictures, those of parts of type image_url are added in
// order; of one that takes sound those of input_audio. Null: they are read, and left out.
std::string chat_prompt_of(Fields& fields, const ServedModel& model, const RequestLimits& limits,
                           const Json& tools = Json::array(), bool add_generation_prompt = true,
                           Media* media = nullptr);

}  // namespace graft::serve
