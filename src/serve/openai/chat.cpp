#include "serve/openai/openai.h"
#include "serve/openai/text_answer.h"

namespace graft::serve {
namespace {

Json token_json(const std::string& bytes, float logprob) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", bytes}, {"logprob", json_logprob(logprob)}, {"bytes", std::move(list)}};
}

class ChatFormat : public TextFormat {
 public:
  const char* id_prefix() const override { return "chatcmpl-"; }
  const char* object(bool stream) const override { return stream ? "chat.completion.chunk" : "chat.completion"; }
  Json first_part() const override { return {{"delta", {{"role", "assistant"}, {"content", nullptr}}}}; }
  Json part(const std::string& text) const override { return {{"delta", {{"content", text}}}}; }
  Json whole(const std::string& text) const override {
    Json message = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}, {"annotations", Json::array()}};
    return {{"message", std::move(message)}};
  }

  Json part(const AnswerPart& part, const CallIds& calls) const override {
    const auto call = [&](Json fields) {
      Json json = {{"index", calls.size() - 1}};
      json.update(fields);
      return Json{{"delta", {{"tool_calls", Json::array({std::move(json)})}}}};
    };
    switch (part.kind) {
      case AnswerPart::Kind::reasoning:
        return {{"delta", {{"reasoning_content", part.text}}}};
      case AnswerPart::Kind::call:
        return call(
            {{"id", calls.back()}, {"type", "function"}, {"function", {{"name", part.text}, {"arguments", ""}}}});
      case AnswerPart::Kind::arguments:
        return call({{"function", {{"arguments", part.text}}}});
      default:
        return this->part(part.text);
    }
  }

  Json whole(const std::vector<AnswerPart>& parts, const CallIds& ids) const override {
    std::string content, reasoning;
    Json calls = Json::array();
    for (const AnswerPart& part : parts) {
      if (part.kind == AnswerPart::Kind::content) content += part.text;
      if (part.kind == AnswerPart::Kind::reasoning) reasoning += part.text;
      if (part.kind == AnswerPart::Kind::call)
        calls.push_back(
            {{"id", ids[calls.size()]}, {"type", "function"}, {"function", {{"name", part.text}, {"arguments", ""}}}});
      if (part.kind == AnswerPart::Kind::arguments) {
        Json& arguments = calls.back()["function"]["arguments"];
        arguments = arguments.get<std::string>() + part.text;
      }
    }
    Json json = whole(content);
    Json& message = json["message"];
    if (!reasoning.empty()) message["reasoning_content"] = std::move(reasoning);
    if (!calls.empty()) {
      if (content.empty()) message["content"] = nullptr;
      message["tool_calls"] = std::move(calls);
    }
    return json;
  }

  Json logprobs(const std::vector<TokenEntry>& entries, std::size_t) const override {
    Json content = Json::array();
    for (const TokenEntry& entry : entries) {
      Json token = token_json(entry.bytes, entry.logprob);
      token["top_logprobs"] = Json::array();
      for (const auto& [id, bytes, logprob] : entry.top) token["top_logprobs"].push_back(token_json(bytes, logprob));
      content.push_back(std::move(token));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
};

}  // namespace

const TextFormat& chat_format() {
  static const ChatFormat format;
  return format;
}

void chat_input_tokens(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const TextRequest request = read_chat(parse_object(call->request().body), app);
  call->note("model", request.model->name);
  call->respond_json({{"object", "chat.completion.input_tokens"}, {"input_tokens", request.prompts[0].size()}});
}

void chat_completions(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  TextRequest request = read_chat(parse_object(call->request().body), app);
  call->body() = {};
  answer_texts(app, call, std::move(request), chat_format());
}

}  // namespace graft::serve
