#include <gtest/gtest.h>
#include <filesystem>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "graft/flow.h"
#include "graft/grammar.h"
#include "graft/llm.h"
#include "graft/pipeline.h"
#include "graft/tokenizer.h"
#include "inject.h"
#include "llm/test_model.h"
#include "load/test_graph.h"
#include "weight/test_container.h"

// Operations of the library under faults of each layer. GRAFT_FAULTS_ALL=1 tries every call; else those are skipped so
// that an operation takes some hundreds of tries.
namespace graft::faults {
namespace {

using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::tensor;

constexpr const char* kGolden = GRAFT_SOURCE_DIR "/test/golden/golden.pte";

template <typename T>
std::string bits(std::span<T> values) {
  const auto bytes = std::as_bytes(values);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string bits(const std::vector<Value>& values) {
  std::string out;
  for (const Value& value : values)
    if (value.kind == Value::Kind::tensor)
      out.append(static_cast<const char*>(value.tensor.data),
                 TensorDesc(value.tensor.dtype, value.tensor.shape).byte_count());
  return out;
}

std::string run_golden(Session& session, std::int64_t length = 5) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(2 * length)), mask(ids.size(), 1);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i % 20);
  const std::vector<Value> inputs = {tensor(ids, DType::i64, {2, length}), tensor(mask, DType::i64, {2, length})};
  return bits(session.run("encode", inputs));
}

SessionOptions threads(int count) {
  SessionOptions options;
  options.threads = count;
  return options;
}

// Three calls of each kind of fault, chosen by how many there are.
const std::vector<Fault> kFaults = {
    {"memory"},        {"memory", "", true}, {"file", "EIO"},     {"file", "ENOSPC", true},
    {"file", "EROFS"}, {"file", "EMFILE"},   {"file", "EINTR"},   {"file", "short"},
    {"thread"},        {"thread", "", true}, {"new", "bad_alloc"}};

void inject_all(const Operation& operation) {
  const bool all = std::getenv("GRAFT_FAULTS_ALL") != nullptr;
  for (const Fault& fault : kFaults) {
    graft_faults_arm(fault.layer, 0, "", 0);
    operation.work();
    const long calls = graft_faults_disarm();
    constexpr long kQuick = 60;
    const Tried tried = inject(operation, fault, all ? 1 : std::max<long>(1, calls / kQuick));
    report(operation.name, fault, tried);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Faults, Load) {
  inject_all({"load", [] {
                const auto program = Program::load(kGolden);
                const ProgramStats stats = program->stats();
                return str(stats.weight_bytes, " ", stats.constant_bytes, " ", program->method_names().size());
              }});
}

TEST(Faults, LoadVerified) {
  LoadOptions options;
  options.verify_hashes = true;
  inject_all({"load, weights verified", [&] { return str(Program::load(kGolden, options)->stats().weight_bytes); }});
}

TEST(Faults, PlanInstantiateRun) {
  const auto program = Program::load(kGolden);
  LoadOptions few;
  few.max_plans = 1;
  inject_all({"plan, instantiate, run", [&] {
                const auto own = Program::load(kGolden, few);
                Session session(own, threads(2));
                return run_golden(session, 5) + run_golden(session, 6);
              }});
}

TEST(Faults, Run) {
  Session session(Program::load(kGolden), threads(2));
  inject_all({"run", [&] { return run_golden(session); }});
}

TEST(Faults, Submit) {
  const auto program = Program::load(kGolden);
  inject_all(
      {"submit", [&] {
         Session session(program, threads(1));
         std::vector<std::int64_t> ids(10, 3), mask(10, 1);
         RunOptions options;
         options.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
         return bits(
             session.submit("encode", {tensor(ids, DType::i64, {2, 5}), tensor(mask, DType::i64, {2, 5})}, options)
                 .get());
       }});
}

TEST(Faults, Pipeline) {
  const auto program = Program::load(kGolden);
  inject_all({"pipeline", [&] {
                std::vector<std::int64_t> ids(10, 3), mask(10, 1);
                PipelineOptions options;
                options.workers = 2;
                graft::Pipeline pipeline(
                    {std::make_shared<Session>(program, threads(1)), std::make_shared<Session>(program, threads(1))},
                    options);
                const std::vector<Value> inputs = {tensor(ids, DType::i64, {2, 5}), tensor(mask, DType::i64, {2, 5})};
                auto first = pipeline.submit(0, "encode", inputs), second = pipeline.submit(1, "encode", inputs);
                pipeline.drain();
                return bits(first.get()) + bits(second.get());
              }});
}

// A sum over all calls: what a failed call must not change.
struct Counting {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
  Counting() {
    const auto x = graph.input("x", DType::f32, {dynamic(1, 64, "n"), fixed(4)});
    const auto sum = graph.state("sum", DType::f32, {4});
    const auto of = graph.node("aten.sum.dim_IntList",
                               {{"self", ir::Arg::of_value(x)},
                                {"dim", test::of_ints({0})},
                                {"keepdim", ir::Arg{ir::Arg::Kind::boolean, 0, 0, {}, {}}},
                                {"dtype", test::of_none()}},
                               DType::f32, {fixed(4)});
    const auto next =
        graph.node("aten.add.Tensor",
                   {{"self", ir::Arg::of_value(sum)}, {"other", ir::Arg::of_value(of)}, {"alpha", test::of_int(1)}},
                   DType::f32, {fixed(4)});
    graph.mutate_state(0, next);
    graph.output(next);
    program = graph.build();
  }
};

TEST(Faults, StatesStayWhenARunFails) {
  const Counting counting;
  Session session(counting.program, threads(2));
  std::vector<float> x = test::counting(32 * 4);
  const auto run = [&](std::int64_t rows) { return bits(session.run("forward", std::vector{tensor(x, {rows, 4})})); };
  run(3);
  const auto state = [&] {
    const TensorView& view = session.states()[0].tensor;
    return bits(std::span(static_cast<const float*>(view.data), 4));
  };
  // The states between the runs of an operation; a failed one leaves one of them.
  std::vector<std::string> known = {std::string(4 * sizeof(float), '\0'), state()};
  Operation operation{"run with states", [&] {
                        session.reset();
                        run(3);
                        // Another size: planned, instantiated and run in one call.
                        Session again = session.fork();
                        const std::string of_fork = bits(again.run("forward", std::vector{tensor(x, {7, 4})}));
                        return of_fork + run(5) + state();
                      }};
  operation.work();
  known.push_back(state());
  operation.after_failure = [&] {
    EXPECT_TRUE(std::ranges::find(known, state()) != known.end()) << "a failed run changed a state";
  };
  inject_all(operation);
}

TEST(Faults, SaveAndRestore) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "states";
  const Counting counting;
  Session session(counting.program, threads(1));
  std::vector<float> x = test::counting(8);
  session.run("forward", std::vector{tensor(x, {2, 4})});
  session.save(path);
  const auto state = [&] {
    const TensorView& view = session.states()[0].tensor;
    return bits(std::span(static_cast<const float*>(view.data), 4));
  };
  const std::string saved = state();
  const auto content = [&] {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string bytes = content();
  Operation save{"save", [&] {
                   session.save(path);
                   return std::string("saved");
                 }};
  save.after_failure = [&] {
    EXPECT_EQ(content(), bytes) << "the old file is not whole";
    EXPECT_EQ(entries(folder.path().c_str()), 1u) << "a file is left over";
    EXPECT_EQ(state(), saved);
  };
  inject_all(save);
  Operation restore{"restore", [&] {
                      session.restore(path);
                      return state();
                    }};
  restore.after_failure = [&] { EXPECT_EQ(state(), saved); };
  inject_all(restore);
}

TEST(Faults, PackedFiles) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "golden.packed";
  Operation write{"pack", [&] {
                    const PackedInfo info = pack(kGolden, path);
                    return str(info.entries, " ", info.bytes);
                  }};
  write.work();
  write.after_failure = [&] { EXPECT_LE(entries(folder.path().c_str()), 1u) << "a file is left over"; };
  inject_all(write);
  // A load that keeps what it makes for others: where it cannot, it makes its own.
  LoadOptions options;
  options.packed_folder = folder.path() / "kept";
  inject_all({"load with a folder of packed weights", [&] {
                std::filesystem::remove_all(options.packed_folder);
                Session session(Program::load(kGolden, options), threads(1));
                return run_golden(session);
              }});
}

TEST(Faults, Generate) {
  const test::SmallLanguageModel small;
  const auto model = small.with_words();
  GenerationOptions options;
  options.max_new_tokens = 6;
  DecoderOptions decoder;
  decoder.threads = 1;
  TextGenerator generator(model, decoder);
  const auto generate = [&](TextGenerator& with) {
    const Generation made = with.generate(std::vector<std::int64_t>{1, 2, 3}, options);
    return bits(std::span(made.tokens)) + made.text;
  };
  inject_all({"generate", [&] { return generate(generator); }});
  inject_all({"make a generator and generate", [&] {
                TextGenerator own(model, decoder);
                return generate(own);
              }});
  inject_all({"batch of requests", [&] {
                DecoderOptions two = decoder;
                two.rows = 2;
                BatchGenerator batch(model, two);
                const auto a = batch.submit({1, 2, 3}, options), b = batch.submit({4, 5}, options);
                while (batch.step()) {
                }
                return bits(std::span(batch.take(a)->tokens)) + bits(std::span(batch.take(b)->tokens));
              }});
}

// What cannot be kept is computed; a file is there before, or is made.
TEST(Faults, PrefixCaches) {
  const test::SmallLanguageModel small;
  const test::TemporaryFolder folder;
  const std::string file = (folder.path() / "prefixes").string();
  DecoderOptions decoder;
  decoder.threads = 1;
  GenerationOptions options;
  options.max_new_tokens = 4;
  const std::vector<std::int64_t> prompt(80, 3), other(80, 4);
  const std::uint64_t bytes = 2 * PrefixCacheOptions::block_bytes(small.model, decoder);
  const auto generate = [&](const PrefixCacheOptions& prefixes) {
    BatchGenerator batch(small.model, decoder, prefixes);
    std::string out;
    for (const auto* next : {&prompt, &other, &prompt}) {
      const auto id = batch.submit(*next, options);
      while (batch.step()) {
      }
      out += bits(std::span(batch.take(id)->tokens));
    }
    return out;
  };
  inject_all({"batch with a prefix cache", [&] { return generate({.max_bytes = bytes}); }});
  inject_all({"batch with a new file of prefixes", [&] {
                std::filesystem::remove(file);
                return generate({bytes, file});
              }});
  generate({bytes, file});
  inject_all({"batch with a file of prefixes", [&] { return generate({bytes, file}); }});
}

// A step that fails is repeated; a request that memory for its next token lacked has ended with what it had.
TEST(Faults, GenerationGoesOnAfterAFailedStep) {
  const test::SmallLanguageModel small;
  DecoderOptions decoder;
  decoder.threads = 1;
  decoder.rows = 2;
  GenerationOptions options;
  options.max_new_tokens = 6;
  std::vector<std::vector<std::int64_t>> expected;
  inject_all({"steps of a batch, each again when it fails", [&] {
                BatchGenerator batch(small.model, decoder);
                const BatchGenerator::Id ids[] = {batch.submit({1, 2, 3}, options), batch.submit({4, 5}, options)};
                for (bool more = true, failed = false; more;) {
                  try {
                    more = batch.step();
                  } catch (const Error&) {
                    if (std::exchange(failed, true)) throw;  // faults that stay
                  }
                }
                for (std::size_t i = 0; i < 2; ++i) {
                  const Generation made = *batch.take(ids[i]);
                  if (expected.size() <= i) expected.push_back(made.tokens);
                  if (made.reason == FinishReason::cancelled) {
                    EXPECT_TRUE(std::ranges::equal(made.tokens, std::span(expected[i]).first(made.tokens.size())));
                  } else {
                    EXPECT_EQ(made.tokens, expected[i]);
                  }
                }
                return std::string("generated");
              }});
}

// Readers of JSON: documents that are half read, and those that are read, are freed without memory.
TEST(Faults, Tokenizers) {
  const test::TemporaryFolder folder;
  constexpr std::string_view kTokenizer =
      R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
          "pre_tokenizer": {"type": "Whitespace"}, "post_processor": {"type": "TemplateProcessing", "special_tokens":
          {"<s>": {"id": "<s>", "ids": [3]}}, "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
          "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
          "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";
  const std::string path = folder.write("tokenizer.json", std::as_bytes(std::span(kTokenizer)));
  folder.write("tokenizer_config.json",
               std::as_bytes(std::span(std::string_view(R"({"bos_token": {"content": "<s>"}})"))));
  inject_all({"load a tokenizer", [&] { return Tokenizer::load(path)->identity(); }});
  const auto tokenizer = Tokenizer::load(path);
  inject_all({"encode and decode", [&] {
                const std::vector<std::int64_t> ids = tokenizer->encode("ab A<s>b");
                return bits(std::span(ids)) + tokenizer->decode(ids);
              }});
  inject_all({"chat template", [&] {
                return tokenizer->apply_chat_template(
                    R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}], "thinking": "b"}],
                        "tools": [{"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}]})",
                    "{% for m in messages %}{{ m.role }}{{ m.content[0].text }}{% endfor %}{{ tools | tojson }}");
              }});
}

TEST(Faults, Schemas) {
  const std::vector<std::string> words{"{", "}", "\"", "a", "b", ":", "1", ""};
  const std::vector<std::int64_t> ends{7};
  const auto vocabulary = GrammarVocabulary::of(words, ends);
  inject_all({"grammar of a JSON schema", [&] {
                const auto grammar = Grammar::json_schema(
                    R"({"type": "object", "properties": {"a": {"enum": ["b", 1, [{}]]}}, "required": ["a"]})",
                    vocabulary);
                return str(grammar->begins("{"), grammar->matches(R"({"a":"b"})"), grammar->matches(R"({"a":2})"));
              }});
}

}  // namespace
}  // namespace graft::faults
