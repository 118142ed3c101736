#include "base/check.h"
#include "base/json.h"
#include "base/rethrow.h"
#include "base/utf8.h"
#include "graft/llm.h"

namespace graft {

std::string chat_prompt(const LanguageModel& model, std::span<const ChatMessage> messages,
                        std::string_view chat_template) try {
  // Member by member: nlohmann's objects of initializer lists are lost where memory fails while they are filled.
  Json variables = Json::object();
  Json& list = variables["messages"] = Json::array();
  for (const ChatMessage& message : messages) {
    GRAFT_CHECK(InvalidArgument, is_utf8(message.content), "a message is not UTF-8");
    Json& entry = list.emplace_back(Json::object());
    entry["role"] = message.role;
    entry["content"] = message.content;
  }
  variables["add_generation_prompt"] = true;
  const Tokenizer& tokenizer = *model.tokenizer();
  return chat_template.empty() ? tokenizer.apply_chat_template(variables.dump())
                               : tokenizer.apply_chat_template(variables.dump(), chat_template);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
