#pragma once

#include "serve/app.h"

namespace graft::serve {

// POST /tokenize: {"content" or "prompt": text, "add_special": true, "with_pieces": false}.
void tokenize(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
// POST /detokenize: {"tokens": [ids]}.
void detokenize(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
// POST /apply-template: {"messages": [...]}: the prompt that the chat template makes.
void apply_template(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

}  // namespace graft::serve
