#include "serve/v2/v2.h"

#include "serve/v2/infer.h"
#include "serve/v2/tensors.h"

namespace graft::serve {
namespace {

// {model} or {model}, {version}.
std::shared_ptr<ServedModel> model_at(const App& app, const PathParts& parts) {
  app.check_ready();
  auto model = app.models.find(parts.at(0));
  if (parts.size() > 1 && parts[1] != "1")
    throw ApiError(404, "model '" + parts[0] + "' has no version '" + parts[1] + "', only 1", {}, "model_not_found");
  return model;
}

const Runner& runner_of(const ServedModel& model) {
  if (!model.runner)
    throw ApiError(400, "model '" + model.name + "' is a language model: it answers /v1/completions and the like");
  return *model.runner;
}

Json describe(const std::vector<ValueInfo>& infos, const std::function<std::string(std::size_t)>& name) {
  Json list = Json::array();
  for (std::size_t i = 0; i < infos.size(); ++i)
    if (infos[i].kind != Value::Kind::none)
      list.push_back({{"name", name(i)}, {"datatype", v2_name(infos[i])}, {"shape", v2_shape(infos[i])}});
  return list;
}

}  // namespace

void v2_live(App&, const std::shared_ptr<Call>& call, const PathParts&) { call->respond_json({{"live", true}}); }

void v2_ready(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const bool ready = app.phase == Phase::ready;
  call->respond_json({{"ready", ready}}, ready ? 200 : 503);
}

void v2_server(App&, const std::shared_ptr<Call>& call, const PathParts&) {
  call->respond_json({{"name", "graft"}, {"version", version()}, {"extensions", {"binary_tensor_data"}}});
}

void v2_model_ready(App& app, const std::shared_ptr<Call>& call, const PathParts& parts) {
  call->respond_json({{"name", model_at(app, parts)->name}, {"ready", true}});
}

void v2_model(App& app, const std::shared_ptr<Call>& call, const PathParts& parts) {
  const auto model = model_at(app, parts);
  const MethodInfo& method = runner_of(*model).method();
  call->respond_json({{"name", model->name},
                      {"versions", {"1"}},
                      {"platform", "graft_pte"},
                      {"inputs", describe(method.inputs, [&](std::size_t i) { return v2_input_name(method, i); })},
                      {"outputs", describe(method.outputs, [&](std::size_t i) { return v2_output_name(method, i); })}});
}

void v2_infer(App& app, const std::shared_ptr<Call>& call, const PathParts& parts) {
  const auto model = model_at(app, parts);
  const Runner& runner = runner_of(*model);
  const auto request = std::make_shared<InferRequest>(
      read_infer(call->request().body, call->request().header("inference-header-content-length"), runner.method()));
  if (request->model_name && *request->model_name != model->name)
    bad_request("model_name", "'model_name' is '", *request->model_name, "', the path names '", model->name, "'");
  call->body().clear();
  call->note("model", model->name);
  const CancelToken gone;
  call->on_gone([gone] { gone.cancel(); });
  model->runner->run(request->inputs, deadline_of(*call, app.options.limits), gone,
                     [call, request, model](const std::vector<Value>& outputs, std::exception_ptr error) {
                       try {
                         if (error) std::rethrow_exception(error);
                         call->respond(write_infer(*request, model->name, model->runner->method(), outputs));
                       } catch (...) {
                         call->fail(std::current_exception());
                       }
                     });
}

}  // namespace graft::serve
