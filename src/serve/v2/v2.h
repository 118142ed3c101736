#pragma once

#include "serve/app.h"

// The Open Inference Protocol, version 2 (KServe), over REST.
namespace graft::serve {

void v2_live(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void v2_ready(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void v2_server(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void v2_model_ready(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void v2_model(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void v2_infer(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

}  // namespace graft::serve
