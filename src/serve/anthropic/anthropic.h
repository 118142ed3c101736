#pragma once

#include "serve/app.h"

// Anthropic's API.
namespace graft::serve {

// POST /v1/messages
void anthropic_messages(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
// POST /v1/messages/count_tokens
void anthropic_count_tokens(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

}  // namespace graft::serve
