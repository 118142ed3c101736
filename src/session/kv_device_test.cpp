// The caches of a session on a device: they stay there, and give what those of the CPU give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>

#include "device/test_device.h"
#include "session/test_kv_model.h"

namespace graft {
namespace {

using test::expect_error;
using test::expect_near;
using test::run;
using test::tokens_of;
using test::with;
using ::testing::ElementsAre;

using Model = test::KvModel;

constexpr float kTolerance = 4e-6f;

LoadOptions on(const char* device) {
  LoadOptions options;
  options.device = device;
  return options;
}

// GRAFT_DEVICE, else ggml's RPC device.
const char* device_name() {
  const char* named = std::getenv("GRAFT_DEVICE");
  return named ? named : "rpc0";
}
LoadOptions on_device() { return on(device_name()); }
bool is_cuda() { return std::string_view(device_name()).starts_with("cuda"); }

class KvOnDevice : public test::DeviceTest {
 protected:
  // Sessions of the same model here and there.
  struct Pair {
    explicit Pair(const test::KvModelOptions& options, KvOptions kv = {})
        : model(options, on("cpu")), there_program(model.graph.build(on_device())) {
      here.emplace(model.program, with(kv));
      there.emplace(there_program, with(kv));
    }
    // Runs the tokens of both, and compares.
    void step(const std::vector<int>& rows, std::int64_t from, std::int64_t to,
              const std::vector<std::int64_t>& kv_rows = {}, float tolerance = kTolerance) {
      const std::vector<float> expected = run(*here, rows, from, to, -1, kv_rows);
      expect_near(run(*there, rows, from, to, -1, kv_rows), expected, tolerance);
      EXPECT_TRUE(std::ranges::equal(here->kv_lengths(), there->kv_lengths()));
    }
    // The same of both.
    void each(const std::function<void(Session&)>& change) {
      change(*here);
      change(*there);
    }

    Model model;
    std::shared_ptr<const Program> there_program;
    std::optional<Session> here, there;
  };
};

TEST_F(KvOnDevice, StepsMoveTokensAndResultsAlone) {
  Pair pair({});
  pair.step({1}, 0, 7);
  pair.step({1}, 7, 20);
  const Counters before = pair.there->counters();
  for (std::int64_t t = 20; t < 40; ++t) pair.step({1}, t, t + 1);
  const Counters after = pair.there->counters();
  // Tokens, positions, where they go and what they see: one upload; the result: one download.
  EXPECT_EQ(after.uploads - before.uploads, 20u);
  EXPECT_EQ(after.downloads - before.downloads, 20u);
  EXPECT_EQ(after.download_bytes - before.download_bytes, 20u * Model::kHeads * Model::kSize * 4);
  EXPECT_EQ(after.device_graphs - before.device_graphs, 20u);
  EXPECT_EQ(after.graphs_built, 3u) << "two prompts and one plan of all steps";
  EXPECT_EQ(after.state_uploads, 0u);
  EXPECT_EQ(after.state_downloads, 0u);
  EXPECT_LT(after.state_bytes, 64u) << "lengths alone are here";
}

TEST_F(KvOnDevice, AnotherPlanWhereTheCacheGrows) {
  Pair pair({}, {.length = 1024});
  for (std::int64_t t = 0; t < 640; t += 64) pair.step({1}, t, t + 64);
  // Up to 0, 255, 511 and 767 tokens before the run.
  EXPECT_EQ(pair.there->counters().graphs_built, 4u);
  pair.each([](Session& session) { session.kv_truncate(0); });
  pair.step({2}, 0, 64);
  EXPECT_EQ(pair.there->counters().graphs_built, 4u);
  for (std::int64_t t = 64; t < 1024; t += 64) pair.step({2}, t, t + 64);
  EXPECT_EQ(pair.there->counters().graphs_built, 5u);
  expect_error<ExecutionError>([&] { run(*pair.there, {1}, 1024, 1025); }, "beyond the cache of 1024 tokens");
}

// What many tokens see is computed on the device: positions go there, not a mask of tokens times slots.
TEST_F(KvOnDevice, ALargeMaskIsMadeThere) {
  Pair pair({}, {.rows = 2, .length = 512});
  for (std::int64_t t = 0; t < 256; t += 64) pair.step({1, 2}, t, t + 64);
  const std::uint64_t before = pair.there->counters().upload_bytes;
  pair.step({1, 2}, 256, 320);
  const std::uint64_t bytes = pair.there->counters().upload_bytes - before;
  const std::uint64_t tokens = 3 * 2 * 64 * Model::kHeads * Model::kSize * 4, mask = 2 * 64 * 512 * 2;
  EXPECT_LT(bytes, tokens + mask / 4);
  EXPECT_THAT(pair.there_program->describe(), ::testing::HasSubstr("ggml ARANGE"));
}

TEST_F(KvOnDevice, FullToTheLastSlotWithPadding) {
  Pair pair({}, {.rows = 2, .length = 48});
  pair.step({1, 2}, 0, 47);
  // Row 0 is full, and its second token of this run is padding before the first: it is written nowhere.
  const auto last = [](Session& session) {
    std::vector<float> x = tokens_of({1, 2}, 46, 48);
    std::vector<std::int64_t> position = {-1, 47, 46, 47};
    const std::vector<Value> in = {test::tensor(x, {2, Model::kHeads, 2, Model::kSize}),
                                   test::tensor(position, DType::i64, {2, 2})};
    const Value out = session.run("forward", in)[0];
    const auto* data = static_cast<const float*>(out.tensor.data);
    constexpr std::int64_t kToken = Model::kHeads * Model::kSize;
    return std::vector<float>(data + kToken, data + 4 * kToken);
  };
  expect_near(last(*pair.there), last(*pair.here), kTolerance);
  pair.each([](Session& session) { session.kv_truncate(40); });
  pair.step({1, 2}, 40, 48);
}

TEST_F(KvOnDevice, AnyRowsOfTheCache) {
  Pair pair({}, {.rows = 4});
  pair.step({1, 2}, 0, 7, {3, 0});
  pair.step({5, 6}, 0, 3, {1, 2});
  pair.step({2}, 7, 19, {0});
  pair.step({1}, 7, 19, {3});
  pair.step({2, 1}, 19, 20, {0, 3});
  pair.step({1, 2}, 20, 21, {3, 0});
  pair.step({5}, 3, 9, {1});
  pair.step({6, 1}, 3, 4, {2, 3});
  expect_error<ExecutionError>([&] { run(*pair.there, {1, 2}, 0, 2, -1, {1}); }, "a batch of 2 got 1 kv_rows");
  expect_error<InvalidArgument>([&] { run(*pair.there, {1, 2}, 0, 2, -1, {3}); }, "kv_rows");
  expect_error<InvalidArgument>([&] { run(*pair.there, {1}, 0, 2, -1, {4}); }, "got row 4");
}

TEST_F(KvOnDevice, TypesOfTheCache) {
  // ggml's CPU backend, which the server has, rounds queries as the keys are. What is rounded differs in its last bits,
  // and a number that goes to another of 16 values moves far.
  for (const auto& [type, tolerance] : {std::pair{KvType::f32, kTolerance},
                                        {KvType::f16, 2e-3f},
                                        {KvType::bf16, 1e-2f},
                                        {KvType::q8_0, 1e-2f},
                                        {KvType::q4_0, 0.15f}}) {
    Pair pair({}, {.rows = 2, .type = type});
    pair.step({1, 2}, 0, 9, {}, tolerance);
    for (std::int64_t t = 9; t < 12; ++t) pair.step({1, 2}, t, t + 1, {}, tolerance);
    pair.step({2}, 12, 13, {1}, tolerance);
    const Counters counters = pair.there->counters();
    EXPECT_EQ(counters.state_uploads + counters.state_downloads, 0u) << name(type);
    // CUDA has no attention to blocks in heads of 32.
    EXPECT_LT(counters.state_bytes, is_cuda() && type >= KvType::q8_0 ? UINT64_MAX : 64u) << name(type);
  }
}

TEST_F(KvOnDevice, WindowsChunksSoftcapSinks) {
  for (const test::KvModelOptions& options : {test::KvModelOptions{.window = 5},
                                              {.chunk = 6},
                                              {.softcap = 2},
                                              {.sinks = true},
                                              {.window = 9, .first_sees_all = true}}) {
    // Rings of 4 (5, 8) + 16 slots: runs of more than 16 tokens are staged on the CPU.
    Pair pair(options, {.rows = 2, .length = 256, .window_slack = 16});
    pair.step({1, 2}, 0, 7);
    pair.step({1, 2}, 7, 8);
    pair.step({1, 2}, 8, 40);
    for (std::int64_t t = 40; t < 60; ++t) pair.step({1, 2}, t, t + 1);
    pair.step({2}, 60, 76, {1});
    pair.each([](Session& session) { session.kv_set_lengths(std::array<std::int64_t, 2>{60, 66}); });
    pair.step({1}, 60, 63);
    pair.step({2}, 66, 70, {1});
  }
}

TEST_F(KvOnDevice, BlocksOfTokens) {
  for (const bool whole : {false, true})
    for (const std::int64_t window : {0, 3}) {
      test::GraphBuilder graph;
      const ir::Dim b = test::dynamic(1, 8, "b"), t = test::dynamic(1, 64, "t");
      const std::vector<ir::Dim> dims = {b, test::fixed(Model::kHeads), t, test::fixed(Model::kSize)};
      const auto x = graph.input("x", DType::f32, dims);
      const auto position = graph.input("cache_position", DType::i64, {b, t});
      test::AttentionNode node{.window = window, .whole_blocks = whole};
      node.blocks = ir::Arg::of_value(graph.input("blocks", DType::i64, {b, t, test::fixed(2)}));
      graph.output(
          test::attention(graph, x, x, position, node, {b, t, test::fixed(Model::kHeads), test::fixed(Model::kSize)}));
      Session here(graph.build(on("cpu")), with({})), there(graph.build(on_device()), with({}));
      const auto run = [&](Session& session, std::int64_t from, std::vector<std::int64_t> blocks) {
        const std::int64_t count = std::ssize(blocks) / 2;
        std::vector<float> tokens = tokens_of({1}, from, from + count);
        std::vector<std::int64_t> positions;
        for (std::int64_t p = from; p < from + count; ++p) positions.push_back(p);
        const std::vector<Value> in = {test::tensor(tokens, {1, Model::kHeads, count, Model::kSize}),
                                       test::tensor(positions, DType::i64, {1, count}),
                                       test::tensor(blocks, DType::i64, {1, count, 2})};
        return test::floats(session.run("forward", in)[0]);
      };
      const auto compare = [&](std::int64_t from, const std::vector<std::int64_t>& blocks) {
        expect_near(run(there, from, blocks), run(here, from, blocks), kTolerance);
      };
      compare(0, {0, 0, 1, 4, 1, 4, 1, 4, 1, 4, 5, 5});
      compare(6, {6, 6});
      compare(7, {7, 7, 8, 9, 8, 9});
      EXPECT_GT(there.counters().device_graphs, 0u);
    }
}

TEST_F(KvOnDevice, SharedHeads) {
  Pair pair({.group = 3}, {.rows = 3});
  pair.step({1, 2}, 0, 1);
  pair.step({1, 2}, 1, 3);
  pair.step({1, 2}, 3, 20);
  for (std::int64_t t = 20; t < 24; ++t) pair.step({1, 2}, t, t + 1);
  pair.step({2, 1}, 24, 25, {1, 0});
  pair.step({2}, 25, 30, {1});
}

TEST_F(KvOnDevice, ResizedToASizeOfBefore) {
  Pair pair({}, {.length = 64});
  pair.step({1}, 0, 4);
  pair.step({1}, 4, 5);
  pair.each([](Session& session) { session.kv_resize(1, 128); });
  pair.step({1}, 5, 6);
  pair.each([](Session& session) { session.kv_resize(1, 64); });
  pair.step({1}, 6, 7);
  pair.step({1}, 7, 8);
  EXPECT_EQ(pair.there->counters().graphs_built, 3u);
}

// What callers do to caches between runs is done to the bytes here, and goes there again with the next run.
TEST_F(KvOnDevice, SelectForkResizeSaveAndTokens) {
  Pair pair({}, {.rows = 3, .length = 128});
  pair.step({1, 2, 3}, 0, 10);
  pair.each([](Session& session) { session.kv_select(std::array<std::int64_t, 3>{2, 0, 2}); });
  pair.step({3, 1, 3}, 10, 12);
  const Counters counters = pair.there->counters();
  EXPECT_EQ(counters.state_downloads, 4u) << "keys and values of two layers";
  EXPECT_EQ(counters.state_uploads, 4u);

  Session fork_here = pair.here->fork(), fork_there = pair.there->fork();
  expect_near(run(fork_there, {3, 1, 3}, 12, 13), run(fork_here, {3, 1, 3}, 12, 13), kTolerance);
  const std::uint64_t uploads = pair.there->counters().state_uploads;
  pair.step({3, 1, 3}, 12, 14);
  EXPECT_EQ(pair.there->counters().state_uploads, uploads) << "a fork reads";

  pair.each([](Session& session) { session.kv_resize(4, 200); });
  pair.step({3, 1, 3}, 14, 15);
  pair.step({4}, 0, 60, {3});
  pair.step({4}, 60, 120, {3});
  pair.step({4}, 120, 150, {3});

  const std::string path = ::testing::TempDir() + "kv_on_device";
  pair.there->save(path);
  pair.step({3, 1, 3}, 15, 20);
  pair.there->restore(path);
  pair.here->kv_truncate(15);
  pair.here->kv_set_lengths(std::array<std::int64_t, 4>{15, 15, 15, 15});
  pair.there->kv_set_lengths(std::array<std::int64_t, 4>{15, 15, 15, 15});
  pair.step({3, 1, 3, 4}, 15, 17);
  std::remove(path.c_str());

  const std::int64_t count = 6;
  std::vector<float> here_keys(Model::kHeads * count * Model::kSize), here_values = here_keys, keys = here_keys,
                                                                      values = here_keys;
  const Shape shape{Model::kHeads, count, Model::kSize};
  const auto view = [&](std::vector<float>& data) { return TensorView{data.data(), DType::f32, shape}; };
  pair.here->kv_read(1, 0, 3, view(here_keys), view(here_values));
  pair.there->kv_read(1, 0, 3, view(keys), view(values));
  expect_near(keys, here_keys, kTolerance);
  expect_near(values, here_values, kTolerance);
  pair.each([&](Session& session) { session.kv_write(0, 0, 5, view(here_keys), view(here_values)); });
  pair.step({3, 1, 3, 4}, 17, 18);

  pair.each([](Session& session) { session.reset(); });
  pair.step({7, 8}, 0, 5);
}

TEST_F(KvOnDevice, AFailedRunChangesNothing) {
  Pair pair({});
  pair.step({1}, 0, 10);
  expect_error<ExecutionError>([&] { run(*pair.there, {1}, 12, 13); }, "leaves a gap");
  pair.step({1}, 10, 11);
}

TEST_F(KvOnDevice, SharedWithASessionOfTheCpu) {
  Model model({}, on("cpu"));
  const std::shared_ptr<const Program> there_program = model.graph.build(on_device());
  SessionOptions options = with({});
  Session reference(model.program, options);
  options.states = std::make_shared<States>();
  Session here(model.program, options), there(there_program, options);
  for (std::int64_t t = 0; t < 24; t += 4)
    expect_near(run(t % 8 == 0 ? there : here, {1}, t, t + 4), run(reference, {1}, t, t + 4), kTolerance);
  EXPECT_THAT(here.kv_lengths(), ElementsAre(24));
}

}  // namespace
}  // namespace graft
