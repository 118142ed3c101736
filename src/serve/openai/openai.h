#pragma once

#include "serve/app.h"

// OpenAI's API.
namespace graft::serve {

void list_models(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void show_model(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void completions(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void embeddings(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void responses(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void rerank(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void chat_completions(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

}  // namespace graft::serve
