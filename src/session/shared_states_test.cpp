#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "session/test_kv_model.h"

// Sessions of several programs that share states by name (SessionOptions::states).
namespace graft {
namespace {

using ir::Arg;
using test::expect_error;
using test::fixed;
using test::floats;
using test::GraphBuilder;
using test::KvModel;
using test::of_int;
using test::run;
using test::tensor;
using ::testing::ElementsAre;

// total [n] += x * factor -> the new total.
std::shared_ptr<const Program> adding(std::int64_t factor, std::int64_t n = 2) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(n)});
  const auto total = graph.state("total", DType::f32, {n});
  const auto sum = graph.node("aten.add.Tensor",
                              {{"self", Arg::of_value(total)}, {"other", Arg::of_value(x)}, {"alpha", of_int(factor)}},
                              DType::f32, {fixed(n)});
  graph.output(sum);
  graph.mutate_state(0, sum);
  return graph.build();
}

std::vector<float> add(Session& session, std::vector<float> x) {
  const auto n = static_cast<std::int64_t>(x.size());
  return floats(session.run("forward", std::vector<Value>{tensor(x, {n})})[0]);
}

SessionOptions sharing(std::shared_ptr<States> states, KvOptions kv = {}) {
  SessionOptions options;
  options.threads = 1;
  options.states = std::move(states);
  options.kv = kv;
  return options;
}

TEST(SharedStates, ByName) {
  const auto states = std::make_shared<States>();
  Session up(adding(1), sharing(states)), down(adding(-2), sharing(states)), alone(adding(1));
  EXPECT_THAT(add(up, {3, 4}), ElementsAre(3, 4));
  EXPECT_THAT(add(down, {1, 1}), ElementsAre(1, 2));
  EXPECT_THAT(add(up, {3, 4}), ElementsAre(4, 6));
  EXPECT_THAT(add(alone, {3, 4}), ElementsAre(3, 4));
  EXPECT_EQ(up.states()[0].tensor.data, down.states()[0].tensor.data);
  EXPECT_EQ(up.counters().state_bytes, 2 * sizeof(float)) << "the first to use it";
  EXPECT_EQ(down.counters().state_bytes, 0u);
  down.reset();
  EXPECT_THAT(add(up, {0, 0}), ElementsAre(0, 0));
}

TEST(SharedStates, OutliveASessionAndAFork) {
  const auto states = std::make_shared<States>();
  Session up(adding(1), sharing(states));
  {
    Session down(adding(-1), sharing(states));
    add(down, {1, 2});
    down.close();
  }
  EXPECT_THAT(add(up, {0, 0}), ElementsAre(-1, -2));
  Session copy = up.fork();
  EXPECT_THAT(add(copy, {5, 5}), ElementsAre(4, 3));
  EXPECT_THAT(add(up, {0, 0}), ElementsAre(-1, -2)) << "a fork has its own";
}

TEST(SharedStates, OfOtherSizesAreRefusedByName) {
  const auto states = std::make_shared<States>();
  Session two(adding(1), sharing(states));
  expect_error<InvalidArgument>([&] { Session three(adding(1, 3), sharing(states)); },
                                "state 'total' of test is f32[3], the shared one is f32[2]");
  EXPECT_THAT(add(two, {1, 1}), ElementsAre(1, 1));
}

TEST(SharedStates, ServeOneSessionAtATime) {
  const auto states = std::make_shared<States>();
  Session first(adding(1), sharing(states)), second(adding(1), sharing(states));
  std::vector<float> x = {1, 1};
  const std::vector<Value> in = {tensor(x, {2})};
  const Session::PlaceOutputs place = [&](std::span<Value> outputs) {
    static float memory[2];
    outputs[0].tensor.data = memory;
    expect_error<Busy>([&] { add(second, {1, 1}); }, "the states are in use by another session");
  };
  first.run_into("forward", in, place);
  EXPECT_THAT(add(second, {1, 1}), ElementsAre(2, 2));
  // Submitted runs wait for one another instead.
  auto a = first.submit("forward", in), b = second.submit("forward", in);
  a.get();
  b.get();
  EXPECT_THAT(add(first, {0, 0}), ElementsAre(4, 4));
}

TEST(SharedStates, ACacheOfKeysAndValues) {
  KvModel model, other;
  Session whole(model.program, test::with({.rows = 2}));
  const std::vector<float> expected = run(whole, {1}, 0, 20);
  const auto states = std::make_shared<States>();
  const KvOptions kv{.rows = 2, .length = 64};
  Session prefill(model.program, sharing(states, kv)), decode(other.program, sharing(states, kv));
  run(prefill, {1}, 0, 19);
  EXPECT_THAT(decode.kv_lengths(), ElementsAre(19, 0));
  const std::vector<float> last = run(decode, {1}, 19, 20);
  test::expect_near(last, {expected.end() - static_cast<std::ptrdiff_t>(last.size()), expected.end()}, 2e-6f);
  expect_error<InvalidArgument>([&] { Session third(model.program, sharing(states)); },
                                "the shared one, 2 rows of 64 tokens");
  expect_error<InvalidArgument>([&] { decode.kv_resize(2, 128); }, "cannot be resized");
  EXPECT_THAT(prefill.kv_lengths(), ElementsAre(20, 0));
}

}  // namespace
}  // namespace graft
