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

std::string error_body(int status, const std::string& message) { return error_body(ApiError(status, message)); }

std::string error_body(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json json = {{"message", error.what()},
               {"type", error.type.empty() ? type_of(error.status) : error.type},
               {"param", or_null(error.param)},
               {"code", or_null(error.code)}};
  for (const auto& [name, number] : error.numbers) json[name] = number;
  return dump({{"error", std::move(json)}});
}

// The code is OpenAI's, type and numbers are llama-server's: clients know one or the other.
ApiError context_exceeded(std::int64_t tokens, std::int64_t context, const std::string& param) {
  ApiError error(400, str("the prompt has ", tokens, " tokens, which exceeds the available context size of ", context),
                 param, "context_length_exceeded");
  error.type = "exceed_context_size_error";
  error.numbers = {{"n_prompt_tokens", tokens}, {"n_ctx", context}};
  return error;
}

Response error_response(const ApiError& error) {
  Response response;
  response.status = error.status;
  response.body = error_body(error);
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
  } catch (const Unavailable& error) {
    detail = error.what();
    ApiError lost(503, "a stage of the model is gone; try again", {}, "stage_lost");
    lost.headers.emplace_back("Retry-After", "1");
    return lost;
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
