#pragma once

#include "serve/app.h"

namespace graft::serve {

// GET /openapi.json
void open_api(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

// The document: the embedded files paths.json and schemas.json, with what all operations have in common.
Json open_api_document();

}  // namespace graft::serve
