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

Json message_of(const Json& given, const std::string& path) {
  if (!given.is_object()) bad_request(path, "'", path, "' must be an object, found ", kind_of(given));
  Fields fields(given, path + ".");
  fields.need("role");
  std::string role = *fields.text("role");
  if (std::ranges::find(kRoles, role) == std::end(kRoles))
    bad_request(path + ".role", "'", path, ".role' is '", role,
                "'; roles are system, developer, user, assistant and tool");
  if (role == "tool")
    throw ApiError(400, str("'", path, ".role' is 'tool': tools are not supported"), path + ".role",
                   "unsupported_parameter");
  if (role == "developer") role = "system";  // as chat templates call it
  Json message = {{"role", role}, {"content", content_of(fields.need("content"), fields.path("content"))}};
  if (const auto name = fields.text("name")) message["name"] = *name;
  fields.refuse("tool_calls", "is not supported");
  fields.refuse("function_call", "is not supported");
  fields.refuse("refusal", "is not supported");
  fields.refuse("audio", "is not supported");
  fields.end();
  return message;
}

}  // namespace

std::string chat_prompt_of(Fields& fields, const ServedModel& model, const RequestLimits& limits) {
  fields.need("messages");
  const Json& given = *fields.array("messages");
  if (given.empty()) bad_request("messages", "'messages' must have at least one message");
  Json variables = Json::object();
  if (const Json* more = fields.object("chat_template_kwargs")) variables = *more;
  for (const char* own : {"messages", "add_generation_prompt"})
    if (variables.contains(own))
      bad_request("chat_template_kwargs", "'chat_template_kwargs' must not have '", own, "'");
  Json messages = Json::array();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    messages.push_back(message_of(given[i], str("messages[", i, ']')));
    bytes += messages.back()["content"].get_ref<const std::string&>().size();
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
