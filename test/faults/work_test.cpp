#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "faults.h"
#include "graft/tokenizer.h"
#include "load/test_graph.h"
#include "plan/make_plan.h"
#include "text/pipeline.h"
#include "weight/test_container.h"
#include "weight/weights.h"

// Work in proportion to the file, counted in allocations: twice as much of a file takes twice as many.
// tools/coverage/work.py counts the branches of the code that run.
namespace graft::faults {
namespace {

using test::fixed;
using test::GraphBuilder;

struct Work {
  const char* name;
  std::function<std::function<void()>(std::int64_t size)>
      prepared;  // makes the input of this size, gives the work on it
};

std::string vocabulary(std::int64_t size) {
  std::string out;
  for (std::int64_t i = 0; i < size; ++i)
    out += (i > 0 ? ", \"w" : "\"w") + std::to_string(i) + "\": " + std::to_string(i);
  return out;
}

std::function<void()> tokenizer(const std::string& json) {
  return [json] { Tokenizer::from_json(json); };
}

std::function<void()> render(const std::string& source, const std::string& variables) {
  static const auto words =
      Tokenizer::from_json(R"({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})");
  return [=] { words->apply_chat_template(variables, source); };
}

std::string repeated(const std::string& text, std::int64_t times) {
  std::string out;
  for (std::int64_t i = 0; i < times; ++i) out += text;
  return out;
}

std::shared_ptr<GraphBuilder> chain(std::int64_t nodes) {
  const auto graph = std::make_shared<GraphBuilder>();
  auto x = graph->input("x", DType::f32, {fixed(8)});
  for (std::int64_t i = 0; i < nodes; ++i)
    x = graph->node(i % 2 == 0 ? "aten.relu.default" : "aten.tanh.default", {{"self", ir::Arg::of_value(x)}},
                    DType::f32, {fixed(8)});
  graph->output(x);
  return graph;
}

const std::vector<Work>& works() {
  static const std::vector<Work> all = {
      {"Nodes", [](std::int64_t n) { return [graph = chain(n)] { graph->build(); }; }},
      {"Plan",
       [](std::int64_t n) {
         return [graph = chain(n)] {
           InputDesc x;
           x.desc = TensorDesc(DType::f32, Shape{8});
           make_plan(graph->program(), graph->method(), std::span(&x, 1), {});
         };
       }},
      {"Weights",
       [](std::int64_t n) {
         const auto graph = std::make_shared<GraphBuilder>();
         auto x = graph->input("x", DType::f32, {fixed(8)});
         for (std::int64_t i = 0; i < n; ++i) {
           const auto w = graph->weight("w" + std::to_string(i), std::vector<float>(8), {8});
           x = graph->node(
               "aten.add.Tensor",
               {{"self", ir::Arg::of_value(x)}, {"other", ir::Arg::of_value(w)}, {"alpha", test::of_int(1)}},
               DType::f32, {fixed(8)});
         }
         graph->output(x);
         return [graph] { graph->build(); };
       }},
      {"Methods",
       [](std::int64_t n) {
         const auto graph = chain(1);
         for (std::int64_t i = 1; i < n; ++i) {
           graph->program().methods.push_back(graph->program().methods[0]);
           graph->program().methods.back().name = "m" + std::to_string(i);
         }
         return [graph] { graph->build(); };
       }},
      {"WordLevel",
       [](std::int64_t n) {
         return tokenizer(R"({"model": {"type": "WordLevel", "unk_token": "w0", "vocab": {)" + vocabulary(n) + "}}}");
       }},
      {"WordPiece",
       [](std::int64_t n) {
         return tokenizer(R"({"model": {"type": "WordPiece", "unk_token": "w0", "continuing_subword_prefix": "##",
                              "vocab": {)" +
                          vocabulary(n) + "}}}");
       }},
      {"Merges",
       [](std::int64_t n) {
         std::string pieces = vocabulary(n), merges;
         for (std::int64_t i = 0; i < n; ++i) {
           pieces += ", \"w" + std::to_string(i) + "w0\": " + std::to_string(n + i);
           merges += (i > 0 ? ", \"w" : "\"w") + std::to_string(i) + " w0\"";
         }
         return tokenizer(R"({"model": {"type": "BPE", "vocab": {)" + pieces + R"(}, "merges": [)" + merges + "]}}");
       }},
      {"MergesWithRegularIds",  // which a hash of their bits alone would not tell apart
       [](std::int64_t n) {
         std::string pieces = R"("x": 0)", merges;
         for (std::int64_t i = 0; i < n; ++i) {
           pieces += str(", \"t", i, "\": ", 32 * (i + 1), ", \"t", i, "x\": ", 32 * (n + i + 1));
           merges += str(i > 0 ? ", " : "", "[\"t", i, "\", \"x\"]");
         }
         return tokenizer(R"({"model": {"type": "BPE", "vocab": {)" + pieces + R"(}, "merges": [)" + merges + "]}}");
       }},
      {"Unigram",
       [](std::int64_t n) {
         std::string pieces;
         for (std::int64_t i = 0; i < n; ++i) pieces += (i > 0 ? ", [\"w" : "[\"w") + std::to_string(i) + "\", -1.5]";
         return tokenizer(R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [)" + pieces + "]}}");
       }},
      {"AddedTokens",
       [](std::int64_t n) {
         std::string tokens;
         for (std::int64_t i = 0; i < n; ++i)
           tokens += std::string(i > 0 ? ", " : "") + R"({"id": 0, "content": "<t)" + std::to_string(i) + ">\"}";
         return tokenizer(R"({"added_tokens": [)" + tokens +
                          R"(], "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})");
       }},
      {"TokensOfTheConfiguration",
       [](std::int64_t n) {
         std::string added, more;
         for (std::int64_t i = 0; i < n; ++i) {
           added += str(i > 0 ? ", " : "", R"({"id": 0, "content": "a)", i, "\"}");
           more += str(i > 0 ? ", \"" : "\"", i, R"(": {"content": "c)", i, "\"}");
         }
         const std::string json = R"({"added_tokens": [)" + added +
                                  R"(], "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})";
         const std::string config = R"({"added_tokens_decoder": {)" + more + "}}";
         return [=] { Tokenizer::from_json(json, config); };
       }},
      {"Encode",
       [](std::int64_t n) {
         const auto words = Tokenizer::from_json(
             R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "model": {"type": "BPE",
                 "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}})");
         return [=, text = repeated("ab ba aab ", n)] { words->decode(words->encode(text)); };
       }},
      {"EncodeOneWord",
       [](std::int64_t n) {
         const auto words = Tokenizer::from_json(
             R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "abab": 3}, "merges": ["a b", "ab ab"]}})");
         return [=, text = repeated("ab", n)] { words->encode(text); };
       }},
      {"EncodeOneWordInPieces",
       [](std::int64_t n) {
         const auto words = Tokenizer::from_json(
             R"({"model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                 "max_input_chars_per_word": 1000000000, "vocab": {"a": 0, "##a": 1, "##aab": 2}}})");
         return [=, text = repeated("a", n)] { words->encode(text); };
       }},
      {"TemplateSource",
       [](std::int64_t n) {
         return render(repeated("{% if x %}a{% else %}{{ 'b' | upper }}{% endif %}", n), R"({"messages": []})");
       }},
      {"TemplateMessages",
       [](std::int64_t n) {
         return render("{% for m in messages %}{{ m.role }}{{ m['content'] | trim }}{% endfor %}",
                       R"({"messages": [{"role": "a", "content": " b "})" +
                           repeated(R"(, {"role": "a", "content": " b "})", n) + "]}");
       }},
      {"TemplateText",
       [](std::int64_t n) {
         return render(
             "{% set ns = namespace(s='') %}{% for i in range(" + std::to_string(n) + ") %}{{ i }}{% endfor %}",
             R"({"messages": []})");
       }},
      {"Safetensors",
       [](std::int64_t n) {
         std::string header = "{";
         for (std::int64_t i = 0; i < n; ++i)
           header += std::string(i > 0 ? ", " : "") + "\"t" + std::to_string(i) +
                     R"(": {"dtype": "F32", "shape": [1], "data_offsets": [)" + std::to_string(4 * i) + ", " +
                     std::to_string(4 * i + 4) + "]}";
         header += "}";
         test::Blob file(8);
         test::put(file, 0, header.size(), 8);
         const auto text = std::as_bytes(std::span(header));
         file.insert(file.end(), text.begin(), text.end());
         file.resize(file.size() + static_cast<std::size_t>(4 * n));
         return [file] { read_safetensors(MappedFile::of_memory(file, "made", nullptr)); };
       }},
      {"CheckedJson",
       [](std::int64_t n) {
         std::string text = "[";
         for (std::int64_t i = 0; i < n; ++i) text += R"({"role": "user", "content": ["a", {"b": 1}]}, )";
         text += "{}]";
         return [text] {
           JsonRules rules;
           rules.unique_depth = 2;
           read_json<Json>(text, rules);
         };
       }},
      {"Ptd",
       [](std::int64_t n) {
         std::vector<std::pair<std::string, test::Blob>> named;
         for (std::int64_t i = 0; i < n; ++i) named.emplace_back("w" + std::to_string(i), test::bytes_of(4));
         return [file = test::make_ptd(named)] { read_ptd(MappedFile::of_memory(file, "made", nullptr)); };
       }},
  };
  return all;
}

long allocations(const std::function<void()>& work) {
  work();  // what is made once
  graft_faults_arm("memory", 0, "", 0);
  work();
  return graft_faults_disarm();
}

class WorkTest : public ::testing::TestWithParam<Work> {};

TEST_P(WorkTest, IsInProportion) {
  constexpr std::int64_t kSize = 200;
  const long once = allocations(GetParam().prepared(kSize)), twice = allocations(GetParam().prepared(2 * kSize)),
             four_times = allocations(GetParam().prepared(4 * kSize));
  std::printf("WORK %s | %ld | %ld | %ld\n", GetParam().name, once, twice, four_times);
  // Twice as much more for twice as much more, and some for tables that double.
  EXPECT_LE(four_times - twice, 5 * (twice - once) / 2 + 64) << once << ", " << twice << ", " << four_times;
}

// For tools/coverage/work.py: one of them alone, GRAFT_WORK="name size".
TEST(WorkOnce, Run) {
  const char* const chosen = std::getenv("GRAFT_WORK");
  if (chosen == nullptr) GTEST_SKIP() << "GRAFT_WORK names no work";
  std::istringstream words(chosen);
  std::string name;
  std::int64_t size = 0;
  words >> name >> size;
  const auto found = std::ranges::find(works(), name, &Work::name);
  ASSERT_NE(found, works().end()) << name;
  found->prepared(size)();
}

INSTANTIATE_TEST_SUITE_P(Of, WorkTest, ::testing::ValuesIn(works()),
                         [](const auto& work) { return std::string(work.param.name); });

}  // namespace
}  // namespace graft::faults
