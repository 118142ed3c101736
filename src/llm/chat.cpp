#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/rethrow.h"
#include "base/utf8.h"
#include "graft/llm.h"

namespace graft {

std::string chat_prompt(const LanguageModel& model, std::span<const ChatMessage> messages,
                        std::string_view chat_template) try {
  nlohmann::json list = nlohmann::json::array();
  for (const ChatMessage& message : messages) {
    GRAFT_CHECK(InvalidArgument, is_utf8(message.content), "a message is not UTF-8");
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  const std::string variables = nlohmann::json{{"messages", list}, {"add_generation_prompt", true}}.dump();
  const Tokenizer& tokenizer = *model.tokenizer();
  return chat_template.empty() ? tokenizer.apply_chat_template(variables)
                               : tokenizer.apply_chat_template(variables, chat_template);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
