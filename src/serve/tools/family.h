#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace graft::serve {

// How a model writes calls of tools, which its chat template shows.
enum class ToolFamily {
  none,          // it knows none
  hermes,        // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen 2.5 and 3
  qwen_xml,      // <tool_call><function=f><parameter=a>...</parameter></function></tool_call>: Qwen 3 Coder, Qwen 3.5
  llama3,        // {"name": ..., "parameters": {...}}, and nothing else
  mistral,       // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
  mistral_args,  // [TOOL_CALLS]f[ARGS]{...}, again for each: Mistral Small 3.2, Ministral 3, Devstral
  deepseek,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>...: V3.1; R1 and V3
             // write "function", the separator, the name and the arguments between ```json and ```
  gemma,     // <|tool_call>call:f{a:<|"|>text<|"|>}<tool_call|>: Gemma 4
  function_gemma,  // <start_function_call>call:f{a:<escape>text<escape>}<end_function_call>
  harmony,  // channels of gpt-oss: <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
};

ToolFamily tool_family(std::string_view chat_template);

// What stands around a model's reasoning before its answer. Empty: it has none, or channels say what it is.
struct ReasoningTags {
  std::string_view begin, end;
};

ReasoningTags reasoning_tags(std::string_view chat_template);

// All that a family's parser looks for in a text. Some are special tokens in some vocabularies.
const std::vector<std::string_view>& tags_of(ToolFamily family);

}  // namespace graft::serve
