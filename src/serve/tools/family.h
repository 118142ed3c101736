#pragma once

#include <string>
#include <string_view>

namespace graft::serve {

// How a model writes calls of tools, which its chat template shows.
enum class ToolFamily {
  none,     // it knows none
  hermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen 2.5 and 3
  llama3,   // {"name": ..., "parameters": {...}}, and nothing else
  mistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
};

ToolFamily tool_family(std::string_view chat_template);
// Whether answers may begin with <think>...</think>.
bool has_reasoning(std::string_view chat_template);

}  // namespace graft::serve
