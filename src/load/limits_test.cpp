#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "base/test_errors.h"
#include "graft/graft.h"
#include "graft/llm.h"
#include "ir/program.h"
#include "load/test_graph.h"
#include "weight/test_container.h"

// Limits of LoadOptions: at a limit everything works, just beyond it an error names limit, value and option.
namespace graft {
namespace {

using test::dynamic;
using test::expect_error;
using test::fixed;
using test::GraphBuilder;
using test::tensor;

constexpr const char* kGolden = GRAFT_SOURCE_DIR "/test/golden/golden.pte";

// `run` fails below a limit and says what it found; with that limit it works, and with one less it fails.
void expect_limit(const std::string& name, std::int64_t LoadOptions::*limit,
                  const std::function<void(const LoadOptions&)>& run) {
  LoadOptions options;
  run(options);
  options.*limit = 0;
  std::string said;
  try {
    run(options);
    FAIL() << name << " is no limit";
  } catch (const Unsupported& error) {
    said = error.what();
  }
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(said, found, std::regex(R"((\d+)( bytes|[a-z ]*)[^0-9]*, at most 0 are allowed \()" + name)))
      << said;
  options.*limit = std::stoll(found[1]);
  EXPECT_GT(options.*limit, 0) << said;
  run(options);
  --(options.*limit);
  expect_error<Unsupported>([&] { run(options); }, name);
  options.*limit = -1;
  if (name.find("plan") == std::string::npos)
    expect_error<InvalidArgument>([&] { run(options); }, name + " must not be negative, got -1");
}

TEST(Limits, BytesOfFiles) {
  expect_limit("max_file_bytes", &LoadOptions::max_file_bytes, [](const LoadOptions& o) { Program::load(kGolden, o); });
  LoadOptions options;
  options.max_file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(kGolden)) + 100;
  const test::TemporaryFolder folder;
  options.weights = {folder.write("large.safetensors", std::vector<std::byte>(options.max_file_bytes + 1))};
  expect_error<Unsupported>([&] { Program::load(kGolden, options); }, "large.safetensors' has ");
}

TEST(Limits, Nodes) {
  expect_limit("max_nodes", &LoadOptions::max_nodes, [](const LoadOptions& o) { Program::load(kGolden, o); });
}

TEST(Limits, GraphCalls) {
  expect_limit("max_graph_calls", &LoadOptions::max_graph_calls,
               [](const LoadOptions& o) { Program::load(kGolden, o); });
}

TEST(Limits, BytesOfStates) {
  expect_limit("max_state_bytes", &LoadOptions::max_state_bytes, [](const LoadOptions& o) {
    GraphBuilder graph;
    const auto x = graph.input("x", DType::f32, {fixed(4)});
    graph.state("kept", DType::f32, {1000});
    graph.output(x);
    graph.build(o);
  });
}

// Of a run on 5 tokens.
void run_golden(const LoadOptions& options) {
  SessionOptions one;
  one.threads = 1;
  Session session(Program::load(kGolden, options), one);
  std::vector<std::int64_t> ids(10, 3), mask(10, 1);
  session.run("encode", std::vector{tensor(ids, DType::i64, {2, 5}), tensor(mask, DType::i64, {2, 5})});
}

TEST(Limits, BytesOfPlans) {
  SessionOptions one;
  one.threads = 1;
  std::vector<std::int64_t> ids(10, 3), mask(10, 1);
  const std::vector<Value> inputs = {tensor(ids, DType::i64, {2, 5}), tensor(mask, DType::i64, {2, 5})};
  LoadOptions options;
  options.stored_plans = false;
  options.max_plan_bytes = Session(Program::load(kGolden, options), one).plan("encode", inputs).arena_bytes;
  run_golden(options);
  --options.max_plan_bytes;
  expect_error<Unsupported>([&] { run_golden(options); }, "are allowed (max_plan_bytes)");
}

TEST(Limits, LaunchesOfPlans) {
  std::int64_t fits = 1, most = 4096;
  while (fits < most) {  // lowering counts launches before passes merge them
    LoadOptions options;
    options.max_plan_launches = (fits + most) / 2;
    try {
      run_golden(options);
      most = options.max_plan_launches;
    } catch (const Unsupported&) {
      fits = options.max_plan_launches + 1;
    }
  }
  LoadOptions options;
  options.max_plan_launches = fits;
  run_golden(options);
  options.max_plan_launches = fits - 1;
  expect_error<Unsupported>([&] { run_golden(options); }, "max_plan_launches");
}

TEST(Limits, Vocabulary) {
  const auto load = [](std::int64_t largest, const TextLimits& limits) {
    return Tokenizer::from_json(R"({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": )" +
                                    std::to_string(largest) + "}}}",
                                {}, limits);
  };
  TextLimits limits;
  limits.max_vocabulary = 2;
  EXPECT_EQ(load(1, limits)->size(), 2);
  expect_error<Unsupported>([&] { load(2, limits); }, "has the id 2, at most 2 ids are allowed (max_vocabulary)");
  limits.max_vocabulary = 1;
  expect_error<Unsupported>([&] { load(1, limits); }, "has 2 tokens, at most 1 are allowed (max_vocabulary)");
  const std::string unigram = R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["b", 0.0]]}})";
  expect_error<Unsupported>([&] { Tokenizer::from_json(unigram, {}, limits); }, "(max_vocabulary)");
  limits.max_vocabulary = 2;
  Tokenizer::from_json(unigram, {}, limits);
}

TEST(Limits, Templates) {
  const std::string vocabulary = R"({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})";
  const std::string variables = R"({"messages": []})", steps = "{% for i in range(100) %}{{ i }}{% endfor %}";
  const auto render = [&](const TextLimits& limits, const std::string& source) {
    return Tokenizer::from_json(vocabulary, {}, limits)->apply_chat_template(variables, source);
  };
  TextLimits limits;
  limits.max_template_bytes = 190;
  EXPECT_EQ(render(limits, steps).size(), 190u);
  limits.max_template_bytes = 189;
  expect_error<InvalidArgument>([&] { render(limits, steps); },
                                "line 1: the text has 190 bytes, at most 189 are allowed (max_template_bytes)");
  limits = {};
  std::int64_t fits = 1, most = 10'000;
  while (fits < most) {
    limits.max_template_steps = (fits + most) / 2;
    try {
      render(limits, steps);
      most = limits.max_template_steps;
    } catch (const InvalidArgument&) {
      fits = limits.max_template_steps + 1;
    }
  }
  EXPECT_GE(fits, 200);
  EXPECT_LE(fits, 1000);
  limits.max_template_steps = fits - 1;
  expect_error<InvalidArgument>([&] { render(limits, steps); },
                                "steps, at most " + std::to_string(fits - 1) + " are allowed (max_template_steps)");
  // An iteration counts where it does nothing else.
  const std::string idle = "{% for i in range(2000) %}{% endfor %}";
  limits = {.max_template_steps = 2000};
  expect_error<InvalidArgument>([&] { render(limits, idle); }, "(max_template_steps)");
  limits.max_template_steps = 2100;
  EXPECT_EQ(render(limits, idle), "");
  // Loops in loops, and filters that make large values again and again.
  limits = {};
  for (const char* endless :
       {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% if s | upper %}{% endif %}{% endfor %}",
        "{% set s = range(99999) | list %}{% for i in range(99999) %}{% if s | list %}{% endif %}"
        "{% endfor %}"})
    expect_error<InvalidArgument>([&] { render(limits, endless); }, "(max_template_steps)");
}

// A file that is read in may be truncated while the program runs.
TEST(Limits, FilesThatAreReadInMayChange) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "copy.pte";
  std::filesystem::copy_file(kGolden, path);
  SessionOptions one;
  one.threads = 1;
  std::vector<std::int64_t> ids(10, 3), mask(10, 1);
  const std::vector<Value> inputs = {tensor(ids, DType::i64, {2, 5}), tensor(mask, DType::i64, {2, 5})};
  const auto run = [&](Session& session) { return test::floats(session.run("encode", inputs)[0]); };
  Session of_golden(Program::load(kGolden), one);
  const std::vector<float> expected = run(of_golden);
  LoadOptions options;
  options.map = false;
  options.verify_hashes = true;
  const auto program = Program::load(path, options);
  program->shrink();
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);
  Session session(program, one);
  EXPECT_EQ(run(session), expected);
  EXPECT_EQ(program->stats().shared_bytes, 0u);
}

// The same with a mapped file ends the process; a load that reads in finds that it ends too early.
TEST(Limits, AFileThatIsShortIsAnError) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "short.pte";
  std::filesystem::copy_file(kGolden, path);
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(std::filesystem::file_size(path)) - 64), 0);
  LoadOptions options;
  options.map = false;
  expect_error<InvalidProgram>([&] { Program::load(path, options); }, "short.pte");
}

}  // namespace
}  // namespace graft
