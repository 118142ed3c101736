#include "serve/tools/tools.h"

#include "serve/api_error.h"
#include "serve/openai/structured.h"

namespace graft::serve {
namespace {

constexpr std::size_t kMostTools = 128;
constexpr std::string_view kMistralBegin = "[TOOL_CALLS][";

Json tool_of(const Json& given, const std::string& path) {
  Fields fields = Fields::of(given, path);
  if (const std::string type = fields.need_text("type"); type != "function")
    throw ApiError(400, "'" + path + ".type' is '" + type + "': only function is supported", path + ".type",
                   "unsupported_parameter");
  Fields function(fields.need_object("function"), path + ".function.");
  const std::string name = function.need_text("name");
  if (name.empty() || name.size() > 256)
    bad_request(function.path("name"), "'", function.path("name"), "' must have from 1 to 256 bytes");
  Json out = {{"name", name}};
  if (const auto description = function.text("description")) out["description"] = *description;
  if (const Json* parameters = function.object("parameters"))
    out["parameters"] = *parameters;
  else
    out["parameters"] = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  function.boolean("strict");
  function.end();
  fields.end();
  return {{"type", "function"}, {"function", std::move(out)}};
}

std::string name_of(const Json& tool) { return tool["function"]["name"].get<std::string>(); }

void read_choice(Fields& fields, ToolRequest& request) {
  const Json* choice = fields.find("tool_choice");
  request.choice = request.tools.empty() ? ToolRequest::Choice::none : ToolRequest::Choice::automatic;
  if (!choice) return;
  if (choice->is_string()) {
    const auto& name = choice->get_ref<const std::string&>();
    if (name == "none") {
      request.choice = ToolRequest::Choice::none;
      return;
    }
    if (name != "auto" && name != "required")
      bad_request("tool_choice", "'tool_choice' must be none, auto, required or a function, found '", name, "'");
    if (name == "required") request.choice = ToolRequest::Choice::required;
  } else if (choice->is_object()) {
    Fields inner(*choice, "tool_choice.");
    if (inner.need_text("type") != "function")
      throw ApiError(400, "'tool_choice.type' must be function", "tool_choice", "unsupported_parameter");
    Fields function(inner.need_object("function"), "tool_choice.function.");
    request.named = function.need_text("name");
    function.end();
    inner.end();
    request.choice = ToolRequest::Choice::required;
    bool known = false;
    for (const Json& tool : request.tools) known |= name_of(tool) == request.named;
    if (!known) bad_request("tool_choice", "'tool_choice' names '", request.named, "', which is no tool of 'tools'");
  } else {
    bad_request("tool_choice", "'tool_choice' must be a string or an object, found ", kind_of(*choice));
  }
  if (request.tools.empty()) bad_request("tool_choice", "'tool_choice' needs 'tools'");
}

}  // namespace

Json read_tools(Fields& fields) {
  Json tools = Json::array();
  if (const Json* given = fields.array("tools")) {
    if (given->size() > kMostTools)
      bad_request("tools", "'tools' has ", given->size(), " tools, at most ", kMostTools, " are allowed");
    for (std::size_t i = 0; i < given->size(); ++i) {
      tools.push_back(tool_of((*given)[i], str("tools[", i, ']')));
      for (std::size_t j = 0; j < i; ++j)
        if (name_of(tools[i]) == name_of(tools[j]))
          bad_request("tools", "'tools' has the function '", name_of(tools[i]), "' twice");
    }
  }
  return tools;
}

ToolRequest tools_of(Fields& fields, const ServedModel& model) {
  ToolRequest request;
  request.tools = read_tools(fields);
  read_choice(fields, request);
  request.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  if (request.choice == ToolRequest::Choice::none) request.tools = Json::array();
  if (!request.tools.empty() && tool_family(model.language->tokenizer()->chat_template()) == ToolFamily::none)
    throw ApiError(400, "'tools': the chat template of model '" + model.name + "' knows no tools, or in no known form",
                   "tools", "unsupported_parameter");
  return request;
}

AnswerStyle answer_style(const ServedModel& model, const ToolRequest& tools, std::string& prompt) {
  const std::string& chat_template = model.language->tokenizer()->chat_template();
  AnswerStyle style;
  style.reasoning = has_reasoning(chat_template);
  std::string_view end = prompt;
  while (end.ends_with('\n') || end.ends_with(' ')) end.remove_suffix(1);
  style.begins_in_reasoning = style.reasoning && end.ends_with("<think>");
  if (!tools.tools.empty()) style.family = tool_family(chat_template);
  if (tools.choice == ToolRequest::Choice::required && style.family == ToolFamily::mistral) {
    prompt += kMistralBegin;
    style.begun = kMistralBegin;
  }
  return style;
}

std::shared_ptr<const Grammar> grammar_of_calls(const ServedModel& model, const ToolRequest& tools,
                                                const AnswerStyle& style) {
  if (tools.choice != ToolRequest::Choice::required) return nullptr;
  using Kind = GrammarPart::Kind;
  const bool llama = style.family == ToolFamily::llama3, hermes = style.family == ToolFamily::hermes;
  std::vector<std::vector<GrammarPart>> calls;
  std::string key = "calls:" + std::to_string(static_cast<int>(style.family)) + (style.begins_in_reasoning ? "r" : "") +
                    (tools.parallel ? "p" : "");
  for (const Json& tool : tools.tools) {
    if (!tools.named.empty() && name_of(tool) != tools.named) continue;
    const std::string schema = tool["function"]["parameters"].dump();
    std::vector<GrammarPart> call;
    // Reasoning that has begun ends first.
    if (style.begins_in_reasoning) call = {{Kind::any_text, "</think>"}, {Kind::literal, "</think>\n\n"}};
    call.push_back({Kind::literal, str(hermes ? "<tool_call>\n" : "", "{\"name\": ", Json(name_of(tool)).dump(), ", \"",
                                       llama ? "parameters" : "arguments", "\": ")});
    call.push_back({Kind::json_schema, schema});
    call.push_back({Kind::literal, hermes ? "}\n</tool_call>" : "}"});
    calls.push_back(std::move(call));
    key += '\n' + name_of(tool) + '\n' + schema;
  }
  const bool one = !tools.parallel || !tools.named.empty() || style.begins_in_reasoning;
  return grammar_named(model, key, "tools", [&](auto vocabulary) {
    return Grammar::parts(calls, 1, one ? 1 : -1, hermes ? "\n" : llama ? "; " : ", ", vocabulary);
  });
}

}  // namespace graft::serve
