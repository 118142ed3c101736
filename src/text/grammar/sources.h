#pragma once

#include <string_view>

#include "text/grammar/expr.h"

// The languages that grammars are written in. All throw InvalidArgument for a source that is wrong and Unsupported for
// what is not served, naming the place.
namespace graft::text::grammar {

// A regular expression. A pattern of a JSON schema (`anywhere`) matches somewhere in the text unless it has anchors.
ExprPtr parse_regex(std::string_view expression, Writing writing = Writing::plain, bool anywhere = false);

// Adds the rules; `root` is then theirs.
void parse_ebnf(std::string_view text, Rules& rules);
void parse_lark(std::string_view text, Rules& rules);

// Adds what the schema needs and returns a value of it.
ExprPtr parse_json_schema(std::string_view schema, Rules& rules);
// Any JSON object.
ExprPtr any_json_object(Rules& rules);

}  // namespace graft::text::grammar
