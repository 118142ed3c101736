#include "serve/anthropic/anthropic.h"
#include "serve/openai/block_answer.h"
#include "serve/openai/media.h"

namespace graft::serve {
namespace {

// The part of a chat that stands for a block of type image, {"source": {"type": "base64", "media_type": "image/png",
// "data": "..."}}.
Json picture_of(Fields& block, const std::string& path, GivenPictures& pictures) {
  pictures.check(path, "image");
  Fields source(block.need_object("source"), path + ".source.");
  if (const std::string type = source.need_text("type"); type != "base64")
    throw ApiError(400, "'" + source.path("type") + "' is '" + type + "': base64 is supported, and nothing is fetched",
                   source.path("type"), "unsupported_parameter");
  if (const std::string type = source.need_text("media_type"); !is_image_type(type))
    bad_request(source.path("media_type"), "'", source.path("media_type"), "' is '", type,
                "'; types are image/png, image/jpeg and image/bmp");
  const std::string data = source.need_text("data");
  source.end();
  return pictures.add(image_of_base64(data, source.path("data"), pictures.images()));
}

// A string, or blocks of text, and of pictures where these may be (not null).
Json content_of(const Json& content, const std::string& path, GivenPictures* pictures) {
  if (content.is_string()) return content;
  if (!content.is_array())
    bad_request(path, "'", path, "' must be a string or an array of blocks, found ", kind_of(content));
  ChatContent out;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string where = str(path, '[', i, ']');
    Fields block = Fields::of(content[i], where);
    const std::string type = block.need_text("type");
    block.object("cache_control");  // what is cached is the server's matter
    if (type == "text")
      out.add_text(block.need_text("text"));
    else if (type == "image" && pictures)
      out.add_picture(picture_of(block, where, *pictures));
    else
      throw ApiError(
          400,
          str("'", where, ".type' is '", type, "': ",
              pictures && pictures->taken() ? "text and image are supported here" : "only text is supported here"),
          where + ".type", "unsupported_parameter");
    block.end();
  }
  return std::move(out).json();
}

// A message of this API is one or several of OpenAI's: results of tools are messages there.
void add_message(const Json& given, const std::string& path, Json& out, GivenPictures& pictures) {
  Fields fields = Fields::of(given, path);
  const std::string role = fields.need_text("role");
  if (role != "user" && role != "assistant")
    bad_request(path + ".role", "'", path, ".role' must be user or assistant, found '", role, "'");
  const Json& content = fields.need("content");
  fields.end();
  Json message = {{"role", role}};
  if (content.is_string()) {
    message["content"] = content;
    out.push_back(std::move(message));
    return;
  }
  if (!content.is_array())
    bad_request(path + ".content", "'", path, ".content' must be a string or an array of blocks, found ",
                kind_of(content));
  std::string reasoning;
  ChatContent parts;
  Json calls = Json::array();
  bool any_result = false;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string where = str(path, ".content[", i, ']');
    Fields block = Fields::of(content[i], where);
    const std::string type = block.need_text("type");
    block.object("cache_control");  // what is cached is the server's matter
    if (type == "text") {
      parts.add_text(block.need_text("text"));
      block.refuse_unless("citations", Json::array());
    } else if (type == "image") {
      parts.add_picture(picture_of(block, where, pictures));
    } else if (type == "thinking" && role == "assistant") {
      reasoning += block.need_text("thinking");
      block.accept_text("signature");
    } else if (type == "tool_use" && role == "assistant") {
      for (const char* name : {"id", "name", "input"}) block.need(name);
      block.object("caller");
      calls.push_back({{"id", *block.text("id")},
                       {"type", "function"},
                       {"function", {{"name", *block.text("name")}, {"arguments", block.object("input")->dump()}}}});
    } else if (type == "tool_result" && role == "user") {
      block.need("tool_use_id");
      const Json* result = block.find("content");
      block.boolean("is_error");
      out.push_back({{"role", "tool"},
                     {"tool_call_id", *block.text("tool_use_id")},
                     {"content", result ? content_of(*result, where + ".content", &pictures) : Json("")}});
      any_result = true;
    } else {
      throw ApiError(400, "'" + where + ".type' is '" + type + "', which is not supported here", where + ".type",
                     "unsupported_parameter");
    }
    block.end();
  }
  message["content"] = std::move(parts).json();
  if (any_result && is_text(message["content"], "")) return;
  if (!reasoning.empty()) message["reasoning_content"] = std::move(reasoning);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  out.push_back(std::move(message));
}

void read_tools(Fields& fields, Json& chat) {
  if (const Json* tools = fields.array("tools"); tools && !tools->empty()) {
    Json out = Json::array();
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const std::string where = str("tools[", i, ']');
      Fields tool = Fields::of((*tools)[i], where);
      if (const auto type = tool.text("type"); type && *type != "custom")
        throw ApiError(400, "'" + where + ".type' is '" + *type + "': only custom is supported", where + ".type",
                       "unsupported_parameter");
      for (const char* name : {"name", "input_schema"}) tool.need(name);
      Json function = {{"name", *tool.text("name")}, {"parameters", *tool.object("input_schema")}};
      if (const auto description = tool.text("description")) function["description"] = *description;
      tool.object("cache_control");
      tool.end();
      out.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    chat["tools"] = std::move(out);
  }
  const Json* choice = fields.object("tool_choice");
  if (!choice) return;
  Fields inner(*choice, "tool_choice.");
  const std::string type = inner.need_text("type");
  if (inner.boolean("disable_parallel_tool_use").value_or(false)) chat["parallel_tool_calls"] = false;
  if (type == "tool") {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", inner.need_text("name")}}}};
  } else if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else {
    bad_request("tool_choice.type", "'tool_choice.type' must be auto, any, tool or none, found '", type, "'");
  }
  inner.end();
}

// As a request of chat completions.
TextRequest request_of(const Json& json, const App& app, bool counts_only) {
  Fields fields(json);
  GivenPictures pictures(app.language_model_of(fields)->language->info());
  Json chat = Json::object();
  const auto copy = [&](const char* name, const char* as) {
    if (const Json* found = fields.find(name)) chat[as] = *found;
  };
  copy("model", "model");
  if (!counts_only) fields.need("max_tokens");
  copy("max_tokens", "max_tokens");
  for (const char* name : {"temperature", "top_p", "top_k", "stream", "service_tier"}) copy(name, name);
  if (fields.integer("max_tokens", 1, INT32_MAX).value_or(1) < 1)
    bad_request("max_tokens", "'max_tokens' must be above 0");
  if (const Json* stops = fields.array("stop_sequences")) chat["stop"] = *stops;
  if (const Json* metadata = fields.object("metadata")) {
    Fields inner(*metadata, "metadata.");
    inner.accept_text("user_id");
    inner.end();
  }
  if (const Json* thinking = fields.object("thinking")) {
    Fields inner(*thinking, "thinking.");
    if (const std::string type = inner.need_text("type"); type != "disabled" && type != "adaptive")
      throw ApiError(400, "'thinking.type' is '" + type + "': the chat template decides whether the model thinks",
                     "thinking", "unsupported_parameter");
    inner.end();
  }
  Json messages = Json::array();
  if (const Json* system = fields.find("system"))
    messages.push_back({{"role", "system"}, {"content", content_of(*system, "system", nullptr)}});
  const Json& given = fields.need_array("messages");
  if (given.empty()) bad_request("messages", "'messages' must have at least one message");
  for (std::size_t i = 0; i < given.size(); ++i) add_message(given[i], str("messages[", i, ']'), messages, pictures);
  chat["messages"] = std::move(messages);
  read_tools(fields, chat);
  fields.end();
  return read_chat(chat, app, std::move(pictures).take());
}

class Writer : public BlockWriter {
 public:
  Writer(std::string id, std::string model, std::vector<std::string> stops)
      : id_("msg_" + std::move(id)), model_(std::move(model)), stops_(std::move(stops)) {}

  void begin(Call& call, std::size_t prompt_tokens) override {
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage({FinishReason::length, prompt_tokens, 0, 0});
    send(call, "message_start", {{"message", std::move(message)}});
  }
  void open(Call& call, const Block& block) override {
    Json begun = json_of(block, true);
    send(call, "content_block_start", {{"index", block.index}, {"content_block", std::move(begun)}});
  }
  void delta(Call& call, const Block& block, const std::string& text) override {
    Json delta;
    if (block.kind == AnswerPart::Kind::call)
      delta = {{"type", "input_json_delta"}, {"partial_json", text}};
    else if (block.kind == AnswerPart::Kind::reasoning)
      delta = {{"type", "thinking_delta"}, {"thinking", text}};
    else
      delta = {{"type", "text_delta"}, {"text", text}};
    send(call, "content_block_delta", {{"index", block.index}, {"delta", std::move(delta)}});
  }
  void close(Call& call, const Block& block) override { send(call, "content_block_stop", {{"index", block.index}}); }
  void end(Call& call, const std::vector<Block>& blocks, const Outcome& outcome) override {
    Json delta = Json::object();
    add_reason(delta, blocks, outcome);
    send(call, "message_delta", {{"delta", std::move(delta)}, {"usage", usage(outcome)}});
    send(call, "message_stop", Json::object());
    call.end_stream();
  }
  Json whole(const std::vector<Block>& blocks, const Outcome& outcome) override {
    Json message = head();
    message["content"] = Json::array();
    for (const Block& block : blocks) message["content"].push_back(json_of(block, false));
    add_reason(message, blocks, outcome);
    message["usage"] = usage(outcome);
    return message;
  }

 private:
  static void send(Call& call, const char* type, const Json& fields) {
    Json event = {{"type", type}};
    event.update(fields);
    call.named_event(type, event);
  }
  // Fields that are null are of what is not served, and clients' schemas have them.
  Json head() const {
    return {{"id", id_},       {"type", "message"},       {"role", "assistant"},
            {"model", model_}, {"stop_details", nullptr}, {"container", nullptr}};
  }
  static Json usage(const Outcome& outcome) {
    return {{"input_tokens", outcome.prompt_tokens - outcome.cached_tokens},
            {"cache_read_input_tokens", outcome.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_creation", nullptr},
            {"output_tokens", outcome.new_tokens},
            {"output_tokens_details", nullptr},
            {"server_tool_use", nullptr},
            {"service_tier", "standard"},
            {"inference_geo", nullptr}};
  }
  static Json json_of(const Block& block, bool begun) {
    if (block.kind == AnswerPart::Kind::call) {
      Json input = begun ? Json::object() : read_json<Json>(block.text, false);
      if (input.is_discarded()) input = Json::object();  // max_tokens has cut it off
      return {{"type", "tool_use"},
              {"id", block.id},
              {"name", block.name},
              {"input", std::move(input)},
              {"caller", {{"type", "direct"}}}};
    }
    const std::string text = begun ? "" : block.text;
    if (block.kind == AnswerPart::Kind::reasoning) return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
    return {{"type", "text"}, {"text", text}, {"citations", nullptr}};
  }
  void add_reason(Json& out, const std::vector<Block>& blocks, const Outcome& outcome) const {
    bool called = false;
    for (const Block& block : blocks) called |= block.kind == AnswerPart::Kind::call;
    const bool stopped = outcome.reason == FinishReason::stop_string;
    out["stop_reason"] = outcome.cut_off() ? "max_tokens"
                         : stopped         ? "stop_sequence"
                         : called          ? "tool_use"
                                           : "end_turn";
    // Which of several strings it was is not known.
    out["stop_sequence"] = stopped && stops_.size() == 1 ? Json(stops_[0]) : Json();
  }

  std::string id_, model_;
  std::vector<std::string> stops_;
};

}  // namespace

void anthropic_messages(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  TextRequest request = request_of(parse_object(call->request().body), app, false);
  call->body() = {};
  auto writer = std::make_unique<Writer>(call->id(), request.model->name, request.options.stop_strings);
  answer_blocks(app, call, std::move(request), std::move(writer));
}

void anthropic_count_tokens(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const TextRequest request = request_of(parse_object(call->request().body), app, true);
  call->respond_json({{"input_tokens", request.prompts[0].size()}});
}

}  // namespace graft::serve
