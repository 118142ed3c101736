#include "serve/tools/family.h"

#include <algorithm>
#include <array>

namespace graft::serve {

ToolFamily tool_family(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != chat_template.npos; };
  // Its channels are there without tools too.
  if (has("<|channel|>") && has("<|message|>")) return ToolFamily::harmony;
  if (!has("tools")) return ToolFamily::none;
  if (has("<｜tool▁call▁begin｜>")) return ToolFamily::deepseek;
  if (has("<|tool_call>call:")) return ToolFamily::gemma;
  if (has("<start_function_call>call:")) return ToolFamily::function_gemma;
  if (has("<tool_call>")) return has("<function=") ? ToolFamily::qwen_xml : ToolFamily::hermes;
  if (has("<function=")) return ToolFamily::none;  // of others, written another way
  if (has("[TOOL_CALLS]")) return has("[ARGS]") ? ToolFamily::mistral_args : ToolFamily::mistral;
  if (has("<|python_tag|>") || (has("\"parameters\"") && has("ipython"))) return ToolFamily::llama3;
  return ToolFamily::none;
}

ReasoningTags reasoning_tags(std::string_view chat_template) {
  // Those of Mistral stand for an example of reasoning in its system prompt, or in messages.
  static constexpr std::array<ReasoningTags, 3> kTags{
      {{"<think>", "</think>"}, {"<|channel>thought\n", "<channel|>"}, {"[THINK]", "[/THINK]"}}};
  const auto found = std::ranges::find_if(
      kTags, [&](const ReasoningTags& tags) { return chat_template.find(tags.end) != chat_template.npos; });
  return found == kTags.end() ? ReasoningTags() : *found;
}

const std::vector<std::string_view>& tags_of(ToolFamily family) {
  using Tags = std::vector<std::string_view>;
  static const Tags none, hermes{"<tool_call>", "</tool_call>"}, mistral{"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
      deepseek{"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
               "<｜tool▁calls▁end｜>"},
      gemma{"<|tool_call>", "<tool_call|>", "<|\"|>"},
      function_gemma{"<start_function_call>", "<end_function_call>", "<escape>"},
      harmony{"<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"};
  switch (family) {
    case ToolFamily::none:
    case ToolFamily::llama3:
      return none;
    case ToolFamily::hermes:
    case ToolFamily::qwen_xml:
      return hermes;
    case ToolFamily::mistral:
    case ToolFamily::mistral_args:
      return mistral;
    case ToolFamily::deepseek:
      return deepseek;
    case ToolFamily::gemma:
      return gemma;
    case ToolFamily::function_gemma:
      return function_gemma;
    case ToolFamily::harmony:
      return harmony;
  }
  return none;
}

}  // namespace graft::serve
