#include "serve/model_control.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

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
    std::vector<std::shared_ptr<ServedModel>> adapters;
    for (const auto& [adapter, path] : file.adapters) adapters.push_back(load_adapter(model, adapter, path));
    app.models.add(model, std::move(adapters));
    log_event("info", "loaded",
              {{"model", name},
               {"rows", model->engine ? Json(model->engine->rows()) : Json()},
               {"context", model->engine ? Json(model->engine->capacity()) : Json()},
               {"bytes", model->bytes},
               {"adapters", file.adapters.size()},
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

namespace {

// In the folder that the server's options name, and not beyond.
std::filesystem::path adapter_path(const App& app, const std::string& given) {
  namespace fs = std::filesystem;
  const fs::path folder(app.options.adapter_folder), path(given);
  const auto above = [](const fs::path& part) { return part == ".."; };
  const bool inside = !given.empty() && path.is_relative() && std::none_of(path.begin(), path.end(), above);
  if (!inside)
    bad_request("lora_path", "'lora_path' must be a path within the folder of adapters, found '", given, "'");
  return folder / path;
}

void check_adapters(const App& app) {
  app.check_ready();
  if (app.options.adapter_folder.empty())
    throw ApiError(403, "this server loads and unloads no adapters (graft serve --lora-folder)");
}

// Of an error that names a file of this machine: without the folder.
std::string without(std::string message, const std::string& folder) {
  for (std::size_t at = message.find(folder); at != std::string::npos; at = message.find(folder, at))
    message.erase(at, folder.size());
  return message;
}

}  // namespace

void load_lora_adapter(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  check_adapters(app);
  const Json json = parse_object(call->request().body);
  Fields fields(json);
  const auto model = app.language_model_of(fields);
  const std::string name = fields.need_text("lora_name"), given = fields.need_text("lora_path");
  const bool replaces = fields.boolean("load_inplace").value_or(false);
  fields.end();
  if (!is_model_name(name))
    bad_request("lora_name", "'lora_name' must be of letters, digits and .-_:, found '", name, "'");
  if (model->adapter) bad_request("model", "'", model->name, "' is an adapter itself");
  const std::string path = adapter_path(app, given).string();
  app.loads.submit([&app, call, model, name, given, path, replaces] {
    try {
      const auto adapter = load_adapter(model, name, path);
      app.models.add_adapter(adapter, replaces);
      log_event("info", "loaded", {{"adapter", name}, {"model", model->name}, {"bytes", adapter->bytes}});
      call->respond_json(model_entry(app.models.known(name)));
    } catch (const ApiError&) {
      call->fail(std::current_exception());
    } catch (const Error& error) {
      const bool missing = dynamic_cast<const NotFound*>(&error) != nullptr;
      const std::string folder = (std::filesystem::path(app.options.adapter_folder) / "").string();
      call->fail(std::make_exception_ptr(
          ApiError(missing ? 404 : 400, without(error.what(), folder), "lora_path", "adapter_not_loaded")));
    } catch (const std::exception& error) {
      log_event("error", "not loaded", {{"adapter", name}, {"error", error.what()}});
      call->fail(std::make_exception_ptr(
          ApiError(500, "the adapter '" + name + "' cannot be loaded: the server's log says why")));
    }
  });
}

void unload_lora_adapter(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  check_adapters(app);
  const Json json = parse_object(call->request().body);
  Fields fields(json);
  const std::string name = fields.need_text("lora_name");
  fields.end();
  app.models.remove_adapter(name);
  log_event("info", "unloaded", {{"adapter", name}});
  call->respond_json(model_entry({{.name = name}, Models::State::unloaded, nullptr}));
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
