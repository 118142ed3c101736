#include "serve/openai/openai.h"

namespace graft::serve {

Json model_entry(const Models::Known& known) {
  using State = Models::State;
  Json json = {{"id", known.file.name},
               {"object", "model"},
               {"created", known.model ? known.model->created : 0},
               {"owned_by", "graft"},
               {"status",
                {{"value", known.state == State::loaded    ? "loaded"
                           : known.state == State::loading ? "loading"
                                                           : "unloaded"}}}};
  if (known.model && known.model->engine) json["max_model_len"] = known.model->engine->capacity();
  if (known.model && known.model->parent) json["parent"] = known.model->parent->name;
  return json;
}

void list_models(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  app.check_ready();
  Json data = Json::array();
  for (const auto& known : app.models.known()) {
    data.push_back(model_entry(known));
    for (const auto& adapter : known.adapters)
      data.push_back(model_entry({{.name = adapter->name}, Models::State::loaded, adapter}));
  }
  call->respond_json({{"object", "list"}, {"data", std::move(data)}});
}

void show_model(App& app, const std::shared_ptr<Call>& call, const PathParts& parts) {
  app.check_ready();
  call->respond_json(model_entry(app.models.known(parts.at(0))));
}

}  // namespace graft::serve
