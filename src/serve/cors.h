#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/message.h"

namespace graft::serve {

// Which pages of other sites may use the server, which a browser asks by the header Origin (CORS, the Fetch standard).
class CrossOrigin {
 public:
  // Origins ("https://chat.example.org"), "localhost" for pages of the browser's own machine, "*" for all. None: no
  // page.
  explicit CrossOrigin(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  bool allows(std::string_view origin) const;
  // Of the answer to this request; none where its page may not read it.
  Headers headers(const Request& request) const;
  // The answer to a browser that asks before it sends the request of a page; none: the request is no such question.
  std::optional<Response> preflight(const Request& request) const;
  bool any() const { return !origins_.empty(); }

 private:
  std::vector<std::string> origins_;
};

// Throws InvalidArgument where `origin` is none of those that CrossOrigin takes.
void check_origin(const std::string& origin);

}  // namespace graft::serve
