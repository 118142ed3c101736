#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/app.h"

namespace graft::serve {

using Endpoint = std::function<void(App& app, const std::shared_ptr<Call>& call, const PathParts& parts)>;

enum class Access { with_key, open };  // open: needs no API key

struct Route {
  std::string method;
  std::string path;  // "/v1/models/{model}"
  Endpoint endpoint;
  Access access = Access::with_key;
};

// All routes of the server, which is where endpoints are added.
const std::vector<Route>& routes();

// llama-server's names of endpoints, without the version, as ours; other paths as they are.
std::string_view path_without_alias(std::string_view path);

// Answers the call: finds its route, checks key, content type and phase, and runs the endpoint. Everything thrown
// becomes the answer.
void route(App& app, const std::shared_ptr<Call>& call);

// Whether the path is that of the route; fills `parts`.
bool matches(std::string_view route, std::string_view path, PathParts& parts);

}  // namespace graft::serve
