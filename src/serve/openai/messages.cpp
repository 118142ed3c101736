#include "serve/openai/messages.h"

#include <algorithm>

#include "serve/api_error.h"
#include "serve/openai/text_request.h"

namespace graft::serve {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

// As templates expect it: with the arguments as an object.
Json call_of(const Json& given, const std::string& path) {
  Fields fields = Fields::of(given, path);
  fields.accept_text("type");
  fields.integer("index", 0, INT32_MAX);
  Json call = {{"type", "function"}};
  if (const auto id = fields.text("id")) call["id"] = *id;
  Fields function(fields.need_object("function"), path + ".function.");
  const std::string name = function.need_text("name"), arguments = function.need_text("arguments");
  const Json parsed = parse_json(arguments.empty() ? "{}" : arguments);
  if (!parsed.is_object())
    bad_request(function.path("arguments"), "'", function.path("arguments"), "' must be a JSON object, found ",
                kind_of(parsed));
  function.end();
  fields.end();
  call["function"] = {{"name", name}, {"arguments", parsed}};
  return call;
}

// The picture of a part of type image_url: {"url": "data:image/png;base64,..."}.
Image image_of(const Json& given, const std::string& path, const std::vector<Image>& before) {
  Fields fields = Fields::of(given, path);
  const std::string url = fields.need_text("url");
  fields.refuse_unless("detail", "auto", "is supported as auto alone");
  fields.end();
  return image_of_url(url, path + ".url", before);
}

// As templates of models that take pictures or sound expect it: parts. Adds to `bytes` those of its texts.
Json parts_of(const Json& content, const std::string& path, const LanguageModelInfo& info, Media& media,
              std::size_t& bytes) {
  Json parts = Json::array();
  const auto add_text = [&](const std::string& text) {
    bytes += text.size();
    parts.push_back({{"type", "text"}, {"text", text}});
  };
  if (content.is_string()) {
    add_text(content.get<std::string>());
    return parts;
  }
  if (!content.is_array())
    bad_request(path, "'", path, "' must be a string or an array of parts, found ", kind_of(content));
  for (std::size_t i = 0; i < content.size(); ++i) {
    Fields part = Fields::of(content[i], str(path, '[', i, ']'));
    const std::string type = part.need_text("type");
    if (info.audio && type == "input_audio") {
      media.audio.push_back(audio_of(part.need_object("input_audio"), part.path("input_audio"), media.audio));
      parts.push_back({{"type", "audio"}});
    } else if (info.images && type == "image_url") {
      media.images.push_back(
          media.given.empty() ? image_of(part.need_object("image_url"), part.path("image_url"), media.images)
                              : std::move(media.given.at(*part.integer("image_url", 0, std::ssize(media.given) - 1))));
      parts.push_back({{"type", "image"}});
    } else if (type == "text") {
      add_text(part.need_text("text"));
    } else {
      throw ApiError(400,
                     str("'", part.path("type"), "' is '", type, "': text", info.images && info.audio ? ", " : " and ",
                         info.images ? "image_url" : "input_audio", info.images && info.audio ? " and input_audio" : "",
                         " are supported"),
                     part.path("type"), "unsupported_parameter");
    }
    part.end();
  }
  return parts;
}

// Adds to `media` what a model takes besides text, and to `bytes` those of the content's texts.
Json message_of(const Json& given, const std::string& path, const LanguageModelInfo& info, Media& media,
                std::size_t& bytes) {
  Fields fields = Fields::of(given, path);
  std::string role = fields.need_text("role");
  if (std::ranges::find(kRoles, role) == std::end(kRoles))
    bad_request(path + ".role", "'", path, ".role' is '", role,
                "'; roles are system, developer, user, assistant and tool");
  if (role == "developer") role = "system";  // as chat templates call it
  const bool assistant = role == "assistant";
  Json calls = Json::array();
  if (const Json* given_calls = fields.array("tool_calls")) {
    if (!assistant) bad_request(fields.path("tool_calls"), "'", path, ".tool_calls' is of assistants alone");
    for (std::size_t i = 0; i < given_calls->size(); ++i)
      calls.push_back(call_of((*given_calls)[i], str(path, ".tool_calls[", i, ']')));
  }
  const Json* content = calls.empty() ? &fields.need("content") : fields.find("content");
  Json message = {{"role", role}, {"content", ""}};
  if (content && (info.images || info.audio)) {
    message["content"] = parts_of(*content, fields.path("content"), info, media, bytes);
  } else if (content) {
    std::string text = text_of_parts(*content, fields.path("content"), {"text"}, {}, "\n");
    bytes += text.size();
    message["content"] = std::move(text);
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  if (role == "tool") {
    if (const auto id = fields.text("tool_call_id")) message["tool_call_id"] = *id;
  }
  if (assistant)
    if (const auto reasoning = fields.text("reasoning_content")) message["reasoning_content"] = *reasoning;
  if (const auto name = fields.text("name")) message["name"] = *name;
  fields.refuse("function_call", "is not supported; 'tool_calls' is");
  fields.refuse("refusal", "is not supported");
  fields.refuse_unless("annotations", Json::array());
  fields.refuse("audio", "is not supported");
  fields.end();
  return message;
}

}  // namespace

std::string text_of_parts(const Json& content, const std::string& path, std::initializer_list<std::string_view> types,
                          std::initializer_list<const char*> ignored, std::string_view separator) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    bad_request(path, "'", path, "' must be a string or an array of parts, found ", kind_of(content));
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    Fields part = Fields::of(content[i], str(path, '[', i, ']'));
    if (const std::string type = part.need_text("type"); std::ranges::find(types, type) == types.end())
      throw ApiError(400, str("'", part.path("type"), "' is '", type, "': only text is supported"), part.path("type"),
                     "unsupported_parameter");
    if (i > 0) text += separator;
    text += part.need_text("text");
    for (const char* name : ignored) part.array(name);
    part.end();
  }
  return text;
}

void check_template_variables(const Json& variables, const std::string& path) {
  for (const char* own : {"messages", "add_generation_prompt", "tools"})
    if (variables.contains(own)) bad_request(path, "'", path, "' must not have '", own, "'");
}

std::string chat_prompt_of(Fields& fields, const ServedModel& model, const RequestLimits& limits, const Json& tools,
                           bool add_generation_prompt, Media* media) {
  const Json& given = fields.need_array("messages");
  if (given.empty()) bad_request("messages", "'messages' must have at least one message");
  Json variables = model.template_variables;
  if (const Json* more = fields.object("chat_template_kwargs")) {
    check_template_variables(*more, "chat_template_kwargs");
    variables.update(*more);
  }
  Json messages = Json::array();
  std::size_t bytes = 0;
  Media left_out;
  for (std::size_t i = 0; i < given.size(); ++i)
    messages.push_back(
        message_of(given[i], str("messages[", i, ']'), model.language->info(), media ? *media : left_out, bytes));
  if (!tools.empty()) {
    bytes += tools.dump().size();
    variables["tools"] = tools;
  }
  check_prompt_bytes(bytes, limits);
  // Templates of gpt-oss have another name for it.
  if (const std::string& chat_template = model.language->tokenizer()->chat_template();
      chat_template.find("reasoning_content") == chat_template.npos &&
      chat_template.find("message.thinking") != chat_template.npos)
    for (Json& message : messages)
      if (const auto reasoning = message.find("reasoning_content"); reasoning != message.end()) {
        message["thinking"] = *reasoning;
        message.erase("reasoning_content");
      }
  variables["messages"] = std::move(messages);
  variables["add_generation_prompt"] = add_generation_prompt;
  try {
    return model.language->tokenizer()->apply_chat_template(variables.dump());
  } catch (const InvalidArgument& error) {
    throw ApiError(400, error.what(), "messages");
  }
}

}  // namespace graft::serve
