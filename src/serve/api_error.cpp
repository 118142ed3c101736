#include "serve/api_error.h"

#include <new>

#include "serve/json_fields.h"

namespace graft::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

std::string error_body(int status, const std::string& message, const std::string& param, const std::string& code) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return dump(
      {{"error",
        {{"message", message}, {"type", type_of(status)}, {"param", or_null(param)}, {"code", or_null(code)}}}});
}

Response error_response(const ApiError& error) {
  Response response;
  response.status = error.status;
  response.body = error_body(error.status, error.what(), error.param, error.code);
  response.headers = error.headers;
  return response;
}

ApiError api_error_of(std::exception_ptr thrown, std::string& detail) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const ApiError& error) {
    detail = error.what();
    return error;
  } catch (const InvalidArgument& error) {
    detail = error.what();
    return {400, error.what()};
  } catch (const ExecutionError& error) {  // data that a kernel must not act on
    detail = error.what();
    return {400, error.what()};
  } catch (const Busy& error) {
    detail = error.what();
    ApiError busy(429, "the server is at its limit; try again later", {}, "rate_limit_exceeded");
    busy.headers.emplace_back("Retry-After", "1");
    return busy;
  } catch (const Cancelled& error) {
    detail = error.what();
    return {503, "the server stopped this request: it took too long, or the server is stopping"};
  } catch (const OutOfMemory& error) {
    detail = error.what();
  } catch (const std::bad_alloc& error) {
    detail = error.what();
  } catch (const std::exception& error) {
    detail = error.what();
    return {500, "internal error"};
  } catch (...) {
    detail = "an exception of unknown type";
    return {500, "internal error"};
  }
  ApiError memory(503, "there is not enough memory for this request now");
  memory.headers.emplace_back("Retry-After", "1");
  return memory;
}

}  // namespace graft::serve
