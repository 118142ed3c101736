#include "serve/text_tools.h"

#include "serve/openai/messages.h"
#include "serve/openai/text_request.h"
#include "serve/tools/tools.h"

namespace graft::serve {

void tokenize(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const Json json = parse_object(call->request().body);
  Fields fields(json);
  const auto model = app.language_model_of(fields);
  const auto content = fields.text("content"), prompt = fields.text("prompt");
  if (content.has_value() == prompt.has_value())
    bad_request("content", "one of 'content' and 'prompt' is needed: the text");
  const auto given = fields.boolean("add_special"), also = fields.boolean("add_special_tokens");
  fields.refuse_unless("parse_special", true, "false is not supported: special tokens in a text are always recognized");
  const bool with_pieces = fields.boolean("with_pieces").value_or(false);
  fields.end();
  const std::string text = content ? *content : *prompt;
  check_prompt_bytes(text.size(), app.options.limits);
  const Tokenizer& tokenizer = *model->language->tokenizer();
  const auto ids = tokenizer.encode(text, {.add_special = given.value_or(also.value_or(prompt.has_value()))});
  Json tokens = Json::array();
  for (const std::int64_t id : ids) {
    if (with_pieces)
      tokens.push_back({{"id", id}, {"piece", tokenizer.piece(id)}});
    else
      tokens.push_back(id);
  }
  call->respond_json(
      {{"tokens", std::move(tokens)}, {"count", ids.size()}, {"max_model_len", model->engine->capacity()}});
}

void detokenize(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const Json json = parse_object(call->request().body);
  Fields fields(json);
  const auto model = app.language_model_of(fields);
  const Json& tokens = fields.need_array("tokens");
  fields.end();
  const Tokenizer& tokenizer = *model->language->tokenizer();
  const std::string text = tokenizer.decode(token_ids(tokens, "tokens", tokenizer.size()));
  call->respond_json({{"content", text}, {"prompt", text}});
}

void apply_template(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const Json json = parse_object(call->request().body);
  Fields fields(json);
  const auto model = app.language_model_of(fields);
  const Json tools = read_tools(fields);  // any template may have its own way with them
  const bool begins = fields.boolean("add_generation_prompt").value_or(true);
  const std::string prompt = chat_prompt_of(fields, *model, app.options.limits, tools, begins);
  fields.end();
  call->respond_json({{"prompt", prompt}});
}

}  // namespace graft::serve
