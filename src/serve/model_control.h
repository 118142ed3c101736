#pragma once

#include "serve/app.h"

// Loading and unloading models while the server runs.
namespace graft::serve {

// Loads a model of the command line, which is not loaded. Throws ApiError (404; 409 for one that is loaded or being
// loaded, and where it does not fit into max_model_bytes) and what load_model throws; the model is then as before.
void load(App& app, const std::string& name);

// Endpoints: {"model": name}. The answer is the model's entry in the list of models. One that is as asked for already
// is no error.
void models_load(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void models_unload(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
// As vLLM's: {"lora_name": name, "lora_path": path}, with a path in ServeOptions::adapter_folder; "load_inplace": true
// replaces one of the name; "model": of which model, the first that is loaded otherwise. The answer is the adapter's
// entry in the list of models. {"lora_name": name} unloads it.
void load_lora_adapter(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);
void unload_lora_adapter(App& app, const std::shared_ptr<Call>& call, const PathParts& parts);

}  // namespace graft::serve
