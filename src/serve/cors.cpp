#include "serve/cors.h"

#include <algorithm>

#include "base/check.h"

namespace graft::serve {
namespace {

// "http://127.0.0.1:3000": of the machine that the browser runs on.
bool is_local(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  if (scheme == origin.npos) return false;
  std::string_view host = origin.substr(scheme + 3);
  // The port is behind the last colon, if there is one outside the brackets of IPv6.
  const std::size_t colon = host.rfind(':');
  if (colon != host.npos && host.find(']', colon) == host.npos) {
    const std::string_view port = host.substr(colon + 1);
    if (port.empty() || port.find_first_not_of("0123456789") != port.npos) return false;
    host = host.substr(0, colon);
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

}  // namespace

void check_origin(const std::string& origin) {
  const std::size_t scheme = origin.find("://");
  const bool whole = scheme != origin.npos && scheme > 0 && scheme + 3 < origin.size() &&
                     origin.find_first_of("/?# ", scheme + 3) == origin.npos;
  GRAFT_CHECK(InvalidArgument, origin == "*" || origin == "localhost" || whole, "'", origin,
              "' is no origin of pages: expected *, localhost, or a scheme and a host as in https://chat.example.org");
}

bool CrossOrigin::allows(std::string_view origin) const {
  return !origin.empty() && std::ranges::any_of(origins_, [&](const std::string& allowed) {
    return allowed == "*" || (allowed == "localhost" ? is_local(origin) : allowed == origin);
  });
}

Headers CrossOrigin::headers(const Request& request) const {
  if (origins_.empty()) return {};
  // Caches must not give one page's answer to another.
  Headers out = {{"Vary", "Origin"}};
  if (const std::string_view origin = request.header("origin"); allows(origin)) {
    out.emplace_back("Access-Control-Allow-Origin", origin);
    out.emplace_back("Access-Control-Expose-Headers", "x-request-id, Retry-After");
  }
  return out;
}

std::optional<Response> CrossOrigin::preflight(const Request& request) const {
  const std::string_view asked = request.header("access-control-request-method");
  if (origins_.empty() || request.method != "OPTIONS" || asked.empty()) return {};
  Response response;
  response.content_type = "text/plain; charset=utf-8";
  if (allows(request.header("origin"))) {
    response.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"}, {"Access-Control-Max-Age", "600"}};
    // API keys are headers, which "*" would not allow (Fetch standard, 4.9).
    if (const std::string_view names = request.header("access-control-request-headers"); !names.empty())
      response.headers.emplace_back("Access-Control-Allow-Headers", names);
  }
  return response;
}

}  // namespace graft::serve
