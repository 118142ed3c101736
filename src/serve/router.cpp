#include "serve/router.h"

#include <algorithm>

#include "serve/anthropic/anthropic.h"
#include "serve/health.h"
#include "serve/http/target.h"
#include "serve/llama/completion.h"
#include "serve/model_control.h"
#include "serve/openai/openai.h"
#include "serve/openapi/open_api.h"
#include "serve/text_tools.h"
#include "serve/v2/v2.h"

namespace graft::serve {
namespace {

ApiError method_not_allowed(const std::string& method, const std::string& allowed) {
  ApiError error(405, "the method " + method + " is not allowed here; allowed: " + allowed);
  error.headers.emplace_back("Allow", allowed);
  return error;
}

// Whether a browser says nothing, or that the request comes from a page of this server.
bool own_origin(const Request& request) {
  const std::string_view origin = request.header("origin");
  const std::size_t scheme = origin.find("://");
  return origin.empty() || (scheme != std::string_view::npos && origin.substr(scheme + 3) == request.header("host"));
}

// Forms that a page of any site may send without asking (CORS) are not JSON, so that no page can use the server.
void check_content_type(const Request& request, const CrossOrigin& cross_origin) {
  std::string type = http_lower(std::string(request.header("content-type")));
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.pop_back();
  // A form with a file is one of those that any page may send: its browser says where it comes from.
  const bool form = request.path.starts_with("/v1/audio/") && type == "multipart/form-data";
  if (form && !own_origin(request) && !cross_origin.allows(request.header("origin")))
    throw ApiError(403, "pages of other sites may not send forms");
  // tritonclient names no type. A page can do that too, but then its browser says where it comes from.
  const bool binary = request.path.starts_with("/v2/") &&
                      (type == "application/octet-stream" || (type.empty() && request.header("origin").empty()));
  if (type != "application/json" && !type.ends_with("+json") && !binary && !form)
    throw ApiError(415, "the Content-Type must be application/json, found '" + type + "'");
  if (!form && request.path.starts_with("/v1/audio/"))
    throw ApiError(415, "the Content-Type must be multipart/form-data, found '" + type + "'");
}

void answer(App& app, const std::shared_ptr<Call>& call) {
  const Request& request = call->request();
  const std::string_view path = path_without_alias(request.path);
  std::string allowed;
  // "/v1/models/load" is no model of that name.
  const bool literal = std::ranges::find(routes(), path, &Route::path) != routes().end();
  for (const Route& route : routes()) {
    PathParts parts;
    if (literal && route.path != path) continue;
    if (!matches(route.path, path, parts)) continue;
    const bool same = route.method == request.method || (request.method == "HEAD" && route.method == "GET");
    if (!same) {
      allowed += (allowed.empty() ? "" : ", ") + route.method;
      continue;
    }
    call->route = route.path;
    if (route.access == Access::with_key && !app.keys.allows(request)) {
      ApiError error(401, "an API key is needed: Authorization: Bearer KEY", {}, "invalid_api_key");
      error.headers.emplace_back("WWW-Authenticate", "Bearer");
      throw error;
    }
    call->cache_salt = app.keys.salt(request);
    if (route.method == "POST") check_content_type(request, app.cross_origin);
    return route.endpoint(app, call, parts);
  }
  if (!allowed.empty()) throw method_not_allowed(request.method, allowed);
  throw ApiError(404, "there is nothing at this path");
}

}  // namespace

bool matches(std::string_view route, std::string_view path, PathParts& parts) {
  parts.clear();
  while (!route.empty()) {
    const std::size_t end = std::min(route.find('/', 1), route.size());
    const std::size_t path_end = std::min(path.find('/', 1), path.size());
    const std::string_view expected = route.substr(0, end), found = path.substr(0, path_end);
    if (expected.starts_with("/{")) {
      if (found.size() < 2) return false;
      parts.emplace_back(found.substr(1));
    } else if (expected != found) {
      return false;
    }
    route.remove_prefix(end);
    path.remove_prefix(path_end);
  }
  return path.empty();
}

std::string_view path_without_alias(std::string_view path) {
  static constexpr std::pair<std::string_view, std::string_view> aliases[] = {
      {"/models", "/v1/models"},
      {"/chat/completions", "/v1/chat/completions"},
      {"/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"},
      {"/responses", "/v1/responses"},
      {"/embeddings", "/v1/embeddings"},
      {"/rerank", "/v1/rerank"},
      {"/reranking", "/v1/rerank"},
      {"/v1/reranking", "/v1/rerank"},
      {"/completions", "/completion"},
  };
  for (const auto& [alias, own] : aliases)
    if (path == alias) return own;
  return path;
}

const std::vector<Route>& routes() {
  static const std::vector<Route> all = {
      {"GET", "/", page, Access::open},
      {"GET", "/health", health, Access::open},
      {"GET", "/metrics", metrics},
      {"GET", "/openapi.json", open_api},
      {"GET", "/v1/models", list_models},
      {"GET", "/v1/models/{model}", show_model},
      {"POST", "/v1/models/load", models_load},
      {"POST", "/v1/models/unload", models_unload},
      {"POST", "/v1/load_lora_adapter", load_lora_adapter},
      {"POST", "/v1/unload_lora_adapter", unload_lora_adapter},
      {"POST", "/v1/completions", completions},
      {"POST", "/v1/chat/completions", chat_completions},
      {"POST", "/v1/chat/completions/input_tokens", chat_input_tokens},
      {"POST", "/v1/responses", responses},
      {"POST", "/v1/messages", anthropic_messages},
      {"POST", "/v1/messages/count_tokens", anthropic_count_tokens},
      {"POST", "/v1/embeddings", embeddings},
      {"POST", "/v1/audio/transcriptions", transcriptions},
      {"POST", "/v1/audio/translations", translations},
      {"POST", "/v1/rerank", rerank},
      {"POST", "/completion", llama_completion},
      {"POST", "/tokenize", tokenize},
      {"POST", "/detokenize", detokenize},
      {"POST", "/apply-template", apply_template},
      {"GET", "/v2", v2_server},
      {"GET", "/v2/health/live", v2_live, Access::open},
      {"GET", "/v2/health/ready", v2_ready, Access::open},
      {"GET", "/v2/models/{model}", v2_model},
      {"GET", "/v2/models/{model}/ready", v2_model_ready},
      {"POST", "/v2/models/{model}/infer", v2_infer},
      {"GET", "/v2/models/{model}/versions/{version}", v2_model},
      {"GET", "/v2/models/{model}/versions/{version}/ready", v2_model_ready},
      {"POST", "/v2/models/{model}/versions/{version}/infer", v2_infer},
  };
  return all;
}

void route(App& app, const std::shared_ptr<Call>& call) {
  if (call->request().path.starts_with("/v2")) call->errors = Call::Errors::v2;
  if (call->request().path.starts_with("/v1/messages")) call->errors = Call::Errors::anthropic;
  try {
    call->headers = app.cross_origin.headers(call->request());
    if (auto preflight = app.cross_origin.preflight(call->request())) return call->respond(std::move(*preflight));
    answer(app, call);
  } catch (...) {
    call->fail(std::current_exception());
  }
}

void App::check_ready() const {
  const Phase now = phase;
  if (now == Phase::ready) return;
  ApiError error(503, now == Phase::loading ? "the models are being loaded" : "the server is stopping");
  error.headers.emplace_back("Retry-After", "1");
  throw error;
}

std::shared_ptr<ServedModel> App::model_of(Fields& fields) const {
  check_ready();
  const auto name = fields.text("model");
  if (!name && options.require_model) bad_request("model", "'model' is required: the server's --require-model says so");
  const bool other = name && !options.default_model.empty() && !models.knows(*name);
  return models.find(other ? options.default_model : name);
}

std::shared_ptr<ServedModel> App::language_model_of(Fields& fields) const {
  auto model = model_of(fields);
  model->check_language();
  return model;
}

Clock::time_point deadline_of(const Call& call, const RequestLimits& limits) {
  return call.request().start + duration_of(limits.seconds);
}

}  // namespace graft::serve
