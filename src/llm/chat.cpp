#include <algorithm>

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
    Json& entry = list.emplace_back(Json::object());
    entry["role"] = message.role;
    const auto checked = [](const std::string& text) -> const std::string& {
      GRAFT_CHECK(InvalidArgument, is_utf8(text), "a message is not UTF-8");
      return text;
    };
    std::vector<ChatPart> parts = message.parts;
    const bool with_images = std::ranges::any_of(parts, &ChatPart::image);
    GRAFT_CHECK(InvalidArgument, !with_images || model.info().images, model.info().architecture,
                " takes no pictures: the package is of text alone");
    if (parts.empty() && !model.info().images) {
      entry["content"] = checked(message.content);
      continue;
    }
    // Templates of models that take pictures go through the parts of a message.
    if (parts.empty()) parts.push_back({message.content, false});
    Json& content = entry["content"] = Json::array();
    for (const ChatPart& part : parts) {
      Json& one = content.emplace_back(Json::object());
      one["type"] = part.image ? "image" : "text";
      if (!part.image) one["text"] = checked(part.text);
    }
  }
  variables["add_generation_prompt"] = true;
  const Tokenizer& tokenizer = *model.tokenizer();
  return chat_template.empty() ? tokenizer.apply_chat_template(variables.dump())
                               : tokenizer.apply_chat_template(variables.dump(), chat_template);
} catch (...) {
  rethrow_typed();
}

ImagePrompt image_prompt(const LanguageModel& model, std::string_view text, std::span<const Image> images,
                         std::string_view chat_template) try {
  const auto& info = model.info().images;
  const bool has_places = info && !info->token.empty() && text.find(info->token) != std::string::npos;
  const bool has_template =
      !chat_template.empty() || (model.has_tokenizer() && !model.tokenizer()->chat_template().empty());
  if (images.empty() || !info || has_places || !has_template) return model.encode_with_images(text, images);
  ChatMessage message{"user", {}, std::vector<ChatPart>(images.size(), {{}, true})};
  message.parts.push_back({std::string(text), false});
  return model.encode_with_images(chat_prompt(model, {&message, 1}, chat_template), images, false);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
