#include "serve/call.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "serve/log.h"

namespace graft::serve {

Call::Call(std::string id, Request request, std::shared_ptr<Exchange> exchange, Metrics& metrics, bool log,
           std::function<void()> on_end)
    : id_(std::move(id)),
      request_(std::move(request)),
      exchange_(std::move(exchange)),
      metrics_(metrics),
      log_(log),
      on_end_(std::move(on_end)) {}

Call::~Call() {
  if (ended_) return;
  try {
    if (gone_->load())
      ended(499);
    else
      fail(std::make_exception_ptr(InternalError("the request was dropped")));
  } catch (...) {  // without memory the exchange gives its own answer
    on_end_();
  }
}

void Call::note(const char* name, Json value) {
  const std::lock_guard lock(mutex_);
  fields_[name] = std::move(value);
}

void Call::respond(Response response) {
  const int status = response.status;
  response.headers.emplace_back("x-request-id", id_);
  std::ranges::copy(headers, std::back_inserter(response.headers));
  exchange_->respond(std::move(response));
  ended(status);
}

void Call::respond_json(const Json& json, int status) {
  Response response;
  response.status = status;
  response.body = dump(json);
  respond(std::move(response));
}

void Call::fail(std::exception_ptr thrown) {
  if (gone_->load()) return ended(499);
  std::string detail;
  const ApiError error = api_error_of(std::move(thrown), detail);
  if (error.status >= 500 || detail != error.what()) note("error", detail);
  const auto anthropic = [&] {
    Json json = {{"type", "error"}, {"request_id", id_}};
    json.update(read_json<Json>(error_body(error)));
    return json;
  };
  if (!began_) {
    Response response = error_response(error);
    if (errors == Errors::v2) response.body = dump({{"error", error.what()}});
    if (errors == Errors::anthropic) response.body = dump(anthropic());
    return respond(std::move(response));
  }
  if (errors == Errors::anthropic)
    named_event("error", anthropic());
  else
    event_text(error_body(error));
  exchange_->end();
  ended(error.status);
}

void Call::begin_events() {
  Response head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}, {"x-request-id", id_}};
  std::ranges::copy(headers, std::back_inserter(head.headers));
  exchange_->begin(std::move(head));
  began_ = true;
}

void Call::event(const Json& data) { event_text(dump(data)); }

// A line break within would end the field: JSON has none.
void Call::event_text(const std::string& data) { exchange_->send("data: " + data + "\n\n"); }

void Call::named_event(const std::string& name, const Json& data) {
  exchange_->send("event: " + name + "\ndata: " + dump(data) + "\n\n");
}

void Call::end_events() {
  event_text("[DONE]");
  end_stream();
}

void Call::end_stream() {
  exchange_->end();
  ended(200);
}

void Call::on_gone(std::function<void()> call) {
  exchange_->on_gone([gone = gone_, call = std::move(call)] {
    *gone = true;
    call();
  });
}

void Call::ended(int status) {
  if (std::exchange(ended_, true)) return;
  const double seconds = seconds_since(request_.start);
  try {
    metrics_.answered(route, status, seconds);
    if (log_) {
      Json fields = {
          {"id", id_}, {"method", request_.method}, {"route", route}, {"status", status}, {"ms", 1e3 * seconds}};
      {
        const std::lock_guard lock(mutex_);
        fields.update(fields_);
      }
      log_event(status >= 500 ? "error" : "info", "request", fields);
    }
  } catch (...) {  // the answer was given; without memory only its line is missing
  }
  on_end_();
}

}  // namespace graft::serve
