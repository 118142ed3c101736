#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "graft/error.h"
#include "serve/http/message.h"

namespace graft::serve {

// What a request is refused with: a status and an error object of OpenAI's API.
class ApiError : public Error {
 public:
  ApiError(int with_status, const std::string& message, std::string of_param = {}, std::string with_code = {})
      : Error(message), status(with_status), param(std::move(of_param)), code(std::move(with_code)) {}

  int status;
  std::string param;                                               // of the request; empty: none
  std::string code;                                                // for programs; empty: none
  std::string type = {};                                           // empty: that of the status
  std::vector<std::pair<std::string, std::int64_t>> numbers = {};  // further fields of the error object
  Headers headers;                                                 // besides those of every answer
};

// 400: the request, by its parameter.
template <typename... Parts>
[[noreturn]] void bad_request(const std::string& param, const Parts&... parts) {
  throw ApiError(400, str(parts...), param);
}

// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
std::string error_body(int status, const std::string& message);
std::string error_body(const ApiError& error);

// 400: a prompt that is longer than the context.
ApiError context_exceeded(std::int64_t tokens, std::int64_t context, const std::string& param);
Response error_response(const ApiError& error);

// The error to answer with for what was thrown while a request was served: what is the request's own fault says so;
// anything else is "internal error", since its message may name files. `detail`: the whole message, for the log.
ApiError api_error_of(std::exception_ptr thrown, std::string& detail);

}  // namespace graft::serve
