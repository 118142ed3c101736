#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graft/graft.h"

// Requests to a server over plain HTTP.
namespace graft::cli {

// "http://host:port/path" in parts.
struct HttpUrl {
  std::string host;
  std::string port = "80";
  std::string path;  // without a slash at its end
};
// Throws InvalidArgument for anything else, https included.
HttpUrl parse_http_url(const std::string& url);

struct HttpRequest {
  std::string path;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // JSON
};

// Sends a POST request on a connection of its own and returns the answer's status. `on_part` gets the body as it
// arrives. When the token is cancelled, the connection is closed and 0 returned. Throws SystemError, naming the server,
// where it does not answer or the connection ends too soon.
int post(const HttpUrl& server, const HttpRequest& request, const std::function<void(std::string_view)>& on_part,
         const CancelToken& cancel);

}  // namespace graft::cli
