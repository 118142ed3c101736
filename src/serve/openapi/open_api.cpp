#include "serve/openapi/open_api.h"

namespace graft::serve {

extern const std::string_view kOpenApiPaths, kOpenApiSchemas;

Json open_api_document() {
  Json document = read_json<Json>(kOpenApiPaths);
  document["components"]["schemas"] = read_json<Json>(kOpenApiSchemas);
  for (auto& [path, operations] : document["paths"].items()) {
    const Json plain = {{"$ref", "#/components/schemas/Error"}};
    // What is refused before its path is known has OpenAI's form everywhere.
    const Json either = {{"anyOf", Json::array({{{"$ref", "#/components/schemas/V2Error"}}, plain})}};
    const Json error = {{"description", "An error."},
                        {"content", {{"application/json", {{"schema", path.starts_with("/v2") ? either : plain}}}}}};
    for (auto& [method, operation] : operations.items())
      for (const char* status : {"4XX", "503"})
        if (Json& answers = operation["responses"]; !answers.contains(status)) answers[status] = error;
  }
  return document;
}

void open_api(App&, const std::shared_ptr<Call>& call, const PathParts&) {
  static const std::string body = dump(open_api_document());
  Response response;
  response.body = body;
  call->respond(std::move(response));
}

}  // namespace graft::serve
