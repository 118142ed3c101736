#include <algorithm>
#include <optional>

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
    GRAFT_CHECK(InvalidArgument, model.info().audio || std::ranges::none_of(parts, &ChatPart::audio),
                model.info().architecture, " takes no sound: the package is of other input");
    if (parts.empty() && !model.info().images && !model.info().audio) {
      entry["content"] = checked(message.content);
      continue;
    }
    // Templates of models that take pictures or sound go through the parts of a message.
    if (parts.empty()) parts.push_back({message.content, false});
    Json& content = entry["content"] = Json::array();
    for (const ChatPart& part : parts) {
      Json& one = content.emplace_back(Json::object());
      one["type"] = part.image ? "image" : part.audio ? "audio" : "text";
      if (!part.image && !part.audio) one["text"] = checked(part.text);
    }
  }
  variables["add_generation_prompt"] = true;
  const Tokenizer& tokenizer = *model.tokenizer();
  return chat_template.empty() ? tokenizer.apply_chat_template(variables.dump())
                               : tokenizer.apply_chat_template(variables.dump(), chat_template);
} catch (...) {
  rethrow_typed();
}

namespace {

// Where the text does not say where `count` of these stand, and there is a template: a message that begins with them.
std::optional<std::string> question(const LanguageModel& model, std::string_view text, std::size_t count,
                                    std::string_view token, const ChatPart& part, std::string_view chat_template) {
  const bool has_places = !token.empty() && text.find(token) != std::string::npos;
  const bool has_template =
      !chat_template.empty() || (model.has_tokenizer() && !model.tokenizer()->chat_template().empty());
  if (count == 0 || has_places || !has_template) return {};
  ChatMessage message{"user", {}, std::vector<ChatPart>(count, part)};
  message.parts.push_back({std::string(text)});
  return chat_prompt(model, {&message, 1}, chat_template);
}

}  // namespace

ImagePrompt image_prompt(const LanguageModel& model, std::string_view text, std::span<const Image> images,
                         std::string_view chat_template) try {
  const auto& info = model.info().images;
  const auto asked = info ? question(model, text, images.size(), info->token, {{}, true}, chat_template) : std::nullopt;
  return asked ? model.encode_with_images(*asked, images, false) : model.encode_with_images(text, images);
} catch (...) {
  rethrow_typed();
}

ImagePrompt audio_prompt(const LanguageModel& model, std::string_view text, std::span<const Audio> audio,
                         std::string_view chat_template) try {
  const auto& info = model.info().audio;
  const auto asked =
      info ? question(model, text, audio.size(), info->token, {{}, false, true}, chat_template) : std::nullopt;
  return asked ? model.encode_with_audio(*asked, audio, false) : model.encode_with_audio(text, audio);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
