#pragma once

#include <string>
#include <vector>

#include "serve/json_fields.h"
#include "serve/models.h"
#include "serve/tools/answer_parser.h"

namespace graft::serve {

// What a request says of tools.
struct ToolRequest {
  Json tools = Json::array();  // for the chat template; none: the model is not told of any
  enum class Choice { none, automatic, required } choice = Choice::none;
  std::string named;  // the one that must be called
  bool parallel = true;
};

// Reads "tools", which may be absent. Throws ApiError (400).
Json read_tools(Fields& fields);

// Reads "tools", "tool_choice" and "parallel_tool_calls". Throws ApiError (400), for a model whose template knows no
// tools too.
ToolRequest tools_of(Fields& fields, const ServedModel& model);

// How answers to this prompt are taken apart. A call that must come may be begun at the prompt's end already.
AnswerStyle answer_style(const ServedModel& model, const ToolRequest& tools, std::string& prompt);

// Special tokens that the answer's parser looks for.
std::vector<std::int64_t> special_tags_of(const Tokenizer& tokenizer, const AnswerStyle& style);

// Calls of the tools that must be called, as the model writes them; null where it may do otherwise.
std::shared_ptr<const Grammar> grammar_of_calls(const ServedModel& model, const ToolRequest& tools,
                                                const AnswerStyle& style);

}  // namespace graft::serve
