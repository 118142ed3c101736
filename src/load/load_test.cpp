#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/aligned.h"
#include "graft/graft.h"
#include "ir/test_blob.h"
#include "load/test_graph.h"
#include "package/test_package.h"
#include "weight/test_weights.h"

namespace graft {
namespace {

using test::Blob;
using test::bytes_of;
using test::fixed;
using test::GraphBuilder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ir::Arg;

constexpr const char* kPhases[] = {"parse", "verify", "weights", "constants", "states", "shrink"};

// The 4 x 4 weight of ir::test::make_blob.
Blob matrix() {
  std::vector<float> values(16);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.1F * static_cast<float>(i) - 0.7F;
  Blob out(64);
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

SessionOptions threads(int count, std::size_t graphs = 16) {
  SessionOptions options;
  options.threads = count;
  options.max_graphs = graphs;
  return options;
}

std::vector<float> run(Session& session, std::int64_t rows) {
  std::vector<float> x(static_cast<std::size_t>(rows) * 4);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 2.5F;
  const std::vector<Value> out = session.run("forward", std::vector<Value>{test::tensor(x, {rows, 4})});
  const auto* data = static_cast<const float*>(out.at(0).tensor.data);
  return {data, data + out[0].tensor.shape.numel()};
}

std::vector<float> run(const std::shared_ptr<const Program>& program, std::int64_t rows = 3) {
  Session session(program, threads(1));
  return run(session, rows);
}

std::size_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

class Load : public ::testing::Test {
 protected:
  static test::PteSpec spec(bool with_weight = true) {
    test::PteSpec out;
    out.plans = {test::delegated_plan(ir::test::make_blob())};
    if (with_weight) out.named = {{"w", matrix()}};
    return out;
  }
  std::string whole() const { return folder_.write("whole.pte", make_pte(spec())); }
  std::string without_weights() const { return folder_.write("without.pte", make_pte(spec(false))); }

  template <typename ErrorType>
  static std::string error_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const ErrorType& error) {
      return error.what();
    }
    return "";
  }

  test::TemporaryFolder folder_;
};

TEST_F(Load, EveryPhaseOnceInOrder) {
  std::vector<std::string> seen;
  LoadOptions options;
  options.on_phase = [&](std::string_view phase) { seen.emplace_back(phase); };
  const auto program = Program::load(whole(), options);
  EXPECT_EQ(seen, std::vector<std::string>(std::begin(kPhases), std::end(kPhases)));
  std::vector<PhaseStats> phases = program->stats().phases;
  ASSERT_EQ(phases.size(), std::size(kPhases));
  for (std::size_t i = 0; i < phases.size(); ++i) {
    EXPECT_EQ(phases[i].name, kPhases[i]);
    EXPECT_EQ(phases[i].times, 1U);
    EXPECT_GE(phases[i].milliseconds, 0);
  }
  EXPECT_GT(phases[0].bytes, 0U);
  EXPECT_EQ(phases[2].bytes, 64U);
  EXPECT_EQ(phases[4].bytes, 16U);

  Session session(program, threads(1));
  run(session, 3);
  run(session, 3);
  run(session, 5);
  phases = program->stats().phases;
  ASSERT_EQ(phases.size(), std::size(kPhases) + 2);
  for (std::size_t i = std::size(kPhases); i < phases.size(); ++i) {
    EXPECT_EQ(phases[i].times, 2U) << phases[i].name;
    EXPECT_GT(phases[i].bytes, 0U);
  }
  EXPECT_EQ(phases[6].name, "plans");
  EXPECT_EQ(phases[7].name, "launch sequence");
}

// Under the address sanitizer, leaks of a phase would show too.
TEST_F(Load, AFaultInAPhaseFreesEverything) {
  const std::string path = without_weights();
  LoadOptions options;
  options.weights = {folder_.write("w.safetensors", test::make_safetensors({{"w", "F32", {4, 4}, matrix()}}, 1))};
  run(Program::load(path, options));
  const std::size_t descriptors = entries_of("/proc/self/fd");
  for (const char* fault : kPhases) {
    std::string last;
    options.on_phase = [&](std::string_view phase) {
      last = phase;
      if (phase == fault) throw std::runtime_error("injected");
    };
    EXPECT_EQ(error_of<std::runtime_error>([&] { Program::load(path, options); }), "injected");
    EXPECT_EQ(last, fault);
    EXPECT_EQ(entries_of("/proc/self/fd"), descriptors) << fault;
  }
  options.on_phase = nullptr;
  EXPECT_EQ(run(Program::load(path, options)), run(Program::load(whole())));
}

TEST_F(Load, ErrorsKeepTheirTypeAndNameTheirPhase) {
  EXPECT_THAT(error_of<NotFound>([] { Program::load("/nowhere/none.pte"); }),
              HasSubstr("load, phase parse: no file '/nowhere/none.pte'"));
  const std::string text = folder_.write("text.pte", bytes_of(100));
  EXPECT_THAT(error_of<InvalidProgram>([&] { Program::load(text); }), HasSubstr("load, phase parse: '"));
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  graph.output(graph.node("aten.no_such_thing.default", {{"self", Arg::of_value(x)}}, DType::f32, {fixed(2)}));
  EXPECT_THAT(error_of<Unsupported>([&] { graph.build(); }),
              AllOf(HasSubstr("load, phase verify: "), HasSubstr("no_such_thing")));
  const std::string path = without_weights();
  EXPECT_THAT(error_of<NotFound>([&] { Program::load(path); }),
              HasSubstr("load, phase weights: no weight 'w' (l.weight) in '" + path + "'"));
}

TEST_F(Load, FourKindsOfWeightsGiveTheSameBits) {
  const std::vector<float> expected = run(Program::load(whole()));
  const std::string path = without_weights();
  struct Case {
    std::string file;
    std::uint64_t copied;
  };
  const Case cases[] = {
      {folder_.write("w.ptd", test::make_ptd({{"w", matrix()}, {"unused", bytes_of(3)}})), 0},
      {folder_.write("w.gguf", test::make_gguf({{"l.weight", GGML_TYPE_F32, {4, 4}, matrix()}}, folder_.path())), 0},
      // The header's length decides whether the data is aligned.
      {folder_.write("odd.safetensors", test::make_safetensors({{"l.weight", "F32", {4, 4}, matrix()}}, 1)), 64},
      {folder_.write("even.safetensors", test::make_safetensors({{"l.weight", "F32", {4, 4}, matrix()}}, 4)), 0},
  };
  std::vector<std::uint64_t> copied;
  for (const Case& c : cases) {
    LoadOptions options;
    options.weights = {c.file};
    const auto program = Program::load(path, options);
    EXPECT_EQ(run(program), expected) << c.file;
    const ProgramStats stats = program->stats();
    EXPECT_EQ(stats.weight_bytes, 64U);
    EXPECT_EQ(stats.weight_count, 1U);
    EXPECT_EQ(stats.given_bytes, 0U);
    EXPECT_EQ(stats.copied_count, stats.copied_bytes / 64);
    if (c.file.find("safetensors") == std::string::npos) {
      EXPECT_EQ(stats.copied_bytes, c.copied) << c.file;
    } else {
      copied.push_back(stats.copied_bytes);
    }
  }
  // 8 + header bytes: exactly one of two lengths that differ by 3 can be a multiple of 4, or none.
  Blob file = test::make_safetensors({{"l.weight", "F32", {4, 4}, matrix()}});
  const std::size_t data_at = file.size() - 64;
  EXPECT_EQ(copied, (std::vector<std::uint64_t>{(data_at + 1) % 4 ? 64U : 0U, (data_at + 4) % 4 ? 64U : 0U}));
  EXPECT_EQ(Program::load(whole())->stats().copied_bytes, 0U);
}

TEST_F(Load, PackageInMemory) {
  const std::vector<float> expected = run(Program::load(whole()));
  const Blob bytes = make_pte(spec());
  auto memory = std::make_shared<AlignedMemory>(bytes.size() + 8);
  std::memcpy(memory->data(), bytes.data(), bytes.size());
  const std::weak_ptr<AlignedMemory> alive = memory;
  LoadOptions options;
  options.keep_alive = memory;
  auto program = Program::load_memory({memory->data(), bytes.size()}, options);
  options = {};
  memory = nullptr;
  EXPECT_EQ(run(program), expected);
  program->shrink();
  EXPECT_EQ(run(program, 5), run(Program::load(whole()), 5));
  EXPECT_FALSE(alive.expired());
  program = nullptr;
  EXPECT_TRUE(alive.expired());

  AlignedMemory other(bytes.size() + 8);
  std::memcpy(other.data() + 4, bytes.data(), bytes.size());
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                Program::load_memory({other.data() + 4, bytes.size()});
              }),
              HasSubstr("load, phase parse: the package in memory must be aligned to 16 bytes"));
  EXPECT_THROW(Program::load_memory({}), InvalidProgram);
}

TEST_F(Load, WeightsInMemory) {
  const std::vector<float> expected = run(Program::load(whole()));
  alignas(4) std::byte memory[68];
  const Blob content = matrix();
  std::memcpy(memory, content.data(), content.size());
  LoadOptions options;
  options.tensors["l.weight"] = {memory, DType::f32, {4, 4}};
  const auto program = Program::load(without_weights(), options);
  EXPECT_EQ(run(program), expected);
  EXPECT_EQ(program->stats().given_bytes, 64U);
  EXPECT_EQ(program->stats().copied_bytes, 0U);
  std::memset(memory, 0, sizeof(memory));  // read in place
  EXPECT_NE(run(program), expected);

  const auto refused = [&](const TensorView& view, const char* name) {
    LoadOptions bad;
    bad.tensors[name] = view;
    return error_of<InvalidArgument>([&] { Program::load(whole(), bad); });
  };
  EXPECT_THAT(refused({memory, DType::f32, {16}}, "w"), HasSubstr("weight 'w' (l.weight) must be f32[4, 4]"));
  EXPECT_THAT(refused({memory + 1, DType::f32, {4, 4}}, "w"), HasSubstr("aligned"));
  EXPECT_THAT(refused({memory, DType::f32, {4, 4}}, "v"), HasSubstr("'v', which the program does not have"));
}

TEST_F(Load, WeightsAreThereOnceForAllMethodsPlansAndSessions) {
  test::PteSpec two = spec();
  ir::test::BlobOptions other;  // equal content under another key, like tied weights of two methods
  other.weight_key = "w2";
  const auto digest = std::vector<std::uint8_t>(32, 7);
  other.sha256 = digest;
  ir::test::BlobOptions first;
  first.sha256 = digest;
  two.plans = {test::delegated_plan(ir::test::make_blob(first)),
               test::delegated_plan(ir::test::make_blob(other), "again")};
  two.named.push_back({"w2", matrix()});
  const auto program = Program::load(folder_.write("two.pte", make_pte(two)));
  EXPECT_EQ(program->stats().weight_count, 1U);
  EXPECT_EQ(program->stats().weight_bytes, 64U);
  EXPECT_EQ(Internal::of(*program).methods[0].weights[0], Internal::of(*program).methods[1].weights[0]);

  std::vector<Session> sessions;
  for (int i = 0; i < 4; ++i) sessions.emplace_back(program, threads(1));
  for (Session& session : sessions)
    for (std::int64_t rows : {1, 2, 3}) run(session, rows);
  EXPECT_EQ(program->stats().weight_bytes, 64U);
  EXPECT_EQ(program->stats().copied_bytes, 0U);
  EXPECT_EQ(program->stats().phases[6].times, 3U);  // plans
}

TEST_F(Load, OnlyTheMethodsThatAreAskedFor) {
  test::PteSpec two = spec();
  const ir::test::BlobOptions blob;
  two.plans = {test::delegated_plan(ir::test::make_blob(blob)),
               test::delegated_plan(ir::test::make_blob(blob), "again")};
  const std::string path = folder_.write("methods.pte", make_pte(two));
  const auto all = Program::load(path);
  LoadOptions options;
  options.methods = {"again"};
  const auto program = Program::load(path, options);
  EXPECT_EQ(program->method_names(), std::vector<std::string>{"again"});
  EXPECT_EQ(program->stats().graph_bytes * 2, all->stats().graph_bytes);
  std::vector<float> x(12, 2);
  const std::vector<Value> in{test::tensor(x, {3, 4})};
  Session session(program, threads(1)), of_all(all, threads(1));
  EXPECT_EQ(test::floats(session.run("again", in)[0]), test::floats(of_all.run("again", in)[0]));
  program->shrink();  // plans come from the right method of the file then
  std::vector<float> more(16, 3);
  const std::vector<Value> larger{test::tensor(more, {4, 4})};
  EXPECT_EQ(test::floats(session.run("again", larger)[0]), test::floats(of_all.run("again", larger)[0]));
  EXPECT_EQ(program->stats().graphs_read_again, 1U);
  EXPECT_THROW(session.run("forward", in), NotFound);
  options.methods = {"again", "missing"};
  EXPECT_THROW(Program::load(path, options), NotFound);
}

TEST_F(Load, ShrunkProgramsPlanFromTheFile) {
  const auto reference = Program::load(whole());
  const auto program = Program::load(whole());
  Session session(program, threads(1));
  EXPECT_EQ(run(session, 3), run(reference, 3));
  const std::uint64_t before = program->stats().graph_bytes;
  EXPECT_EQ(before, program->stats().phases[0].bytes);
  EXPECT_GT(before, 1000U);
  program->shrink();
  program->shrink();
  EXPECT_EQ(program->stats().graph_bytes, 0U);
  EXPECT_EQ(program->stats().graph_bytes_freed, before);
  EXPECT_EQ(run(session, 3), run(reference, 3));
  EXPECT_EQ(program->stats().graphs_read_again, 0U);
  EXPECT_EQ(run(session, 4), run(reference, 4));
  EXPECT_EQ(program->stats().graphs_read_again, 1U);
  EXPECT_EQ(program->stats().graph_bytes, 0U);
  // For sizes that have a plan, the graph's rules still name a wrong dtype.
  std::vector<std::int64_t> ids(12);
  EXPECT_THROW(session.run("forward", std::vector<Value>{test::tensor(ids, DType::i64, {3, 4})}), InvalidArgument);
  EXPECT_FALSE(program->describe().empty());
}

// A weight that another layout is made of, and that is read as a view besides.
TEST_F(Load, ConstantsAreMadeOfViews) {
  GraphBuilder graph;
  const std::vector<ir::Dim> dims = {fixed(3), fixed(2)};
  const auto x = graph.input("x", DType::f32, dims);
  const auto w = graph.weight("w", {1, 2, 3, 4, 5, 6}, {2, 3});
  const auto t = graph.node("aten.t.default", {{"self", Arg::of_value(w)}}, DType::f32, dims);
  const auto c = graph.node("aten.exp.default", {{"self", Arg::of_value(t)}}, DType::f32, dims);
  const auto product =
      graph.node("aten.mul.Tensor", {{"self", Arg::of_value(x)}, {"other", Arg::of_value(c)}}, DType::f32, dims);
  graph.output(
      graph.node("aten.mul.Tensor", {{"self", Arg::of_value(product)}, {"other", Arg::of_value(t)}}, DType::f32, dims));
  const auto program = graph.build();
  const auto& method = Internal::of(*program).methods[0];
  ASSERT_EQ(method.constants.size(), 1U);
  EXPECT_EQ(program->stats().constant_bytes, 24U);
  EXPECT_EQ(Internal::of(*program).graph(0)->methods[0].nodes.size(), 3U);  // the view, and the products
  std::vector<float> ones(6, 1.f);
  Session session(program, threads(1));
  const std::vector<float> found =
      test::floats(session.run("forward", std::vector<Value>{test::tensor(ones, {3, 2})})[0]);
  const std::vector<float> expected = {1, 4, 2, 5, 3, 6};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(found[i], std::exp(expected[i]) * expected[i], 1e-3);
}

TEST_F(Load, LargeConstantsAreNotMadeOfViews) {
  for (const std::int64_t rows : {100, 1000}) {
    GraphBuilder graph;
    const std::vector<ir::Dim> dims = {fixed(300), fixed(rows)};
    const auto w = graph.weight("w", std::vector<float>(static_cast<std::size_t>(300 * rows), 1.f), {rows, 300});
    const auto t = graph.node("aten.t.default", {{"self", Arg::of_value(w)}}, DType::f32, dims);
    const auto c = graph.node("aten.exp.default", {{"self", Arg::of_value(t)}}, DType::f32, dims);
    const auto x = graph.input("x", DType::f32, dims);
    graph.output(
        graph.node("aten.mul.Tensor", {{"self", Arg::of_value(x)}, {"other", Arg::of_value(c)}}, DType::f32, dims));
    EXPECT_EQ(Internal::of(*graph.build()).methods[0].constants.size(), rows == 100 ? 1U : 0U);
  }
}

TEST_F(Load, ConstantsAreNotFoldedAgain) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {test::dynamic(0, 16, "n"), fixed(4)});
  const auto w = graph.weight("w", {1, 2, 3, 4}, {4});
  const auto c = graph.node("aten.exp.default", {{"self", Arg::of_value(w)}}, DType::f32, {fixed(4)});
  graph.output(graph.node("aten.mul.Tensor", {{"self", Arg::of_value(x)}, {"other", Arg::of_value(c)}}, DType::f32,
                          {test::dynamic(0, 16, "n"), fixed(4)}));
  const auto program = graph.build();
  ASSERT_EQ(Internal::of(*program).methods[0].constants.size(), 1U);
  const std::byte* folded = Internal::of(*program).methods[0].constants[0].memory->data();
  const std::vector<float> expected = run(program, 5);
  program->shrink();
  EXPECT_EQ(Internal::of(*program).graph(0)->methods[0].nodes.size(), 1U);
  const std::vector<float> found = run(program, 6);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.begin()));
  EXPECT_EQ(Internal::of(*program).methods[0].constants[0].memory->data(), folded);
  EXPECT_EQ(program->stats().constant_bytes, 16U);

  graph.method().nodes[0].name = "renamed";  // the program read again differs
  graph.program().weights[0].shape = {2, 2};
  graph.program().weights[0].byte_size = 8;
  EXPECT_THROW(run(program, 7), InvalidProgram);
  EXPECT_EQ(run(program, 6), found);
}

// Two methods that read the same weight.
TEST(ConstantPool, OneForAllMethods) {
  GraphBuilder first("first"), second("second"), other("other");
  const auto add = [](GraphBuilder& graph, const char* target) {
    const auto x = graph.input("x", DType::f32, {fixed(4)});
    const auto w = graph.weight("w", {1, 2, 3, 4}, {4});
    const auto c = graph.node(target, {{"self", Arg::of_value(w)}}, DType::f32, {fixed(4)});
    const auto d = graph.node("aten.neg.default", {{"self", Arg::of_value(c)}}, DType::f32, {fixed(4)});
    graph.output(graph.node("aten.mul.Tensor", {{"self", Arg::of_value(x)}, {"other", Arg::of_value(d)}}, DType::f32,
                            {fixed(4)}));
  };
  add(first, "aten.exp.default");
  add(second, "aten.exp.default");
  add(other, "aten.abs.default");
  const std::vector<float> weight = {1, 2, 3, 4};
  const auto find = [&](const ir::Weight&) -> FoundWeight {
    return {std::as_bytes(std::span(weight)), FoundWeight::Origin::package, "the test"};
  };
  const auto again = [&](std::size_t i) { return (i == 0 ? first : i == 1 ? second : other).program(); };
  const auto program =
      Internal::program(build_program({first.program(), second.program(), other.program()}, find, again, {}, "test"));
  const auto constant = [&](std::size_t method) {
    return Internal::of(*program).methods[method].constants.at(0).memory;
  };
  EXPECT_EQ(constant(0), constant(1));
  EXPECT_NE(constant(0), constant(2));
  EXPECT_EQ(program->stats().constant_bytes, 32U);
  Session session(program);
  std::vector<float> x = {1, 1, 1, 1};
  for (const char* method : {"first", "second"})
    EXPECT_FLOAT_EQ(test::floats(session.run(method, std::vector<Value>{test::tensor(x, DType::f32, {4})})[0])[3],
                    -std::exp(4.F));
  EXPECT_EQ(test::floats(session.run("other", std::vector<Value>{test::tensor(x, DType::f32, {4})})[0])[3], -4.F);
}

TEST_F(Load, ShrinkWhileSessionsRun) {
  const auto reference = Program::load(whole());
  std::vector<std::vector<float>> expected;
  for (std::int64_t rows = 0; rows <= 16; ++rows) expected.push_back(run(reference, rows));
  LoadOptions options;
  options.max_plans = 2;  // most calls must plan
  const auto program = Program::load(whole(), options);
  program->shrink();
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::thread shrinking([&] {
    while (!done) {
      program->shrink();
      (void)program->stats();
    }
  });
  std::vector<std::thread> callers;
  for (unsigned t = 0; t < 3; ++t)
    callers.emplace_back([&, t] {
      Session session(program, threads(1, 2));
      for (unsigned i = 0; i < 100; ++i) {
        const std::int64_t rows = (i * 7 + t * 5) % 17;
        wrong += run(session, rows) != expected[static_cast<std::size_t>(rows)];
      }
    });
  for (std::thread& caller : callers) caller.join();
  done = true;
  shrinking.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(program->stats().graphs_read_again, 0U);
}

TEST_F(Load, AFileThatChangedOnDisk) {
  const auto reference = Program::load(whole());
  const std::string path = folder_.write("changing.pte", make_pte(spec()));
  test::PteSpec padded = spec();
  padded.named.push_back({"unused", bytes_of(8)});  // at the end, so that the truncated bytes are no weight
  const auto shrunk = [&] {
    auto program = Program::load(path);
    program->shrink();
    return program;
  };
  // Renamed over or removed: an open mapping keeps the old content.
  auto program = shrunk();
  const std::string next = folder_.write("next.pte", bytes_of(100));
  std::filesystem::rename(next, path);
  EXPECT_EQ(run(program, 4), run(reference, 4));
  std::filesystem::remove(path);
  EXPECT_EQ(run(program, 5), run(reference, 5));

  // Longer, overwritten, truncated: new sizes are an error, existing plans still run.
  const auto changed = [&](const std::function<void()>& change) {
    folder_.write("changing.pte", make_pte(padded));
    program = shrunk();
    Session session(program, threads(1));
    EXPECT_EQ(run(session, 3), run(reference, 3));
    change();
    EXPECT_THAT(error_of<InvalidProgram>([&] { run(session, 4); }),
                AllOf(HasSubstr(path), HasSubstr("changed on disk since it was loaded")));
    EXPECT_EQ(run(session, 3), run(reference, 3));
  };
  changed([&] { std::ofstream(path, std::ios::app) << "more"; });
  changed([&] {
    const timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  });
  changed([&] { std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1); });
}

// A process owns as much after a hundred cycles as after the first ten.
TEST_F(Load, ALongLife) {
  const std::string path = without_weights();
  LoadOptions options;
  options.weights = {folder_.write("w.safetensors", test::make_safetensors({{"w", "F32", {4, 4}, matrix()}}, 1))};
  const auto resident = [] {
    std::ifstream statm("/proc/self/statm");
    std::size_t total = 0;
    std::size_t pages = 0;
    statm >> total >> pages;
    return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  };
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  const auto cycle = [&] {
    const auto program = Program::load(path, options);
    program->shrink();
    Session session(program, threads(2));
    run(session, 3);
    run(session, 9);
  };
  for (int i = 0; i < 10; ++i) cycle();
  const std::size_t descriptors = entries_of("/proc/self/fd");
  const std::size_t tasks = entries_of("/proc/self/task");
  const auto maps = mappings();
  [[maybe_unused]] const std::size_t memory = resident();
  for (int i = 0; i < 90; ++i) cycle();
  EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries_of("/proc/self/task"), tasks);
  EXPECT_LE(mappings(), maps + 2);  // the allocator may map another region
#ifndef __SANITIZE_ADDRESS__        // it keeps freed memory for a while
  EXPECT_LE(resident(), memory + 1024 * 1024);
#endif
}

}  // namespace
}  // namespace graft
