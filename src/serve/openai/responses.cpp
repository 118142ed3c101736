#include <algorithm>

#include "serve/openai/block_answer.h"
#include "serve/openai/messages.h"
#include "serve/openai/openai.h"

// OpenAI's Responses API. Nothing is kept between requests.
namespace graft::serve {
namespace {

const std::initializer_list<std::string_view> kTextTypes = {"input_text", "output_text", "text", "reasoning_text"};

// Text and pictures of a message or of a tool's output.
Json content_of(const Json& content, const std::string& path, GivenPictures& pictures) {
  if (content.is_string()) return content;
  if (!content.is_array())
    bad_request(path, "'", path, "' must be a string or an array of parts, found ", kind_of(content));
  ChatContent out;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string where = str(path, '[', i, ']');
    Fields part = Fields::of(content[i], where);
    const std::string type = part.need_text("type");
    if (type == "input_image") {
      pictures.check(where, type);
      part.refuse("file_id", "is not supported: nothing is kept; 'image_url' is");
      const std::string url = part.need_text("image_url");
      part.refuse_unless("detail", "auto", "is supported as auto alone");
      out.add_picture(pictures.add(image_of_url(url, part.path("image_url"), pictures.images())));
    } else if (std::ranges::find(kTextTypes, type) != kTextTypes.end()) {
      out.add_text(part.need_text("text"));
      part.array("annotations");
      part.array("logprobs");
    } else {
      throw ApiError(400,
                     str("'", where, ".type' is '", type,
                         "': ", pictures.taken() ? "text and input_image are supported" : "only text is supported"),
                     where + ".type", "unsupported_parameter");
    }
    part.end();
  }
  return std::move(out).json();
}

// Adds an item of the input to the messages: calls and reasoning belong to the assistant's message they stand beside.
void add_item(const Json& given, const std::string& path, Json& messages, GivenPictures& pictures) {
  Fields item = Fields::of(given, path);
  const std::string type = item.text("type").value_or("message");
  item.accept_text("id");
  item.accept_text("status");
  const auto assistant = [&](const char* unless) -> Json& {
    if (messages.empty() || !is_text(messages.back()["role"], "assistant") || messages.back().contains(unless))
      messages.push_back({{"role", "assistant"}, {"content", ""}});
    return messages.back();
  };
  if (type == "message") {
    const std::string role = item.need_text("role");
    Json content = content_of(item.need("content"), item.path("content"), pictures);
    item.accept_text("phase");
    const bool goes_on = role == "assistant" && !messages.empty() && is_text(messages.back()["role"], "assistant") &&
                         is_text(messages.back()["content"], "");
    if (goes_on)
      messages.back()["content"] = std::move(content);
    else
      messages.push_back({{"role", role}, {"content", std::move(content)}});
  } else if (type == "function_call") {
    for (const char* name : {"call_id", "name", "arguments"}) item.need(name);
    Json& message = assistant("");
    if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
    message["tool_calls"].push_back(
        {{"id", *item.text("call_id")},
         {"type", "function"},
         {"function", {{"name", *item.text("name")}, {"arguments", *item.text("arguments")}}}});
  } else if (type == "function_call_output") {
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", item.need_text("call_id")},
                        {"content", content_of(item.need("output"), item.path("output"), pictures)}});
  } else if (type == "reasoning") {
    item.array("summary");
    item.accept_text("encrypted_content");
    if (const Json* content = item.array("content"))
      assistant("reasoning_content")["reasoning_content"] =
          text_of_parts(*content, item.path("content"), kTextTypes, {"annotations", "logprobs"});
  } else {
    throw ApiError(400, "'" + path + ".type' is '" + type + "', which is not supported", path + ".type",
                   "unsupported_parameter");
  }
  item.end();
}

struct Asked {
  Json chat = Json::object();
  Json shown = Json::object();  // what the answer repeats of the request
  std::vector<Image> pictures = {};
};

void read_tools(Fields& fields, Asked& asked) {
  const Json* tools = fields.array("tools");
  asked.shown["tools"] = Json::array();
  if (tools && !tools->empty()) {
    Json out = Json::array();
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const std::string where = str("tools[", i, ']');
      if (!(*tools)[i].is_object()) bad_request(where, "'", where, "' must be an object, found ", kind_of((*tools)[i]));
      Json function = (*tools)[i];
      const Json type = function.contains("type") ? function["type"] : Json();
      if (!is_text(type, "function"))
        throw ApiError(400, "'" + where + ".type' must be function: other tools are not supported", where + ".type",
                       "unsupported_parameter");
      Json shown = {
          {"type", "function"}, {"name", ""}, {"description", nullptr}, {"parameters", nullptr}, {"strict", true}};
      shown.update(function);
      asked.shown["tools"].push_back(std::move(shown));
      function.erase("type");
      out.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    asked.chat["tools"] = std::move(out);
  }
  const Json* choice = fields.find("tool_choice");
  asked.shown["tool_choice"] = choice ? *choice : Json("auto");
  if (choice && choice->is_object()) {
    Fields inner(*choice, "tool_choice.");
    asked.chat["tool_choice"] = {{"type", inner.need_text("type")}, {"function", {{"name", inner.need_text("name")}}}};
    inner.end();
  } else if (choice && !(is_text(*choice, "auto") && !asked.chat.contains("tools"))) {
    asked.chat["tool_choice"] = *choice;
  }
  const auto parallel = fields.boolean("parallel_tool_calls");
  if (parallel) asked.chat["parallel_tool_calls"] = *parallel;
  asked.shown["parallel_tool_calls"] = parallel.value_or(true);
}

void read_format(Fields& fields, Asked& asked) {
  asked.shown["text"] = {{"format", {{"type", "text"}}}};
  const Json* text = fields.object("text");
  if (!text) return;
  Fields inner(*text, "text.");
  inner.refuse_unless("verbosity", "medium");
  if (const Json* format = inner.object("format")) {
    asked.shown["text"]["format"] = *format;
    Fields form(*format, "text.format.");
    if (form.need_text("type") == "json_schema") {
      Json schema = *format;
      schema.erase("type");
      asked.chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
    } else {
      asked.chat["response_format"] = *format;
    }
  }
  inner.end();
}

Asked read(const Json& json, const App& app) {
  Fields fields(json);
  GivenPictures pictures(app.language_model_of(fields)->language->info());
  Asked asked;
  for (const char* name : {"model", "temperature", "top_p", "stream", "user", "safety_identifier", "prompt_cache_key",
                           "metadata", "service_tier", "priority"})
    if (const Json* found = fields.find(name)) asked.chat[name] = *found;
  const auto most = fields.integer("max_output_tokens", 1, INT32_MAX);
  if (most) asked.chat["max_tokens"] = *most;
  asked.shown["max_output_tokens"] = most ? Json(*most) : Json();
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"})
    asked.shown[name] = asked.chat.contains(name) ? asked.chat[name] : Json();
  asked.shown["metadata"] = asked.chat.contains("metadata") ? asked.chat["metadata"] : Json::object();
  if (const Json* options = fields.object("stream_options")) {
    Fields inner(*options, "stream_options.");
    inner.refuse_unless("include_obfuscation", false);
    inner.end();
  }
  Json messages = Json::array();
  const auto instructions = fields.text("instructions");
  asked.shown["instructions"] = instructions ? Json(*instructions) : Json();
  if (instructions) messages.push_back({{"role", "system"}, {"content", *instructions}});
  const Json& input = fields.need("input");
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
  } else {
    if (!input.is_array())
      bad_request("input", "'input' must be a string or an array of items, found ", kind_of(input));
    for (std::size_t i = 0; i < input.size(); ++i) add_item(input[i], str("input[", i, ']'), messages, pictures);
  }
  if (messages.empty()) bad_request("input", "'input' has no items");
  asked.chat["messages"] = std::move(messages);
  asked.pictures = std::move(pictures).take();
  read_tools(fields, asked);
  read_format(fields, asked);
  fields.boolean("store");  // nothing is: an answer cannot be asked for again
  fields.refuse("previous_response_id", "is not supported: nothing is kept; send the items again");
  for (const char* name : {"conversation", "prompt", "max_tool_calls", "top_logprobs", "context_management"})
    fields.refuse(name);
  fields.refuse_unless("background", false);
  fields.refuse_unless("truncation", "disabled");
  if (const Json* reasoning = fields.object("reasoning"))
    for (const auto& [name, value] : reasoning->items())
      if (!value.is_null())
        throw ApiError(400, "'reasoning." + name + "' is not supported: the chat template decides", "reasoning." + name,
                       "unsupported_parameter");
  if (const Json* include = fields.array("include"))
    for (const Json& one : *include)
      if (!is_text(one, "reasoning.encrypted_content"))
        throw ApiError(400, "'include' has " + one.dump() + ", which is not supported", "include",
                       "unsupported_parameter");
  fields.end();
  return asked;
}

class Writer : public BlockWriter {
 public:
  Writer(std::string id, std::string model, Json shown)
      : id_(std::move(id)), model_(std::move(model)), shown_(std::move(shown)) {
    created_ = unix_seconds();
  }

  void begin(Call& call, std::size_t) override {
    const Json response = response_json("in_progress", Json::array());
    send(call, "response.created", {{"response", response}});
    send(call, "response.in_progress", {{"response", response}});
  }
  void open(Call& call, const Block& block) override {
    Json item = item_json(block, false);
    send(call, "response.output_item.added", {{"output_index", block.index}, {"item", std::move(item)}});
    if (block.kind != AnswerPart::Kind::call)
      send(call, "response.content_part.added", at(block, {{"part", part_json(block, "")}}));
  }
  void delta(Call& call, const Block& block, const std::string& text) override {
    Json fields = {{"delta", text}};
    if (block.kind == AnswerPart::Kind::content) fields["logprobs"] = Json::array();
    send(call, std::string(event_of(block)) + ".delta", at(block, std::move(fields)));
  }
  void close(Call& call, const Block& block) override {
    if (block.kind == AnswerPart::Kind::call) {
      send(call, "response.function_call_arguments.done", at(block, {{"name", block.name}, {"arguments", block.text}}));
    } else {
      Json fields = {{"text", block.text}};
      if (block.kind == AnswerPart::Kind::content) fields["logprobs"] = Json::array();
      send(call, std::string(event_of(block)) + ".done", at(block, std::move(fields)));
      send(call, "response.content_part.done", at(block, {{"part", part_json(block, block.text)}}));
    }
    Json item = item_json(block, true);
    send(call, "response.output_item.done", {{"output_index", block.index}, {"item", std::move(item)}});
  }
  void end(Call& call, const std::vector<Block>& blocks, const Outcome& outcome) override {
    send(call, outcome.cut_off() ? "response.incomplete" : "response.completed",
         {{"response", whole(blocks, outcome)}});
    call.end_stream();
  }
  Json whole(const std::vector<Block>& blocks, const Outcome& outcome) override {
    Json output = Json::array();
    for (const Block& block : blocks) output.push_back(item_json(block, true));
    Json response = response_json(outcome.cut_off() ? "incomplete" : "completed", std::move(output));
    if (outcome.cut_off())
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    else
      response["completed_at"] = unix_seconds();
    response["usage"] = {{"input_tokens", outcome.prompt_tokens},
                         {"input_tokens_details", {{"cached_tokens", outcome.cached_tokens}}},
                         {"output_tokens", outcome.new_tokens},
                         {"output_tokens_details", {{"reasoning_tokens", 0}}},
                         {"total_tokens", outcome.prompt_tokens + outcome.new_tokens}};
    return response;
  }

 private:
  void send(Call& call, const std::string& type, const Json& fields) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    call.named_event(type, event);
  }
  Json response_json(const char* status, Json output) const {
    Json json = {{"id", "resp_" + id_},
                 {"object", "response"},
                 {"created_at", created_},
                 {"completed_at", nullptr},
                 {"status", status},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"model", model_},
                 {"output", std::move(output)},
                 {"previous_response_id", nullptr},
                 {"store", false},
                 {"background", false},
                 {"service_tier", "default"},
                 {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                 {"max_tool_calls", nullptr},
                 {"top_logprobs", 0},
                 {"truncation", "disabled"},
                 {"usage", nullptr}};
    json.update(shown_);
    return json;
  }
  std::string item_id(const Block& block) const {
    const char* prefix = block.kind == AnswerPart::Kind::call        ? "fc_"
                         : block.kind == AnswerPart::Kind::reasoning ? "rs_"
                                                                     : "msg_";
    return prefix + id_ + std::to_string(block.index);
  }
  static const char* event_of(const Block& block) {
    if (block.kind == AnswerPart::Kind::call) return "response.function_call_arguments";
    return block.kind == AnswerPart::Kind::reasoning ? "response.reasoning_text" : "response.output_text";
  }
  Json at(const Block& block, Json fields) const {
    Json json = {{"item_id", item_id(block)}, {"output_index", block.index}};
    if (block.kind != AnswerPart::Kind::call) json["content_index"] = 0;
    json.update(fields);
    return json;
  }
  static Json part_json(const Block& block, const std::string& text) {
    if (block.kind == AnswerPart::Kind::reasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  }
  Json item_json(const Block& block, bool complete) const {
    const char* status = complete ? "completed" : "in_progress";
    const std::string text = complete ? block.text : "";
    if (block.kind == AnswerPart::Kind::call)
      return {{"type", "function_call"}, {"id", item_id(block)}, {"call_id", block.id},
              {"name", block.name},      {"arguments", text},    {"status", status}};
    Json content = complete ? Json::array({part_json(block, text)}) : Json::array();
    if (block.kind == AnswerPart::Kind::reasoning)
      return {{"type", "reasoning"},
              {"id", item_id(block)},
              {"summary", Json::array()},
              {"content", std::move(content)},
              {"status", status}};
    return {{"type", "message"},
            {"id", item_id(block)},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }

  std::string id_, model_;
  Json shown_;
  std::int64_t created_ = 0, sequence_ = 0;
};

}  // namespace

void responses(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  Asked asked = read(parse_object(call->request().body), app);
  TextRequest request = read_chat(asked.chat, app, std::move(asked.pictures));
  call->body() = {};
  asked.shown["temperature"] = request.options.temperature;
  asked.shown["top_p"] = request.options.top_p;
  asked.shown["presence_penalty"] = request.request.presence_penalty;
  asked.shown["frequency_penalty"] = request.request.frequency_penalty;
  auto writer = std::make_unique<Writer>(call->id(), request.model->name, std::move(asked.shown));
  answer_blocks(app, call, std::move(request), std::move(writer));
}

}  // namespace graft::serve
