#include "cli/chat_server.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/json.h"

namespace graft::cli {
namespace {

constexpr std::array<std::string_view, 15> kServerFlags = {"--server",         "--model",
                                                           "--api-key-file",   "--system",
                                                           "--max-new-tokens", "--do-sample",
                                                           "--temperature",    "--top-k",
                                                           "--top-p",          "--min-p",
                                                           "--seed",           "--ignore-eos",
                                                           "--stop-strings",   "--repetition-penalty",
                                                           "--eos-token-id"};

constexpr std::string_view kData = "data:";

// Server-sent events of one line each, which may come in any parts: calls `found` with the data of each.
template <typename Found>
class Events {
 public:
  explicit Events(Found found) : found_(std::move(found)) {}
  void add(std::string_view part) {
    for (const char c : part)  // lines may end with both
      if (c != '\r') text_ += c;
    for (std::size_t end; (end = text_.find("\n\n")) != std::string::npos; text_.erase(0, end + 2)) {
      std::string_view event = std::string_view(text_).substr(0, end);
      if (!event.starts_with(kData)) continue;
      event.remove_prefix(kData.size());
      if (event.starts_with(' ')) event.remove_prefix(1);
      found_(event);
    }
  }
  const std::string& rest() const { return text_; }

 private:
  Found found_;
  std::string text_;
};

// The message of an error object; what came instead where it is none.
std::string message_of(const std::string& body) {
  const Json json = read_json<Json>(body, false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return error["message"].get<std::string>();
  }
  return "an answer that is no error object: " + body.substr(0, 200);
}

}  // namespace

void check_server_flags(const std::vector<std::string>& given) {
  for (const std::string& flag : given)
    if (std::ranges::find(kServerFlags, flag) == kServerFlags.end())
      throw CLI::ValidationError(flag, "plays no part with --server: the model runs there");
}

ChatServer::ChatServer(const ChatArgs& args) : url_(parse_http_url(args.server)) {
  if (url_.path.ends_with("/v1")) url_.path.resize(url_.path.size() - 3);
  if (!args.api_key_file.empty()) {
    std::string key = read_text(args.api_key_file);
    key.resize(std::min(key.find_first_of("\r\n"), key.size()));
    headers_.emplace_back("Authorization", "Bearer " + key);
  }
  const DecodeArgs& decode = args.decode;
  const GenerationOptions& options = decode.options;
  OrderedJson fields = {{"stream", true}};
  const auto give = [&](std::string_view flag, const char* name, const auto& value) {
    if (std::ranges::find(decode.given, flag) != decode.given.end()) fields[name] = value;
  };
  if (!args.server_model.empty()) fields["model"] = args.server_model;
  // As with a model of this machine: the most likely token unless something else is asked for.
  fields["temperature"] = decode.do_sample ? 1.0 : 0.0;
  give("--temperature", "temperature", options.temperature);
  give("--max-new-tokens", "max_tokens", options.max_new_tokens);
  give("--top-k", "top_k", options.top_k);
  give("--top-p", "top_p", options.top_p);
  give("--min-p", "min_p", options.min_p);
  give("--repetition-penalty", "repetition_penalty", options.repetition_penalty);
  give("--seed", "seed", options.seed);
  give("--ignore-eos", "ignore_eos", options.ignore_eos);
  give("--eos-token-id", "stop_token_ids", options.eos_token_ids);
  give("--stop-strings", "stop", options.stop_strings);
  fields_ = fields.dump();
}

Generation ChatServer::answer(const std::vector<ChatMessage>& messages,
                              const std::function<void(std::string_view)>& on_text, const CancelToken& cancel) const {
  OrderedJson fields = read_json<OrderedJson>(fields_);
  OrderedJson& list = fields["messages"] = OrderedJson::array();
  for (const ChatMessage& message : messages) list.push_back({{"role", message.role}, {"content", message.content}});
  Generation said;
  said.reason = FinishReason::eos;
  std::string error;
  Events events([&](std::string_view data) {
    const Json event = read_json<Json>(data, false);  // "[DONE]" is no JSON
    if (!event.is_object()) return;
    if (event.contains("error")) error = message_of(std::string(data));
    if (!event.contains("choices") || !event["choices"].is_array() || event["choices"].empty()) return;
    const Json& choice = event["choices"][0];
    if (is_text(choice.value("finish_reason", Json()), "length")) said.reason = FinishReason::length;
    const Json text = choice.value("delta", Json::object()).value("content", Json());
    if (!text.is_string()) return;
    said.text += text.get_ref<const std::string&>();
    on_text(text.get_ref<const std::string&>());
  });
  const std::string body = fields.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  const int status = post(
      url_, {"/v1/chat/completions", headers_, body}, [&](std::string_view part) { events.add(part); }, cancel);
  if (status == 0) {
    said.reason = FinishReason::cancelled;
    return said;
  }
  GRAFT_CHECK(InvalidArgument, status == 200, "the server refuses (status ", status, "): ", message_of(events.rest()));
  GRAFT_CHECK(InvalidArgument, error.empty(), "the server could not end the answer: ", error);
  return said;
}

}  // namespace graft::cli
