#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serve/api_error.h"
#include "serve/http/server.h"
#include "serve/json_fields.h"
#include "serve/metrics.h"

namespace graft::serve {

// What an answer takes of the moment. With it given, and without what says how busy the server was, the same request
// has the same answer.
struct Repeatable {
  std::int64_t created = 0;  // seconds since 1970
  std::uint64_t seed = 0;    // of a request that names none
};

// One request on its way through the server: its answer, and what is logged and counted of it. Functions may be called
// from any thread, one at a time but for cancelled().
class Call {
 public:
  // `id`: of the request, in the answer's x-request-id and in the log. `on_end`: called once, when it is over.
  Call(std::string id, Request request, std::shared_ptr<Exchange> exchange, Metrics& metrics, bool log,
       std::function<void()> on_end);
  ~Call();  // an answer that was not given is an error
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const std::string& id() const { return id_; }
  const Request& request() const { return request_; }
  std::string& body() { return request_.body; }
  std::string route = "other";  // set by the router
  std::uint64_t cache_salt = 0;
  Headers headers;  // of the answer, besides its own
  // How errors are written: {"error": {...}}, or {"error": "message"}, or {"type": "error", "error": {...}}.
  enum class Errors { openai, v2, anthropic } errors = Errors::openai;
  std::optional<Repeatable> repeatable;  // none: of the moment
  // Adds a field to the line of the log.
  void note(const char* name, Json value);

  void respond(Response response);
  void respond_json(const Json& json, int status = 200);
  // With what was thrown: as the answer, or as an event of a stream that has begun.
  void fail(std::exception_ptr thrown);
  // A stream of server-sent events.
  void begin_events();
  bool began() const { return began_; }
  void event(const Json& data);
  void event_text(const std::string& data);
  // With a name, for APIs that have such.
  void named_event(const std::string& name, const Json& data);
  void end_events();  // with OpenAI's "[DONE]"
  void end_stream();
  void on_gone(std::function<void()> call);
  Metrics& metrics() { return metrics_; }

 private:
  void ended(int status);

  std::string id_;
  Request request_;
  std::shared_ptr<Exchange> exchange_;
  Metrics& metrics_;
  bool log_, began_ = false, ended_ = false;
  std::function<void()> on_end_;
  std::mutex mutex_;
  Json fields_ = Json::object();
  std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace graft::serve
