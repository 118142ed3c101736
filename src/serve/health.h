#pragma once

#include "serve/app.h"

namespace graft::serve {

// GET /health: 200 when ready, 503 while models are loaded and while the server stops.
void health(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
// GET /: a page to talk with the models.
void page(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
// GET /metrics, in Prometheus' text format.
void metrics(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

}  // namespace graft::serve
