#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "session/test_kv_model.h"

// Layers with a window keep a ring buffer of their last tokens. Results are compared with a cache that holds all.
namespace graft {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kLength = 200;

SessionOptions ring_of(std::int64_t slack, std::int64_t rows = 1, KvType type = KvType::computed) {
  return test::with({rows, kLength, type, slack});
}

// Long enough for everything: no rings.
SessionOptions whole(std::int64_t rows = 1, KvType type = KvType::computed) { return ring_of(kLength, rows, type); }

struct RingCase {
  std::int64_t window = 0, chunk = 0, slack = 1;
  KvType type = KvType::computed;
};

class KvRing : public ::testing::TestWithParam<RingCase> {};

TEST_P(KvRing, AnyChunksAndTruncationsGiveWhatACacheOfAllTokensGives) {
  const RingCase& c = GetParam();
  test::KvModel model({.window = c.window, .chunk = c.chunk, .first_sees_all = true});
  const std::string path = ::testing::TempDir() + "graft_kv_ring";
  std::mt19937 rng(static_cast<unsigned>(c.window * 100 + c.chunk * 10 + c.slack));
  const auto pick = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(rng);
  };
  int taken_back = 0, longer_than_slack = 0, gone_round = 0;
  for (int round = 0; round < 6; ++round) {
    Session ring(model.program, ring_of(c.slack, 2, c.type)), all(model.program, whole(2, c.type));
    ASSERT_LT(ring.states()[3].tensor.shape.numel() + ring.states()[4].tensor.shape.numel(),
              all.states()[3].tensor.shape.numel() + all.states()[4].tensor.shape.numel());
    std::int64_t length = 0;
    for (int step = 0; step < 30; ++step) {
      const std::int64_t tokens = pick(0, 3) == 0 ? pick(1, 60) : pick(1, c.slack);
      if (length + tokens > kLength) break;
      longer_than_slack += tokens > c.slack;
      gone_round += length + tokens > c.slack + std::max(c.window, c.chunk);
      // The rows of this one are reversed.
      const std::vector<float> got = test::run(ring, {1, 2}, length, length + tokens, -1, {1, 0});
      // In blocks, weights are rounded to 16 bits of the largest among keys side by side, which a ring parts elsewhere.
      const bool blocks = GetParam().type >= KvType::q8_0;
      test::expect_near(got, test::run(all, {1, 2}, length, length + tokens), blocks ? 2e-5f : 1e-6f);
      length += tokens;
      ASSERT_LE(ring.kv_shortest(0), length);
      const std::int64_t back = pick(std::max<std::int64_t>(ring.kv_shortest(0), length - c.slack), length);
      taken_back += back < length;
      switch (pick(0, 5)) {
        case 0:
          ring.kv_truncate(back);
          all.kv_truncate(back);
          length = back;
          break;
        case 1:  // a run at a smaller position
          length = back;
          break;
        case 2:
          ring.kv_select(std::vector<std::int64_t>{1, 0});
          ring.kv_select(std::vector<std::int64_t>{1, 0});
          break;
        case 3:
          ring = ring.fork();
          break;
        case 4:
          ring.save(path);
          ring = Session(model.program, ring_of(c.slack + pick(0, 3), 2, c.type));
          ring.restore(path);
          break;
        default:
          break;
      }
    }
  }
  EXPECT_GT(taken_back, 5);
  EXPECT_GT(longer_than_slack, 5);
  EXPECT_GT(gone_round, 5);
  std::remove(path.c_str());
}

INSTANTIATE_TEST_SUITE_P(Sizes, KvRing,
                         ::testing::Values(RingCase{8, 0, 1}, RingCase{8, 0, 5}, RingCase{1, 0, 3}, RingCase{30, 0, 16},
                                           RingCase{0, 7, 4}, RingCase{0, 16, 16}, RingCase{9, 0, 6, KvType::f16},
                                           RingCase{9, 0, 6, KvType::q8_0}, RingCase{9, 0, 6, KvType::q4_0},
                                           RingCase{100, 0, 20}));

TEST(KvRing, AFailedRunLeavesWhatTheNextOneSees) {
  test::KvModel model({.window = 6, .first_sees_all = true, .may_fail = true});
  for (const std::int64_t tokens : {1, 4, 20}) {  // within the slack, all of it, more
    Session ring(model.program, ring_of(4)), all(model.program, whole());
    test::run(all, {1}, 0, 50, 0);
    test::run(ring, {1}, 0, 50, 0);
    for (int time = 0; time < 3; ++time)
      EXPECT_THROW(test::run(ring, {7}, 50, 50 + tokens, 5), ExecutionError) << "fails after the attention";
    EXPECT_THAT(ring.kv_lengths(), ElementsAre(50));
    EXPECT_EQ(ring.kv_shortest(0), tokens == 1   ? 47
                                   : tokens == 4 ? 50
                                                 : 46)
        << "what the failed runs overwrote is lost";
    test::expect_near(test::run(ring, {1}, 50, 53, 0), test::run(all, {1}, 50, 53, 0), 1e-6f);
    // At a smaller position the row is truncated, and what follows is not as if nothing had happened.
    EXPECT_THROW(test::run(ring, {7}, 52, 52 + tokens, 5), ExecutionError);
    EXPECT_THAT(ring.kv_lengths(), ElementsAre(52));
    test::expect_near(test::run(ring, {1}, 52, 53, 0), test::run(all, {1}, 52, 53, 0), 1e-6f);
  }
}

TEST(KvRing, TruncatedTooFar) {
  test::KvModel model({.window = 6});
  Session session(model.program, ring_of(4));
  test::run(session, {1}, 0, 50);  // the ring holds 41 .. 49, so tokens from 46 on see all of their window
  EXPECT_EQ(session.kv_shortest(0), 46);
  test::expect_error<InvalidArgument>([&] { session.kv_truncate(45); },
                                      "row 0 of 50 tokens cannot be truncated to 45: layers with a window hold enough "
                                      "for 46 tokens and more");
  test::expect_error<ExecutionError>([&] { test::run(session, {1}, 45, 46); },
                                     "position 45 sees the tokens from 40 on; of its window of 6 the cache holds those "
                                     "from 41 on");
  EXPECT_THAT(session.kv_lengths(), ElementsAre(50));
  session.kv_truncate(46);
  EXPECT_EQ(session.kv_shortest(0), 46);
  session.kv_truncate(0);
  EXPECT_EQ(session.kv_shortest(0), 1);
  test::run(session, {1}, 0, 3);
  EXPECT_THROW(Session(model.program, ring_of(0)), InvalidArgument);
}

TEST(KvRing, ResizedAndRestoredElsewhere) {
  test::KvModel model({.window = 6});
  const std::string path = ::testing::TempDir() + "graft_kv_ring_elsewhere";
  Session session(model.program, ring_of(4, 2)), all(model.program, whole(2));
  test::run(session, {1, 2}, 0, 50);
  test::run(all, {1, 2}, 0, 50);
  const std::vector<float> expected = test::run(all, {1, 2}, 50, 58);
  session.save(path);
  for (const std::int64_t slack : {1, 2, 30, 400}) {
    Session other(model.program, ring_of(slack, 2));
    other.restore(path);
    EXPECT_GE(other.kv_shortest(0), 46);
    test::expect_near(test::run(other, {1, 2}, 50, 58), expected, 1e-6f);
    other.restore(path);
    other.kv_resize(3, 60);
    EXPECT_THAT(other.kv_lengths(), ElementsAre(50, 50, 0));
    test::expect_near(test::run(other, {1, 2}, 50, 58), expected, 1e-6f);
    other.kv_resize(2, 300);
    const std::int64_t back = std::max<std::int64_t>(other.kv_shortest(0), 52);
    other.kv_truncate(back);
    test::expect_near(test::run(other, {1, 2}, back, 58), test::run(all, {1, 2}, back, 58), 1e-6f);
  }
  // From a cache of all tokens into a ring.
  all.save(path);
  session.restore(path);
  test::expect_near(test::run(session, {1, 2}, 58, 60), test::run(all, {1, 2}, 58, 60), 1e-6f);
  std::remove(path.c_str());
}

TEST(KvRing, TokensGoInAndOut) {
  test::KvModel model({.window = 6, .first_sees_all = true});
  Session session(model.program, ring_of(4)), other(model.program, ring_of(7)), all(model.program, whole());
  test::run(session, {1}, 0, 50);  // holds 41 .. 49
  test::run(all, {1}, 0, 50);
  const auto copy = [&](std::int64_t layer, std::int64_t first, std::int64_t count) {
    std::vector<float> keys(static_cast<std::size_t>(2 * count * 32)), values(keys.size());
    const Value k = test::tensor(keys, {2, count, 32}), v = test::tensor(values, {2, count, 32});
    session.kv_read(layer, 0, first, k.tensor, v.tensor);
    other.kv_write(layer, 0, first, k.tensor, v.tensor);
  };
  copy(0, 0, 50);
  copy(1, 41, 9);
  test::expect_error<InvalidArgument>([&] { copy(1, 40, 1); }, "layer 1 holds the tokens of row 0 from 41 on");
  test::expect_error<InvalidArgument>([&] { other.kv_set_lengths(std::vector<std::int64_t>{45}); },
                                      "cannot be truncated to 45");
  other.kv_set_lengths(std::vector<std::int64_t>{50});
  EXPECT_EQ(other.kv_shortest(0), 46);
  test::expect_near(test::run(other, {1}, 50, 58), test::run(all, {1}, 50, 58), 1e-6f);
  other.kv_set_lengths(std::vector<std::int64_t>{0});
  EXPECT_EQ(other.kv_shortest(0), 1);
}

// Copied out while they are held, token groups fill a ring of another size, which then holds its last ones.
TEST(KvRing, StoredTokensFillARing) {
  test::KvModel model({.window = 6, .first_sees_all = true});
  Session session(model.program, ring_of(4)), other(model.program, ring_of(7)), all(model.program, whole());
  const std::size_t group = 4 * session.kv_token_bytes();
  std::vector<std::byte> bytes(12 * group);
  for (std::int64_t i = 0; i < 12; ++i) {
    test::run(session, {1}, 4 * i, 4 * i + 4);
    EXPECT_TRUE(session.kv_copy_out(0, 4 * i, 4, std::span(bytes).subspan(static_cast<std::size_t>(i) * group, group)));
  }
  EXPECT_FALSE(session.kv_copy_out(0, 0, 4, std::span(bytes).first(group)));  // the ring has wrapped around
  test::run(other, {2}, 0, 60);
  for (std::int64_t i = 0; i < 12; ++i)
    other.kv_copy_in(0, 4 * i, 4, std::span(bytes).subspan(static_cast<std::size_t>(i) * group, group));
  EXPECT_THAT(other.kv_lengths(), ElementsAre(48));
  EXPECT_EQ(other.kv_shortest(0), 48 - (6 + 7 - 1) + 6 - 1);
  test::run(all, {1}, 0, 48);
  test::expect_near(test::run(other, {1}, 48, 58), test::run(all, {1}, 48, 58), 1e-6f);
  EXPECT_THROW(other.kv_copy_in(0, 20, 4, std::span(bytes).first(group)), InvalidArgument);
  EXPECT_THAT(other.kv_lengths(), ElementsAre(58));
}

TEST(KvRing, BytesOfAGemma3LikeModelWith32kTokens) {
  // 26 layers, every sixth sees all, the others a window of 512; 1 head of 256 elements.
  constexpr std::int64_t kTokens = 32768, kHead = 256, kWindow = 512, kRoom = 512;
  test::GraphBuilder graph;
  const ir::Dim b = test::dynamic(1, 8, "b"), t = test::dynamic(1, 4096, "t");
  auto x = graph.input("x", DType::f32, {b, test::fixed(1), t, test::fixed(kHead)});
  const auto position = graph.input("cache_position", DType::i64, {b, t});
  for (std::int64_t layer = 0; layer < 26; ++layer) {
    const auto y = test::attention(graph, x, x, position, {.layer = layer, .window = layer % 6 == 5 ? 0 : kWindow},
                                   {b, t, test::fixed(1), test::fixed(kHead)});
    x = graph.node("aten.transpose.int",
                   {{"self", ir::Arg::of_value(y)}, {"dim0", test::of_int(1)}, {"dim1", test::of_int(2)}}, DType::f32,
                   {b, test::fixed(1), t, test::fixed(kHead)});
  }
  graph.output(x);
  Session session(graph.build(), test::with({1, kTokens, KvType::f16, kRoom}));
  session.states();
  constexpr std::uint64_t kRow = kHead * 2 * 2;  // key and value in f16
  EXPECT_EQ(session.counters().state_bytes, 4 * kTokens * kRow + 22 * (kWindow - 1 + kRoom) * kRow + 8 + 8);
  // 157 MB of 873.
  EXPECT_EQ(session.counters().state_bytes, 157263888u);
}

}  // namespace
}  // namespace graft
