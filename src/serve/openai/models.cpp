#include "serve/openai/openai.h"

namespace graft::serve {
namespace {

Json entry(const ServedModel& model) {
  Json json = {{"id", model.name}, {"object", "model"}, {"created", model.created}, {"owned_by", "graft"}};
  if (model.engine) json["max_model_len"] = model.engine->capacity();
  return json;
}

}  // namespace

void list_models(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  app.check_ready();
  Json data = Json::array();
  for (const auto& model : app.models.all()) data.push_back(entry(*model));
  call->respond_json({{"object", "list"}, {"data", std::move(data)}});
}

void show_model(App& app, const std::shared_ptr<Call>& call, const PathParts& parts) {
  app.check_ready();
  call->respond_json(entry(*app.models.find(parts.at(0))));
}

}  // namespace graft::serve
