#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "session/test_kv_model.h"

// A session's KV cache: what runs write, and what a caller does to it between runs.
namespace graft {
namespace {

using ir::Arg;
using test::expect_error;
using test::expect_near;
using test::fixed;
using test::GraphBuilder;
using test::run;
using test::tensor;
using test::tokens_of;
using test::with;
using ::testing::ElementsAre;

constexpr std::int64_t kHeads = test::KvModel::kHeads, kSize = test::KvModel::kSize;

using Model = test::KvModel;

std::vector<float> last(const std::vector<float>& all, std::int64_t tokens) {  // of one row
  return {all.end() - tokens * kHeads * kSize, all.end()};
}

TEST(KvCache, ChunksGiveWhatTheWholeGives) {
  Model model;
  Session whole(model.program, with({}));
  const std::vector<float> expected = run(whole, {1}, 0, 20);
  EXPECT_THAT(whole.kv_lengths(), ElementsAre(20));
  Session chunked(model.program, with({}));
  run(chunked, {1}, 0, 7);
  run(chunked, {1}, 7, 15);
  for (std::int64_t t = 15; t < 20; ++t) {
    const std::vector<float> got = run(chunked, {1}, t, t + 1);
    const std::vector<float> want(expected.begin() + t * kHeads * kSize, expected.begin() + (t + 1) * kHeads * kSize);
    expect_near(got, want, 2e-6f);
  }
  EXPECT_THAT(chunked.kv_lengths(), ElementsAre(20));
  // The positions are no part of a plan: five steps made one.
  EXPECT_EQ(chunked.counters().plan_misses + chunked.counters().plan_hits, 7u);
  EXPECT_EQ(chunked.counters().graphs_built, 3u);
}

// Two nodes of one layer, with the same keys and values, and a window that makes a ring of the cache.
TEST(KvCache, LayersShareKeysAndValues) {
  const auto model = [](std::int64_t second_layer, bool other_keys = false) {
    GraphBuilder graph;
    const ir::Dim b = test::dynamic(1, 8, "b"), t = test::dynamic(1, 64, "t");
    const std::vector<ir::Dim> dims = {b, fixed(kHeads), t, fixed(kSize)}, out = {b, t, fixed(kHeads), fixed(kSize)};
    const auto x = graph.input("x", DType::f32, dims);
    const auto position = graph.input("cache_position", DType::i64, {b, t});
    const auto first = test::attention(graph, x, x, position, {.layer = 0, .window = 5}, out);
    const auto query = graph.node(
        "aten.transpose.int", {{"self", Arg::of_value(first)}, {"dim0", test::of_int(1)}, {"dim1", test::of_int(2)}},
        DType::f32, dims);
    graph.output(
        test::attention(graph, query, other_keys ? query : x, position, {.layer = second_layer, .window = 5}, out));
    return graph.build();
  };
  Session shared(model(0), with({.window_slack = 4})), apart(model(1), with({.window_slack = 4}));
  for (const auto& [from, to] : {std::pair(0, 3), {3, 4}, {4, 30}, {30, 31}, {31, 33}})
    EXPECT_EQ(run(shared, {1}, from, to), run(apart, {1}, from, to)) << from;
  EXPECT_LT(shared.counters().state_bytes, apart.counters().state_bytes);
  expect_error<InvalidProgram>([&] { model(0, true); }, "needs a layer of its own, found 0");
}

TEST(KvCache, ABatchUsesTheRowsItNames) {
  Model model;
  Session first(model.program, with({})), second(model.program, with({}));
  const std::vector<float> one = run(first, {1}, 0, 20), two = run(second, {2}, 0, 20);
  Session session(model.program, with({.rows = 4}));
  run(session, {1, 2}, 0, 7, -1, {3, 0});
  EXPECT_THAT(session.kv_lengths(), ElementsAre(7, 0, 0, 7));
  run(session, {5, 6}, 0, 3, -1, {1, 2});
  run(session, {2}, 7, 19, -1, {0});
  run(session, {1}, 7, 19, -1, {3});
  EXPECT_THAT(session.kv_lengths(), ElementsAre(19, 3, 3, 19));
  std::vector<float> want = last(two, 1);
  const std::vector<float> more = last(one, 1);
  want.insert(want.end(), more.begin(), more.end());
  expect_near(run(session, {2, 1}, 19, 20, -1, {0, 3}), want, 2e-6f);
  // The choice of rows is no part of a plan.
  EXPECT_EQ(session.counters().graphs_built, 4u);
  // A smaller position truncates the row of the cache, and no other one.
  run(session, {1}, 4, 12, -1, {0});
  EXPECT_THAT(session.kv_lengths(), ElementsAre(12, 3, 3, 20));
}

TEST(KvCache, RowsThatDoNotFit) {
  Model model;
  Session session(model.program, with({.rows = 3}));
  expect_error<InvalidArgument>([&] { run(session, {1}, 0, 2, -1, {3}); }, "kv_rows: the cache has 3 rows, got row 3");
  expect_error<InvalidArgument>([&] { run(session, {1}, 0, 2, -1, {-1}); }, "got row -1");
  expect_error<InvalidArgument>([&] { run(session, {1, 2}, 0, 2, -1, {1, 1}); }, "row 1 stands twice");
  expect_error<ExecutionError>([&] { run(session, {1, 2}, 0, 2, -1, {1}); }, "a batch of 2 got 1 kv_rows");
  EXPECT_THAT(session.kv_lengths(), ElementsAre(0, 0, 0));
}

// [B, heads, T, size] as [B, T, heads, size].
std::vector<float> tokens_first(const std::vector<float>& x, std::int64_t tokens) {
  std::vector<float> out(x.size());
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t t = 0; t < tokens; ++t)
      std::copy_n(x.begin() + (h * tokens + t) * kSize, kSize, out.begin() + (t * kHeads + h) * kSize);
  return out;
}

TEST(KvCache, AWindowOfOneGivesTheTokenItself) {
  Model model({.window = 1, .layers = 1});
  Session session(model.program, with({}));
  expect_near(run(session, {1}, 0, 12), tokens_first(tokens_of({1}, 0, 12), 12), 1e-6f);
}

TEST(KvCache, ATinySoftcapGivesTheMean) {
  Model model({.softcap = 1e-6, .layers = 1});
  Session session(model.program, with({}));
  const std::vector<float> x = tokens_first(tokens_of({1}, 0, 12), 12);
  std::vector<float> mean(kHeads * kSize, 0);
  for (std::size_t i = 0; i < x.size(); ++i) mean[i % mean.size()] += x[i] / 12;
  expect_near(last(run(session, {1}, 0, 12), 1), mean, 1e-5f);
}

TEST(KvCache, LargeSinksTakeAll) {
  Model model({.sinks = true, .layers = 1});
  Session session(model.program, with({}));
  const std::vector<float> got = run(session, {1}, 0, 12);
  expect_near(got, std::vector<float>(got.size(), 0), 1e-6f);
}

TEST(KvCache, TypesOfTheCache) {
  Model model;
  Session exact(model.program, with({}));
  const std::vector<float> expected = run(exact, {1}, 0, 30);
  for (const auto& [type, limit, bytes] :
       {std::tuple{KvType::f32, 0.f, 4.0}, std::tuple{KvType::f16, 1e-3f, 2.0}, std::tuple{KvType::bf16, 1e-2f, 2.0},
        std::tuple{KvType::q8_0, 1e-2f, 1.0625}, std::tuple{KvType::q4_0, 2e-1f, 0.5625}}) {
    Session session(model.program, with({1, 64, type}));
    expect_near(run(session, {1}, 0, 30), expected, limit);
    EXPECT_EQ(session.counters().state_bytes, static_cast<std::uint64_t>(64 * kHeads * kSize * 4 * bytes) + 8);
  }
}

TEST(KvCache, RowsAreApart) {
  Model model;
  Session session(model.program, with({3, 64}));
  const std::vector<float> both = run(session, {4, 5}, 0, 9);
  EXPECT_THAT(session.kv_lengths(), ElementsAre(9, 9, 0));
  Session alone(model.program, with({}));
  const std::vector<float> five = run(alone, {5}, 0, 9);
  expect_near(last(both, 9), five, 2e-6f);
}

TEST(KvCache, TruncateAndGoOn) {
  Model model;
  Session session(model.program, with({}));
  const std::vector<float> first = run(session, {1}, 0, 12);
  session.kv_truncate(8);
  EXPECT_THAT(session.kv_lengths(), ElementsAre(8));
  expect_near(run(session, {1}, 8, 12), last(first, 4), 2e-6f);
  // A smaller position truncates by itself.
  expect_near(run(session, {1}, 5, 12), last(first, 7), 2e-6f);
  session.reset();
  EXPECT_THAT(session.kv_lengths(), ElementsAre(0));
  expect_near(run(session, {1}, 0, 12), first, 2e-6f);
}

TEST(KvCache, SelectedRowsAreCopies) {
  Model model;
  Session session(model.program, with({4, 64}));
  run(session, {1, 2, 3}, 0, 6);
  session.kv_select(std::vector<std::int64_t>{2, 0, 0, 1});
  EXPECT_THAT(session.kv_lengths(), ElementsAre(6, 6, 6, 6));
  const std::vector<float> got = run(session, {3, 1, 1, 2}, 6, 9);
  Session fresh(model.program, with({4, 64}));
  run(fresh, {3, 1, 1, 2}, 0, 6);
  expect_near(got, run(fresh, {3, 1, 1, 2}, 6, 9), 2e-6f);
  session.kv_select(std::vector<std::int64_t>{1});
  EXPECT_THAT(session.kv_lengths(), ElementsAre(9, 0, 0, 0));
}

TEST(KvCache, ForkSaveRestoreResize) {
  Model model;
  Session session(model.program, with({2, 64, KvType::f16}));
  run(session, {1, 2}, 0, 10);
  const std::string path = ::testing::TempDir() + "graft_kv_cache";
  session.save(path);
  Session fork = session.fork();
  const std::vector<float> expected = run(session, {1, 2}, 10, 14);
  EXPECT_EQ(run(fork, {1, 2}, 10, 14), expected);
  EXPECT_THAT(fork.kv_lengths(), ElementsAre(14, 14));
  Session later(model.program, with({2, 32, KvType::f16}));  // capacity for fewer tokens
  later.restore(path);
  EXPECT_EQ(run(later, {1, 2}, 10, 14), expected);
  later.restore(path);
  later.kv_resize(5, 200);
  EXPECT_THAT(later.kv_lengths(), ElementsAre(10, 10, 0, 0, 0));
  EXPECT_EQ(run(later, {1, 2}, 10, 14), expected);
  Session small(model.program, with({2, 9, KvType::f16}));
  EXPECT_THROW(small.restore(path), InvalidArgument);
  Session other(model.program, with({1, 64, KvType::f16}));
  EXPECT_THROW(other.restore(path), InvalidArgument);
  EXPECT_THROW(later.kv_resize(1, 200), InvalidArgument);
  EXPECT_THROW(later.kv_resize(2, 13), InvalidArgument);
  std::remove(path.c_str());
}

// Reusing a session for another cache of the same size must not touch its memory again.
TEST(KvCache, ResizedToItsOwnSizeKeepsItsMemory) {
  Model model;
  Session session(model.program, with({2, 64}));
  const std::vector<float> expected = run(session, {1, 2}, 0, 10);
  std::vector<void*> before, after;
  for (const StateView& state : session.states()) before.push_back(state.tensor.data);
  session.kv_resize(2, 64);
  for (const StateView& state : session.states()) after.push_back(state.tensor.data);
  EXPECT_EQ(after, before);
  EXPECT_THAT(session.kv_lengths(), ElementsAre(10, 10));
  session.kv_resize(2, 65);
  after.clear();
  for (const StateView& state : session.states()) after.push_back(state.tensor.data);
  EXPECT_NE(after, before);
}

// Tokens read from one cache and written into another give the same results there.
TEST(KvCache, TokensGoInAndOut) {
  Model model;
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0, KvType::q4_0}) {
    Session from(model.program, with({2, 64, type})), to(model.program, with({3, 32, type}));
    run(from, {1, 2}, 0, 10);
    const std::int64_t count = 10;
    std::vector<float> keys(kHeads * count * kSize), values(keys.size());
    const Value k = tensor(keys, {kHeads, count, kSize}), v = tensor(values, {kHeads, count, kSize});
    for (std::int64_t layer = 0; layer < 2; ++layer)
      for (std::int64_t row = 0; row < 2; ++row) {
        from.kv_read(layer, row, 0, k.tensor, v.tensor);
        EXPECT_EQ(keys, values);  // as the model has them
        to.kv_write(layer, row, 0, k.tensor, v.tensor);
      }
    to.kv_set_lengths(std::vector<std::int64_t>{10, 10, 0});
    // Rounding rounded values again changes nothing; scales of q8_0 may differ in their last bit.
    expect_near(run(to, {1, 2}, 10, 14), run(from, {1, 2}, 10, 14), type == KvType::q8_0 ? 1e-3f : 0.f);
    EXPECT_THROW(from.kv_read(0, 0, 5, k.tensor, v.tensor), InvalidArgument);
    EXPECT_THROW(from.kv_read(2, 0, 0, k.tensor, v.tensor), InvalidArgument);
    EXPECT_THROW(from.kv_read(0, 2, 0, k.tensor, v.tensor), InvalidArgument);
    EXPECT_THROW(to.kv_write(0, 0, 23, k.tensor, v.tensor), InvalidArgument);
    EXPECT_THROW(to.kv_set_lengths(std::vector<std::int64_t>{33, 0, 0}), InvalidArgument);
    EXPECT_THROW(to.kv_set_lengths(std::vector<std::int64_t>{1}), InvalidArgument);
  }
}

// As they are stored, to any row; the row they go to has others before.
TEST(KvCache, StoredTokensAreCopiedAsTheyAre) {
  Model model;
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0, KvType::q4_0}) {
    Session from(model.program, with({2, 64, type})), to(model.program, with({3, 32, type}));
    run(from, {1, 2}, 0, 10);
    run(to, {3, 4, 5}, 0, 20);
    const std::size_t token = from.kv_token_bytes();
    EXPECT_EQ(token, to.kv_token_bytes());
    std::vector<std::byte> bytes(6 * token), rest(4 * token);
    for (const std::int64_t row : {0, 1}) {
      EXPECT_TRUE(from.kv_copy_out(row, 0, 6, bytes));
      EXPECT_TRUE(from.kv_copy_out(row, 6, 4, rest));
      to.kv_copy_in(row, 0, 6, bytes);
      to.kv_copy_in(row, 6, 4, rest);
    }
    EXPECT_THAT(to.kv_lengths(), ElementsAre(10, 10, 20));
    EXPECT_EQ(run(to, {1, 2}, 10, 14), run(from, {1, 2}, 10, 14));
    to.kv_copy_in(1, 6, 4, rest);  // truncates first
    EXPECT_THAT(to.kv_lengths(), ElementsAre(14, 10, 20));
    EXPECT_THROW(from.kv_copy_out(0, 11, 4, rest), InvalidArgument);
    EXPECT_THROW(from.kv_copy_out(2, 0, 4, rest), InvalidArgument);
    EXPECT_THROW(from.kv_copy_out(0, 0, 5, rest), InvalidArgument);
    EXPECT_THROW(from.kv_copy_out(0, -1, 4, rest), InvalidArgument);
    EXPECT_THROW(to.kv_copy_in(1, 11, 4, rest), InvalidArgument);
    EXPECT_THROW(to.kv_copy_in(2, 30, 4, rest), InvalidArgument);
    EXPECT_THAT(to.kv_lengths(), ElementsAre(14, 10, 20));
  }
}

TEST(KvCache, WrongPositionsAreErrorsThatChangeNothing) {
  Model model;
  Session session(model.program, with({2, 16}));
  run(session, {1}, 0, 5);
  expect_error<ExecutionError>([&] { run(session, {1}, 6, 8); },
                               "row 0: position 6 leaves a gap: the cache holds 5 tokens");
  expect_error<ExecutionError>([&] { run(session, {1}, 5, 17); }, "position 16 is beyond the cache of 16 tokens");
  expect_error<InvalidArgument>([&] { run(session, {1, 2, 3}, 0, 1); }, "a batch of 3 needs as many rows");
  const auto with_positions = [&](std::vector<std::int64_t> position) {
    std::vector<float> x = tokens_of({1}, 0, static_cast<std::int64_t>(position.size()));
    const auto n = static_cast<std::int64_t>(position.size());
    session.run("forward", std::vector<Value>{tensor(x, {1, kHeads, n, kSize}), tensor(position, DType::i64, {1, n})});
  };
  expect_error<ExecutionError>([&] { with_positions({5, 7}); }, "position 7 of token 1, expected 6");
  expect_error<ExecutionError>([&] { with_positions({5, -1}); }, "padding must come before");
  EXPECT_THAT(session.kv_lengths(), ElementsAre(5, 0));
  with_positions({-1, -1, 5});
  EXPECT_THAT(session.kv_lengths(), ElementsAre(6, 0));
}

TEST(KvCache, AStoppedRunDoesNotAdvance) {
  Model model;
  Session session(model.program, with({}));
  const std::vector<float> expected = run(session, {1}, 0, 6);
  CancelToken cancel;
  cancel.cancel();
  std::vector<float> x = tokens_of({9}, 6, 7);
  std::vector<std::int64_t> position = {6};
  RunOptions options;
  options.cancel = &cancel;
  EXPECT_THROW(
      session.run("forward", std::vector<Value>{tensor(x, {1, kHeads, 1, kSize}), tensor(position, DType::i64, {1, 1})},
                  options),
      Cancelled);
  EXPECT_THAT(session.kv_lengths(), ElementsAre(6));
}

TEST(KvCache, BadOptions) {
  Model model;
  EXPECT_THROW(Session(model.program, with({0, 16})), InvalidArgument);
  EXPECT_THROW(Session(model.program, with({1, 0})), InvalidArgument);
  GraphBuilder plain;
  const auto x = plain.input("x", DType::f32, {fixed(2)});
  plain.output(plain.node("aten.relu.default", {{"self", Arg::of_value(x)}}, DType::f32, {fixed(2)}));
  Session session(plain.build());
  expect_error<InvalidArgument>([&] { session.kv_lengths(); }, "no cache of keys and values");
}

}  // namespace
}  // namespace graft
