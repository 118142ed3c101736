#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "base/test_errors.h"
#include "load/test_graph.h"

// Layers with recurrent states: what a run leaves of them when it fails, and what callers do to rows between runs. The
// numbers of the kernels: kernel/recurrent/cached_state_test.cpp; of models: test/python/llm/recurrent_test.py.
namespace graft::test {
namespace {

constexpr std::int64_t kChannels = 5, kTaps = 4;

ir::Arg off() {
  ir::Arg arg;
  arg.kind = ir::Arg::Kind::boolean;
  return arg;
}

// Convolutions, one on the other. index: the channel that is read afterwards, so that a run fails when it is not there.
struct Recurrent {
  GraphBuilder graph;

  explicit Recurrent(const std::vector<std::int64_t>& layers = {0, 1}) {
    const ir::Dim b = dynamic(1, 8, "b"), t = dynamic(1, 64, "t");
    const std::vector<ir::Dim> dims = {b, t, fixed(kChannels)};
    auto x = graph.input("x", DType::f32, dims);
    const auto position = graph.input("cache_position", DType::i64, {b, t});
    const auto index = graph.input("index", DType::i64, {fixed(1)});
    std::vector<float> weight;
    for (std::int64_t i = 0; i < kTaps * kChannels; ++i) weight.push_back(0.1f * static_cast<float>(i % 7 + 1));
    for (const std::int64_t layer : layers)
      x = graph.node("graft.causal_conv1d.default",
                     {{"x", ir::Arg::of_value(x)},
                      {"weight", ir::Arg::of_value(graph.weight(str("w", graph_size_++), weight, {kTaps, kChannels}))},
                      {"bias", of_none()},
                      {"cache_position", ir::Arg::of_value(position)},
                      {"layer", of_int(layer)},
                      {"index", of_int(0)},
                      {"silu", off()}},
                     DType::f32, dims);
    graph.output(graph.node("aten.index_select.default",
                            {{"self", ir::Arg::of_value(x)}, {"dim", of_int(2)}, {"index", ir::Arg::of_value(index)}},
                            DType::f32, {b, t, fixed(1)}));
  }

 private:
  int graph_size_ = 0;
};

SessionOptions of_rows(std::int64_t rows, std::int64_t length = 40) {
  SessionOptions options;
  options.threads = 2;
  options.kv.rows = rows;
  options.kv.length = length;
  return options;
}

// Tokens [from, to) of these rows, which depend on (row, position) alone.
std::vector<float> run(Session& session, const std::vector<int>& rows, std::int64_t from, std::int64_t to,
                       std::int64_t index = 2, const RunOptions& given = {}) {
  std::vector<float> x;
  std::vector<std::int64_t> position;
  for (const int row : rows)
    for (std::int64_t t = from; t < to; ++t) {
      std::mt19937 rng(static_cast<unsigned>(row * 1000 + t));
      std::uniform_real_distribution<float> values(-1, 1);
      for (std::int64_t c = 0; c < kChannels; ++c) x.push_back(values(rng));
      position.push_back(t);
    }
  const auto batch = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> indices = {index};
  const std::vector<Value> in = {tensor(x, {batch, to - from, kChannels}),
                                 tensor(position, DType::i64, {batch, to - from}), tensor(indices, DType::i64, {1})};
  return floats(session.run("forward", in, given)[0]);
}

TEST(RecurrentStates, GoOnFromRunToRun) {
  Recurrent model;
  const auto program = model.graph.build();
  Session whole(program, of_rows(2)), parts(program, of_rows(2));
  const std::vector<float> expected = run(whole, {7}, 0, 12);
  std::vector<float> found;
  for (const auto& [from, to] : {std::pair{0, 1}, {1, 2}, {2, 7}, {7, 12}}) {
    const std::vector<float> part = run(parts, {7}, from, to);
    found.insert(found.end(), part.begin(), part.end());
  }
  EXPECT_EQ(found, expected);
}

TEST(RecurrentStates, ARunThatFailsLeavesThem) {
  Recurrent model;
  const auto program = model.graph.build();
  Session session(program, of_rows(2)), other(program, of_rows(2));
  run(session, {1, 2}, 0, 5);
  run(other, {1, 2}, 0, 5);
  const std::vector<float> expected = run(other, {1, 2}, 5, 9);
  for (int i = 0; i < 3; ++i) {
    expect_error<ExecutionError>([&] { run(session, {1, 2}, 5, 9, kChannels); }, "index");
    EXPECT_EQ(session.kv_lengths()[0], 5);
  }
  const CancelToken cancel;
  cancel.cancel();
  RunOptions cancelled;
  cancelled.cancel = &cancel;
  EXPECT_THROW(run(session, {1, 2}, 5, 9, 2, cancelled), Cancelled);
  EXPECT_EQ(run(session, {1, 2}, 5, 9), expected);
  EXPECT_EQ(session.kv_lengths()[1], 9);
}

TEST(RecurrentStates, RowsGoOnOrBeginAnew) {
  Recurrent model;
  const auto program = model.graph.build();
  Session session(program, of_rows(2));
  run(session, {1, 2}, 0, 9);
  expect_error<ExecutionError>(
      [&] { run(session, {1}, 8, 9); },
      "row 0: position 8 goes back from 9 tokens; the recurrent states of the row are those of "
      "all of them");
  expect_error<ExecutionError>([&] { run(session, {1}, 10, 11); }, "leaves a gap: the cache holds 9 tokens");
  EXPECT_EQ(session.kv_shortest(0), 9);
  expect_error<InvalidArgument>([&] { session.kv_truncate(4); },
                                "row 0 of 9 tokens cannot have 4: its recurrent states");
  const std::int64_t more[] = {9, 12};
  expect_error<InvalidArgument>([&] { session.kv_set_lengths(more); }, "row 1 of 9 tokens cannot have 12");
  const std::int64_t lengths[] = {0, 9};
  session.kv_set_lengths(lengths);
  Session fresh(program, of_rows(2));
  EXPECT_EQ(run(session, {1}, 0, 3), run(fresh, {1}, 0, 3));
  EXPECT_EQ(session.kv_lengths()[1], 9);
}

TEST(RecurrentStates, TokensAreNotCopied) {
  Recurrent model;
  Session session(model.graph.build(), of_rows(2));
  run(session, {1}, 0, 9);
  EXPECT_FALSE(session.kv_copy_out(0, 0, 4, {}));
  expect_error<InvalidArgument>([&] { session.kv_copy_in(1, 0, 4, {}); }, "nothing is copied into it");
}

TEST(RecurrentStates, TheirFileIsCheckedBeforeItIsRead) {
  Recurrent model;
  const auto program = model.graph.build();
  Session session(program, of_rows(2)), other(program, of_rows(2));
  run(session, {1, 2}, 0, 5);
  run(session, {1}, 5, 6);  // the rows are in different halves
  const std::string path = ::testing::TempDir() + "graft_recurrent_states";
  session.save(path);
  const std::vector<float> first = run(session, {1}, 6, 8);
  other.restore(path);
  EXPECT_EQ(other.kv_lengths()[0], 6);
  EXPECT_EQ(other.kv_lengths()[1], 5);
  EXPECT_EQ(run(other, {1}, 6, 8), first);
  Session smaller(program, of_rows(1));
  expect_error<InvalidArgument>([&] { smaller.restore(path); }, "2 rows");
}

TEST(RecurrentStates, StepsAllocateNothing) {
  Recurrent model;
  Session session(model.graph.build(), of_rows(1));
  run(session, {1}, 0, 3);
  run(session, {1}, 3, 4);
  const Counters before = session.counters();
  for (std::int64_t t = 4; t < 20; ++t) run(session, {1}, t, t + 1);
  const Counters after = session.counters();
  EXPECT_EQ(after.plan_misses, before.plan_misses);
  EXPECT_EQ(after.arena_allocations, before.arena_allocations);
  EXPECT_EQ(after.state_bytes, before.state_bytes);
}

TEST(RecurrentStates, EachNodeHasItsOwn) {
  Recurrent twice({3, 3});
  expect_error<InvalidProgram>([&] { twice.graph.build(); },
                               "needs a state of its own, found two of recurrent.3.conv.0");
}

}  // namespace
}  // namespace graft::test
