#pragma once

#include "serve/app.h"

// OpenAI's API.
namespace graft::serve {

// An entry of the list of models: "status" says whether it is loaded, as llama.cpp's server does.
Json model_entry(const Models::Known& known);

void list_models(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void show_model(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void completions(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void embeddings(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void responses(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void rerank(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void chat_input_tokens(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void transcriptions(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void translations(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void chat_completions(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

}  // namespace graft::serve
