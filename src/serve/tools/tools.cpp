#include "serve/tools/tools.h"

#include "base/trim.h"
#include "serve/api_error.h"
#include "serve/openai/structured.h"

namespace graft::serve {
namespace {

constexpr std::size_t kMostTools = 128;

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

namespace {

// How a family begins the first call of an answer, how it writes a call's name and what follows the arguments, where
// the arguments come as JSON (which all parsers take).
struct CallForm {
  std::string_view begin, before_name, after_name, after, separator;
  bool json_name = false;  // the name as a JSON string
};

CallForm call_form(ToolFamily family, std::string_view chat_template) {
  switch (family) {
    case ToolFamily::hermes:
    case ToolFamily::qwen_xml:
      return {"", "<tool_call>\n{\"name\": ", ", \"arguments\": ", "}\n</tool_call>", "\n", true};
    case ToolFamily::llama3:
      return {"", "{\"name\": ", ", \"parameters\": ", "}", "; ", true};
    case ToolFamily::mistral:
      return {"[TOOL_CALLS][", "{\"name\": ", ", \"arguments\": ", "}", ", ", true};
    case ToolFamily::mistral_args:
      return {"[TOOL_CALLS]", "", "[ARGS]", "", "[TOOL_CALLS]"};
    case ToolFamily::deepseek:
      if (chat_template.find("```json") != chat_template.npos)
        return {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n",
                "\n```<｜tool▁call▁end｜>", "\n"};
      return {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", ""};
    case ToolFamily::gemma:
      return {"<|tool_call>", "call:", "", "<tool_call|>", "<|tool_call>"};
    case ToolFamily::function_gemma:
      return {"<start_function_call>", "call:", "", "<end_function_call>", "<start_function_call>"};
    case ToolFamily::harmony:
      return {"<|channel|>commentary to=functions.", "", " <|constrain|>json<|message|>", "", ""};
    case ToolFamily::none:
      break;
  }
  return {};
}

bool may_call(const Json& tool, const ToolRequest& tools) {
  return tools.named.empty() || name_of(tool) == tools.named;
}

}  // namespace

AnswerStyle answer_style(const ServedModel& model, const ToolRequest& tools, std::string& prompt) {
  const std::string& chat_template = model.language->tokenizer()->chat_template();
  const ToolFamily family = tool_family(chat_template);
  AnswerStyle style;
  style.channels = family == ToolFamily::harmony;
  style.reasoning = style.channels ? ReasoningTags() : reasoning_tags(chat_template);
  const std::string_view begin = trimmed(style.reasoning.begin);
  style.begins_in_reasoning = !begin.empty() && trimmed(prompt).ends_with(begin);
  if (!tools.tools.empty()) {
    style.family = family;
    style.tools = std::make_shared<const Json>(tools.tools);
  }
  // A call that must come is begun in the prompt, where its tags are the tokens that the model knows.
  if (tools.choice == ToolRequest::Choice::required && !style.begins_in_reasoning) {
    style.begun = call_form(family, chat_template).begin;
    prompt += style.begun;
  }
  return style;
}

std::vector<std::int64_t> special_tags_of(const Tokenizer& tokenizer, const AnswerStyle& style) {
  std::vector<std::string_view> tags = tags_of(style.channels ? ToolFamily::harmony : style.family);
  // A tag with a word behind it begins with its token.
  const std::string_view begin = style.reasoning.begin;
  tags.push_back(begin.substr(0, begin.find('>') + 1));
  tags.push_back(begin);
  tags.push_back(style.reasoning.end);
  std::vector<std::int64_t> ids;
  for (const std::string_view tag : tags)
    if (const auto id = tokenizer.find(tag); !tag.empty() && id && tokenizer.is_special(*id)) ids.push_back(*id);
  return ids;
}

std::shared_ptr<const Grammar> grammar_of_calls(const ServedModel& model, const ToolRequest& tools,
                                                const AnswerStyle& style) {
  if (tools.choice != ToolRequest::Choice::required) return nullptr;
  using Kind = GrammarPart::Kind;
  const CallForm form = call_form(style.family, model.language->tokenizer()->chat_template());
  std::vector<std::vector<GrammarPart>> calls;
  std::string key = "calls:" + std::to_string(static_cast<int>(style.family)) + (style.begins_in_reasoning ? "r" : "") +
                    (tools.parallel ? "p" : "");
  for (const Json& tool : tools.tools) {
    if (!may_call(tool, tools)) continue;
    const std::string schema = tool["function"]["parameters"].dump();
    std::vector<GrammarPart> call;
    // Reasoning that has begun ends first.
    if (style.begins_in_reasoning) {
      const std::string end(style.reasoning.end);
      call = {{Kind::any_text, end}, {Kind::literal, str(end, "\n\n", form.begin)}};
    }
    const std::string name = name_of(tool);
    call.push_back({Kind::literal, str(form.before_name, form.json_name ? Json(name).dump() : name, form.after_name)});
    call.push_back({Kind::json_schema, schema});
    if (!form.after.empty()) call.push_back({Kind::literal, std::string(form.after)});
    calls.push_back(std::move(call));
    key += '\n' + name + '\n' + schema;
  }
  // Channels hold a call each.
  const bool one = !tools.parallel || !tools.named.empty() || style.begins_in_reasoning || style.channels;
  return grammar_named(model, key, "tools", [&](auto vocabulary) {
    return Grammar::parts(calls, 1, one ? 1 : -1, form.separator, vocabulary);
  });
}

}  // namespace graft::serve
