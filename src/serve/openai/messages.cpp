#include "serve/openai/messages.h"

#include <algorithm>

#include "serve/api_error.h"
#include "serve/openai/text_request.h"

namespace graft::serve {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

// A string, or parts that are text.
std::string content_of(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    bad_request(path, "'", path, "' must be a string or an array of parts, found ", kind_of(content));
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string where = str(path, '[', i, ']');
    if (!content[i].is_object()) bad_request(where, "'", where, "' must be an object, found ", kind_of(content[i]));
    Fields part(content[i], where + ".");
    part.need("type");
    const std::string type = *part.text("type");
    if (type != "text")
      throw ApiError(400, str("'", where, ".type' is '", type, "': only text is supported"), where + ".type",
                     "unsupported_parameter");
    part.need("text");
    text += *part.text("text");
    part.end();
  }
  return text;
}

// As templates expect it: with the arguments as an object.
Json call_of(const Json& given, const std::string& path) {
  if (!given.is_object()) bad_request(path, "'", path, "' must be an object, found ", kind_of(given));
  Fields fields(given, path + ".");
  fields.accept_text("type");
  fields.integer("index", 0, INT32_MAX);
  Json call = {{"type", "function"}};
  if (const auto id = fields.text("id")) call["id"] = *id;
  fields.need("function");
  Fields function(*fields.object("function"), path + ".function.");
  function.need("name");
  function.need("arguments");
  const std::string name = *function.text("name"), arguments = *function.text("arguments");
  const Json parsed = parse_json(arguments.empty() ? "{}" : arguments);
  if (!parsed.is_object())
    bad_request(function.path("arguments"), "'", function.path("arguments"), "' must be a JSON object, found ",
                kind_of(parsed));
  function.end();
  fields.end();
  call["function"] = {{"name", name}, {"arguments", parsed}};
  return call;
}

Json message_of(const Json& given, const std::string& path) {
  if (!given.is_object()) bad_request(path, "'", path, "' must be an object, found ", kind_of(given));
  Fields fields(given, path + ".");
  fields.need("role");
  std::string role = *fields.text("role");
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
  Json message = {{"role", role}, {"content", content ? content_of(*content, fields.path("content")) : ""}};
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  if (role == "tool") {
    if (const auto id = fields.text("tool_call_id")) message["tool_call_id"] = *id;
  }
  if (assistant)
    if (const auto reasoning = fields.text("reasoning_content")) message["reasoning_content"] = *reasoning;
  if (const auto name = fields.text("name")) message["name"] = *name;
  fields.refuse("function_call", "is not supported; 'tool_calls' is");
  fields.refuse("refusal", "is not supported");
  fields.refuse("audio", "is not supported");
  fields.end();
  return message;
}

}  // namespace

std::string chat_prompt_of(Fields& fields, const ServedModel& model, const RequestLimits& limits, const Json& tools) {
  fields.need("messages");
  const Json& given = *fields.array("messages");
  if (given.empty()) bad_request("messages", "'messages' must have at least one message");
  Json variables = Json::object();
  if (const Json* more = fields.object("chat_template_kwargs")) variables = *more;
  for (const char* own : {"messages", "add_generation_prompt", "tools"})
    if (variables.contains(own))
      bad_request("chat_template_kwargs", "'chat_template_kwargs' must not have '", own, "'");
  Json messages = Json::array();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    messages.push_back(message_of(given[i], str("messages[", i, ']')));
    bytes += messages.back()["content"].get_ref<const std::string&>().size();
  }
  if (!tools.empty()) {
    bytes += tools.dump().size();
    variables["tools"] = tools;
  }
  check_prompt_bytes(bytes, limits);
  variables["messages"] = std::move(messages);
  variables["add_generation_prompt"] = true;
  try {
    return model.language->tokenizer()->apply_chat_template(variables.dump());
  } catch (const InvalidArgument& error) {
    throw ApiError(400, error.what(), "messages");
  }
}

}  // namespace graft::serve
