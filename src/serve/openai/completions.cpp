#include "serve/openai/openai.h"
#include "serve/openai/text_answer.h"

namespace graft::serve {
namespace {

// A token that is a part of a character has no text of its own: its bytes are spelled, as OpenAI's API does.
std::string spelled(const std::string& bytes) {
  const Json as_text = read_json<Json>(dump(bytes));
  if (as_text.get_ref<const std::string&>() == bytes) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) {
    constexpr char digits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
  }
  return out;
}

std::size_t characters(const std::string& bytes) {
  std::size_t count = 0;
  for (const char c : bytes) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

class CompletionFormat : public TextFormat {
 public:
  const char* id_prefix() const override { return "cmpl-"; }
  const char* object(bool) const override { return "text_completion"; }
  Json first_part() const override { return nullptr; }
  Json part(const std::string& text) const override { return whole(text); }
  Json whole(const std::string& text) const override { return {{"text", text}}; }
  Json part(const AnswerPart& part, const CallIds&) const override { return whole(part.text); }
  Json whole(const std::vector<AnswerPart>& parts, const CallIds&) const override {
    std::string text;
    for (const AnswerPart& part : parts) text += part.text;
    return whole(text);
  }

  Json logprobs(const std::vector<TokenEntry>& entries, std::size_t offset) const override {
    Json tokens = Json::array(), of_tokens = Json::array(), top = Json::array(), offsets = Json::array();
    for (const TokenEntry& entry : entries) {
      tokens.push_back(spelled(entry.bytes));
      of_tokens.push_back(entry.known ? Json(json_logprob(entry.logprob)) : Json());
      Json likely = Json::object();
      for (const auto& [id, bytes, logprob] : entry.top) likely.emplace(spelled(bytes), json_logprob(logprob));
      if (entry.known) likely.emplace(spelled(entry.bytes), json_logprob(entry.logprob));
      top.push_back(entry.known ? std::move(likely) : Json());
      offsets.push_back(offset);
      offset += characters(entry.bytes);
    }
    return {{"tokens", std::move(tokens)},
            {"token_logprobs", std::move(of_tokens)},
            {"top_logprobs", std::move(top)},
            {"text_offset", std::move(offsets)}};
  }
};

}  // namespace

const TextFormat& completion_format() {
  static const CompletionFormat format;
  return format;
}

void completions(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  TextRequest request = read_completion(parse_object(call->request().body), app);
  call->body() = {};
  answer_texts(app, call, std::move(request), completion_format());
}

}  // namespace graft::serve
