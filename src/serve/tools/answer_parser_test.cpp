#include "serve/tools/answer_parser.h"

#include <gtest/gtest.h>

#include <random>

namespace graft::serve {
namespace {

using Kind = AnswerPart::Kind;

// The parts as one text, those of one kind joined: "r:" reasoning, "c:" content, "n:" the name of a call, "a:" its
// arguments.
std::string shown(const std::vector<AnswerPart>& parts) {
  std::string out;
  std::optional<Kind> last;
  for (const AnswerPart& part : parts) {
    EXPECT_FALSE(part.text.empty());
    if (part.kind != last || part.kind == Kind::call) {
      const char* names[] = {"r:", "c:", "n:", "a:"};
      out += (out.empty() ? "" : "|") + std::string(names[static_cast<int>(part.kind)]);
    }
    out += part.text;
    last = part.kind;
  }
  return out;
}

// The same, however the text comes.
std::string parsed(const AnswerStyle& style, std::string_view text) {
  const std::string whole = shown(AnswerParser(style).add(text, true));
  std::mt19937 rng(1);
  for (int run = 0; run < 20; ++run) {
    AnswerParser parser(style);
    std::vector<AnswerPart> all;
    const auto add = [&](std::string_view more, bool last) {
      for (AnswerPart& part : parser.add(more, last)) all.push_back(std::move(part));
    };
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t size = std::min<std::size_t>(text.size() - at, run == 0 ? 1 : 1 + rng() % 7);
      add(text.substr(at, size), false);
      at += size;
    }
    add("", true);
    EXPECT_EQ(shown(all), whole) << text;
  }
  return whole;
}

TEST(AnswerParser, Hermes) {
  const AnswerStyle style{.family = ToolFamily::hermes};
  EXPECT_EQ(parsed(style, "Hello."), "c:Hello.");
  EXPECT_EQ(parsed(style, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\"}}\n</tool_call>"),
            "n:f|a:{\"a\": \"}</tool_call>\"}");
  EXPECT_EQ(parsed(style,
                   "Well:\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"arguments\": "
                   "{\"b\": [1]}, \"name\": \"g\"}</tool_call> Done."),
            "c:Well:|n:f|a:{}|n:g|a:{\"b\":[1]}|c:Done.");
  EXPECT_EQ(parsed(style, "a <tool_cal b"), "c:a <tool_cal b");
  EXPECT_EQ(parsed(style, "<tool_call>no</tool_call>"), "c:<tool_call>no</tool_call>");
  EXPECT_EQ(parsed(style, "<tool_call>{\"name\": 3}</tool_call>"), "c:<tool_call>{\"name\": 3}</tool_call>");
  EXPECT_EQ(parsed(style, "<tool_call>{\"name\": \"f\"}</tool_call>"), "n:f|a:{}");
  EXPECT_EQ(parsed(style, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>"),
            "n:f|a:{\"a\": 1}");
  EXPECT_EQ(parsed(style, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1"), "n:f|a:{\"a\": 1");  // cut off
  EXPECT_EQ(parsed(style, "<tool_call>{\"na"), "c:<tool_call>{\"na");
  EXPECT_EQ(parsed(style, ""), "");
}

TEST(AnswerParser, Llama3) {
  const AnswerStyle style{.family = ToolFamily::llama3};
  EXPECT_EQ(parsed(style, "{\"name\": \"f\", \"parameters\": {\"x\": {\"y\": 1}}}"), "n:f|a:{\"x\": {\"y\": 1}}");
  EXPECT_EQ(parsed(style, "\n{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}"),
            "n:f|a:{}|n:g|a:{}");
  EXPECT_EQ(parsed(style, "{\"a\": 1}"), "c:{\"a\": 1}");
  EXPECT_EQ(parsed(style, "It is {\"name\": \"f\"}"), "c:It is {\"name\": \"f\"}");
}

TEST(AnswerParser, Mistral) {
  const AnswerStyle style{.family = ToolFamily::mistral};
  EXPECT_EQ(
      parsed(style, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]"),
      "n:f|a:{\"a\": 1}|n:g|a:{}");
  EXPECT_EQ(parsed(style, "[{\"name\": \"f\", \"arguments\": {}}]"), "n:f|a:{}");
  EXPECT_EQ(parsed(style, "[1, 2]"), "c:[1, 2]");
  EXPECT_EQ(parsed(style, "[TOOL_CALLS] are"), "c:[TOOL_CALLS] are");
  const AnswerStyle begun{.family = ToolFamily::mistral, .begun = "[TOOL_CALLS]["};
  EXPECT_EQ(parsed(begun, "{\"name\": \"f\", \"arguments\": {}}"), "n:f|a:{}");
}

TEST(AnswerParser, Reasoning) {
  const AnswerStyle style{.reasoning = true};
  EXPECT_EQ(parsed(style, "<think>\nOne.\n\nTwo.\n</think>\n\nThree."), "r:One.\n\nTwo.|c:Three.");
  EXPECT_EQ(parsed(style, "<think></think>x"), "c:x");
  EXPECT_EQ(parsed(style, "<thinking> x"), "c:<thinking> x");
  EXPECT_EQ(parsed(style, "x <think>y</think>"), "c:x <think>y</think>");
  EXPECT_EQ(parsed(style, "<think>cut off"), "r:cut off");
  const AnswerStyle begun{.family = ToolFamily::hermes, .reasoning = true, .begins_in_reasoning = true};
  EXPECT_EQ(parsed(begun, "One.</think>\n<tool_call>{\"name\": \"f\"}</tool_call>"), "r:One.|n:f|a:{}");
}

TEST(AnswerParser, FamiliesByTemplate) {
  EXPECT_EQ(tool_family("{{ tools }} <tool_call>"), ToolFamily::hermes);
  EXPECT_EQ(tool_family("{{ tools }} [TOOL_CALLS]"), ToolFamily::mistral);
  EXPECT_EQ(tool_family("{{ tools }} <|python_tag|>"), ToolFamily::llama3);
  EXPECT_EQ(tool_family("<tool_call>"), ToolFamily::none);
  EXPECT_EQ(tool_family("{{ tools }} <tool_call><function=x>"), ToolFamily::none);
  EXPECT_EQ(tool_family("{{ tools }} [TOOL_CALLS]f[ARGS]{}"), ToolFamily::none);
}

}  // namespace
}  // namespace graft::serve
