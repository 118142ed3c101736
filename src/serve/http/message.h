#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace graft::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;  // "GET"
  std::string path;    // percent-decoded, without the query
  std::string query;   // as it was sent
  Headers headers;     // names in lower case
  std::string body;
  Clock::time_point start;  // when its header was complete

  // The value of the first header of this name, in lower case; empty when there is none.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (key == name) return value;
    return {};
  }
};

struct Response {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  Headers headers = {};  // besides those of the content and the connection
};

}  // namespace graft::serve
