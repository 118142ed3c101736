#include "serve/model_control.h"

#include <filesystem>

#include "base/check.h"
#include "serve/log.h"
#include "serve/openai/openai.h"

namespace graft::serve {
namespace {

void check_fits(const App& app, const std::string& name, std::uint64_t bytes) {
  const std::uint64_t most = app.options.max_model_bytes, used = app.models.bytes();
  if (bytes <= most && used <= most - bytes) return;
  throw ApiError(409,
                 str("the model '", name, "' needs ", bytes, " bytes, and ", used > most ? 0 : most - used, " of ",
                     most, " are free: unload another"),
                 "model", "model_does_not_fit");
}

// The name in a request to load or to unload.
std::string name_of(App& app, const Call& call) {
  app.check_ready();
  if (!app.options.model_control)
    throw ApiError(403, "this server loads and unloads no models (graft serve --model-control)");
  const Json json = parse_object(call.request().body);
  Fields fields(json);
  std::string name = fields.need_text("model");
  fields.end();
  return name;
}

}  // namespace

void load(App& app, const std::string& name) {
  const auto start = Clock::now();
  const ModelFile file = app.models.begin_loading(name);
  try {
    // Weights are most of what a model needs: what cannot fit is not read.
    std::error_code missing;
    const auto size = std::filesystem::file_size(file.path, missing);
    if (!missing) check_fits(app, name, size);
    const auto model = load_model(file, app.options);
    check_fits(app, name, model->bytes);
    app.models.add(model);
    log_event("info", "loaded",
              {{"model", name},
               {"rows", model->engine ? Json(model->engine->rows()) : Json()},
               {"context", model->engine ? Json(model->engine->capacity()) : Json()},
               {"bytes", model->bytes},
               {"seconds", seconds_since(start)}});
  } catch (...) {
    app.models.stop_loading(name);
    throw;
  }
}

void models_load(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const std::string name = name_of(app, *call);
  app.models.known(name);  // throws
  app.loads.submit([&app, call, name] {
    try {
      if (!app.models.known(name).model) load(app, name);
      call->respond_json(model_entry(app.models.known(name)));
    } catch (const ApiError&) {
      call->fail(std::current_exception());
    } catch (const std::exception& error) {  // names files of this machine
      log_event("error", "not loaded", {{"model", name}, {"error", error.what()}});
      call->fail(std::make_exception_ptr(
          ApiError(500, "the model '" + name + "' cannot be loaded: the server's log says why")));
    }
  });
}

void models_unload(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const std::string name = name_of(app, *call);
  const bool was_loaded = app.models.known(name).model != nullptr;
  app.models.unload(name);
  if (was_loaded) log_event("info", "unloaded", {{"model", name}});
  app.models.free_unused();
  call->respond_json(model_entry(app.models.known(name)));
}

}  // namespace graft::serve
