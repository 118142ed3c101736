#pragma once

#include <string>
#include <string_view>

#include "graft/limits.h"

namespace graft::text {

// A Jinja chat template as transformers renders it. `variables_json`: the caller's variables; `defaults_json`: further
// ones, which the caller's replace. Throws as Tokenizer::apply_chat_template.
std::string render_chat_template(std::string_view source, std::string_view variables_json,
                                 std::string_view defaults_json, const TextLimits& limits);

}  // namespace graft::text
