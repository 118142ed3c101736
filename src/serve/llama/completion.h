#pragma once

#include "serve/app.h"

namespace graft::serve {

// llama-server's own completion endpoint: what its clients send, answered in its form.
void llama_completion(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

}  // namespace graft::serve
