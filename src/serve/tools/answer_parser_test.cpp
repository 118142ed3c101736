#include "serve/tools/answer_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "base/json.h"

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

TEST(AnswerParser, MistralWithNames) {
  const AnswerStyle style{.family = ToolFamily::mistral_args, .reasoning = {"[THINK]", "[/THINK]"}};
  EXPECT_EQ(parsed(style, "[TOOL_CALLS]f[ARGS]{\"a\": \"}\"}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}"),
            "n:f|a:{\"a\": \"}\"}|n:g|a:{}");
  EXPECT_EQ(parsed(style, "[THINK]One.[/THINK]Two. [TOOL_CALLS]f[ARGS]{}"), "r:One.|c:Two.|n:f|a:{}");
  EXPECT_EQ(parsed(style, "[TOOL_CALLS] are"), "c:[TOOL_CALLS] are");
  EXPECT_EQ(parsed(style, "[TOOL_CALLS]f[ARGS] no"), "n:f|c: no");
  const AnswerStyle begun{.family = ToolFamily::mistral_args, .begun = "[TOOL_CALLS]"};
  EXPECT_EQ(parsed(begun, "f[ARGS]{\"a\": [{}, 1]}"), "n:f|a:{\"a\": [{}, 1]}");
}

TEST(AnswerParser, DeepSeek) {
  const AnswerStyle style{.family = ToolFamily::deepseek, .reasoning = {"<think>", "</think>"}};
  const std::string begin = "<｜tool▁calls▁begin｜>", call = "<｜tool▁call▁begin｜>", sep = "<｜tool▁sep｜>",
                    call_end = "<｜tool▁call▁end｜>", end = "<｜tool▁calls▁end｜>";
  EXPECT_EQ(parsed(style, "Well: " + begin + call + "f" + sep + "{\"a\": 1}" + call_end + call + "g" + sep + "{}" +
                              call_end + end + " Done."),
            "c:Well:|n:f|a:{\"a\": 1}|n:g|a:{}|c:Done.");
  EXPECT_EQ(parsed(style, "<think>x</think>" + begin + call + "function" + sep + "f\n```json\n{\"a\": \"```\"}\n```" +
                              call_end + "\n" + call + "function" + sep + "g\n```json\n{}\n```" + call_end + end),
            "r:x|n:f|a:{\"a\": \"```\"}|n:g|a:{}");
  EXPECT_EQ(parsed(style, begin + " no"), "c:" + begin + "no");
  EXPECT_EQ(parsed(style, "<｜User｜>"), "c:<｜User｜>");
  EXPECT_EQ(parsed(style, begin + call + "f" + sep + "{\"a\": "), "n:f|a:{\"a\": ");  // cut off
}

TEST(AnswerParser, Gemma) {
  const AnswerStyle style{.family = ToolFamily::gemma, .reasoning = {"<|channel>thought\n", "<channel|>"}};
  EXPECT_EQ(
      parsed(style,
             "<|channel>thought\nOne.\n<channel|>Two.<|tool_call>call:f{a:<|\"|>x\"}{y<|\"|>,b:[1,true,"
             "null],c:{d:-1.5e3},e:word}<tool_call|><|tool_call>call:g{}<tool_call|>"),
      "r:One.|c:Two.|n:f|a:{\"a\":\"x\\\"}{y\",\"b\":[1,true,null],\"c\":{\"d\":-1.5e3},\"e\":\"word\"}|n:g|a:{}");
  EXPECT_EQ(parsed(style, "<|tool_call>call:f{\"a\": \"}\"}<tool_call|>"), "n:f|a:{\"a\":\"}\"}");  // JSON
  EXPECT_EQ(parsed(style, "<|tool_call>call:f{a:<|\"|>x"), "n:f|a:{a:<|\"|>x");                     // cut off
  EXPECT_EQ(parsed(style, "<|tool_call>call:f{a}<tool_call|>"), "n:f|c:{a}<tool_call|>");
  EXPECT_EQ(parsed(style, "<|tool_call>no<tool_call|>"), "c:<|tool_call>no<tool_call|>");
  const AnswerStyle function_gemma{.family = ToolFamily::function_gemma};
  EXPECT_EQ(parsed(function_gemma, "<start_function_call>call:f{a:<escape>x<escape>}<end_function_call>"),
            "n:f|a:{\"a\":\"x\"}");
  EXPECT_EQ(json_of_gemma("{a:1", "<escape>"), "");
  EXPECT_EQ(json_of_gemma("[1]", "<escape>"), "");
  EXPECT_EQ(json_of_gemma("{a:1}}", "<escape>"), "");
  EXPECT_EQ(json_of_gemma(std::string(100, '{') + std::string(100, '}'), "<escape>"), "");
}

TEST(AnswerParser, QwenXml) {
  const auto tools = std::make_shared<const OrderedJson>(OrderedJson::parse(
      R"([{"function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}}])"));
  const AnswerStyle style{.family = ToolFamily::qwen_xml, .reasoning = {"<think>", "</think>"}, .tools = tools};
  EXPECT_EQ(parsed(style,
                   "Well.\n<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\n4\n5\n"
                   "</parameter>\n<parameter=other>\n{\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
                   "<function=g>\n</function>\n</tool_call>"),
            R"(c:Well.|n:f|a:{"n": 3, "s": "4\n5", "other": "{"}|n:g|a:{})");
  EXPECT_EQ(parsed(style, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</tool_call>"),
            "n:f|a:{\"n\": 3}");
  EXPECT_EQ(parsed(style, "<tool_call>no</tool_call>"), "c:<tool_call>no</tool_call>");
}

TEST(AnswerParser, Harmony) {
  const AnswerStyle style{.family = ToolFamily::harmony, .channels = true};
  EXPECT_EQ(parsed(style, "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two."),
            "r:One.|c:Two.");
  EXPECT_EQ(parsed(style,
                   "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary "
                   "to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>"),
            "r:One.|n:f|a:{\"a\": 1}");
  EXPECT_EQ(parsed(style, " to=functions.f<|channel|>commentary json<|message|>{}"), "n:f|a:{}");
  EXPECT_EQ(parsed(style,
                   "<|channel|>commentary<|message|>I call f.<|end|><|start|>assistant to=functions.f<|channel|>"
                   "commentary json<|message|>{}"),
            "c:I call f.|n:f|a:{}");
  EXPECT_EQ(parsed(style, "<|channel|>final<|message|>a < b <|en"), "c:a < b <|en");
  EXPECT_EQ(parsed(style, "<|channel|>fin"), "");
  EXPECT_EQ(parsed(style, "Plain."), "c:Plain.");
  const AnswerStyle without{.channels = true};
  EXPECT_EQ(parsed(without, "<|channel|>commentary to=functions.f<|message|>{}"), "c:{}");
  const AnswerStyle begun{
      .family = ToolFamily::harmony, .channels = true, .begun = "<|channel|>commentary to=functions."};
  EXPECT_EQ(parsed(begun, "f <|constrain|>json<|message|>{\"a\": 1}"), "n:f|a:{\"a\": 1}");
}

TEST(AnswerParser, Reasoning) {
  const AnswerStyle style{.reasoning = {"<think>", "</think>"}};
  EXPECT_EQ(parsed(style, "<think>\nOne.\n\nTwo.\n</think>\n\nThree."), "r:One.\n\nTwo.|c:Three.");
  EXPECT_EQ(parsed(style, "<think></think>x"), "c:x");
  EXPECT_EQ(parsed(style, "<thinking> x"), "c:<thinking> x");
  EXPECT_EQ(parsed(style, "x <think>y</think>"), "c:x <think>y</think>");
  EXPECT_EQ(parsed(style, "<think>cut off"), "r:cut off");
  const AnswerStyle begun{
      .family = ToolFamily::hermes, .reasoning = {"<think>", "</think>"}, .begins_in_reasoning = true};
  EXPECT_EQ(parsed(begun, "One.</think>\n<tool_call>{\"name\": \"f\"}</tool_call>"), "r:One.|n:f|a:{}");
}

TEST(AnswerParser, FamiliesByTemplate) {
  EXPECT_EQ(tool_family("{{ tools }} <tool_call>"), ToolFamily::hermes);
  EXPECT_EQ(tool_family("{{ tools }} [TOOL_CALLS]"), ToolFamily::mistral);
  EXPECT_EQ(tool_family("{{ tools }} <|python_tag|>"), ToolFamily::llama3);
  EXPECT_EQ(tool_family("<tool_call>"), ToolFamily::none);
  EXPECT_EQ(tool_family("{{ tools }} <tool_call><function=x>"), ToolFamily::qwen_xml);
  EXPECT_EQ(tool_family("{{ tools }} <function=x>"), ToolFamily::none);
  EXPECT_EQ(tool_family("{{ tools }} [TOOL_CALLS]f[ARGS]{}"), ToolFamily::mistral_args);
  EXPECT_EQ(tool_family("{{ tools }} <｜tool▁call▁begin｜>"), ToolFamily::deepseek);
  EXPECT_EQ(tool_family("{{ tools }} <|tool_call>call:"), ToolFamily::gemma);
  EXPECT_EQ(tool_family("{{ tools }} <start_function_call>call:"), ToolFamily::function_gemma);
  EXPECT_EQ(tool_family("<|channel|>final<|message|>"), ToolFamily::harmony);
  EXPECT_EQ(reasoning_tags("<think></think>").end, "</think>");
  EXPECT_EQ(reasoning_tags("<|channel>thought<channel|>").begin, "<|channel>thought\n");
  EXPECT_EQ(reasoning_tags("[THINK][/THINK]").begin, "[THINK]");
  EXPECT_EQ(reasoning_tags("").end, "");
}

}  // namespace
}  // namespace graft::serve
