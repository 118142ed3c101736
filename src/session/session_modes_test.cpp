#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "base/aligned.h"
#include "base/test_errors.h"
#include "load/test_graph.h"

// Arenas, address refresh, aliasing, frozen inputs, states to and from files, runs in the background.
namespace graft {
namespace {

using ir::Arg;
using test::counting;
using test::dynamic;
using test::expect_error;
using test::fixed;
using test::floats;
using test::GraphBuilder;
using test::of_int;
using test::tensor;
using ::testing::HasSubstr;

GraphBuilder::Args binary(ir::ValueId a, ir::ValueId b) {
  return {{"self", Arg::of_value(a)}, {"other", Arg::of_value(b)}};
}

// y = sum over a column of exp(x) * x with the row totals kept in a state; arena of 4 n m bytes and more.
struct Net {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;

  Net() {
    const std::vector<ir::Dim> dims{dynamic(1, 512, "n"), fixed(16)};
    const auto x = graph.input("x", DType::f32, dims);
    const auto count = graph.state("count", DType::f32, {1});
    const auto e = graph.node("aten.exp.default", {{"self", Arg::of_value(x)}}, DType::f32, dims);
    const auto p = graph.node("aten.mul.Tensor", binary(e, x), DType::f32, dims);
    const auto q = graph.node("aten.mul.Tensor", binary(p, e), DType::f32, dims);
    const auto s = graph.node(
        "aten.sum.dim_IntList",
        {{"self", Arg::of_value(q)}, {"dim", test::of_ints({1})}, {"keepdim", of_int(1)}, {"dtype", test::of_none()}},
        DType::f32, {dynamic(1, 512, "n"), fixed(1)});
    const auto y = graph.node("aten.mul.Tensor", binary(q, s), DType::f32, dims);
    const auto next =
        graph.node("aten.add.Scalar", {{"self", Arg::of_value(count)}, {"other", of_int(1)}, {"alpha", of_int(1)}},
                   DType::f32, {fixed(1)});
    graph.output(y);
    graph.mutate_state(0, next);
    program = graph.build();
  }

  static std::vector<float> input(std::int64_t n, float scale = 1) {
    std::vector<float> x(static_cast<std::size_t>(n) * 16);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = scale * static_cast<float>(i % 13) / 13.f;
    return x;
  }
  static float count(Session& session) { return *static_cast<const float*>(session.states()[0].tensor.data); }
};

TEST(Arena, OwnLentSharedAndMovedGiveTheSameBits) {
  Net net;
  Session own(net.program);
  const auto shared = std::make_shared<Arena>();
  SessionOptions options;
  options.arena = shared;
  Session first(net.program, options);
  Session second(net.program, options);
  Session lent(net.program);
  std::size_t largest = 0;
  for (const std::int64_t n : {7, 300, 33, 1, 512}) {
    std::vector<float> x = Net::input(n);
    const std::vector<Value> in{tensor(x, {n, 16})};
    const std::vector<float> expected = floats(own.run("forward", in)[0]);
    EXPECT_EQ(floats(first.run("forward", in)[0]), expected);
    EXPECT_EQ(floats(second.run("forward", in)[0]), expected);
    const PlanInfo plan = lent.plan("forward", in);
    largest = std::max(largest, static_cast<std::size_t>(plan.arena_bytes));
    const AlignedMemory memory(static_cast<std::size_t>(plan.arena_bytes));
    RunOptions run;
    run.arena = {memory.data(), memory.size()};
    EXPECT_EQ(floats(lent.run("forward", in, run)[0]), expected);
  }
  EXPECT_EQ(shared->bytes(), largest) << "a shared arena is as large as the largest plan, not their sum";
  EXPECT_EQ(lent.counters().arena_allocations, 0u);
  EXPECT_EQ(lent.counters().arena_bytes, 0u);
}

TEST(Arena, LentOnesAreChecked) {
  Net net;
  Session session(net.program);
  std::vector<float> x = Net::input(64);
  const std::vector<Value> in{tensor(x, {64, 16})};
  const auto needed = static_cast<std::size_t>(session.plan("forward", in).arena_bytes);
  ASSERT_GT(needed, 64u);
  const AlignedMemory memory(needed + 64);
  RunOptions small;
  small.arena = {memory.data(), needed - 1};
  expect_error<InvalidArgument>([&] { session.run("forward", in, small); }, std::to_string(needed));
  RunOptions odd;
  odd.arena = {memory.data() + 4, needed};
  expect_error<InvalidArgument>([&] { session.run("forward", in, odd); }, "aligned to 64");
  EXPECT_EQ(Net::count(session), 0.f) << "nothing ran";
  session.run("forward", in);
  EXPECT_EQ(Net::count(session), 1.f);
}

TEST(Refresh, OnlyTheEntriesOfWhatMoved) {
  Net net;
  Session session(net.program);
  std::vector<float> x = Net::input(20);
  std::vector<float> y(320);
  std::vector<Value> in{tensor(x, {20, 16})};
  std::vector<Value> out{tensor(y, {20, 16})};
  const PlanInfo plan = session.plan("forward", in);
  std::uint64_t arena = 0;
  std::uint64_t io = 0;
  std::uint64_t all = 0;
  for (const AllocationInfo& a : plan.allocations) {
    all += a.entries;
    if (a.memory == "arena") arena += a.entries;
    if (a.memory == "input" || a.memory == "output") io += a.entries;
  }
  ASSERT_GT(arena, 0u);
  ASSERT_GT(io, 0u);
  const auto rewrites = [&](const RunOptions& options = {}) {
    const std::uint64_t before = session.counters().rewrites;
    session.run_into("forward", in, out, options);
    return session.counters().rewrites - before;
  };
  EXPECT_EQ(rewrites(), all);
  EXPECT_EQ(rewrites(), 0u);
  const std::vector<float> expected = y;
  const AlignedMemory one(static_cast<std::size_t>(plan.arena_bytes));
  const AlignedMemory two(static_cast<std::size_t>(plan.arena_bytes));
  for (int i = 0; i < 4; ++i) {  // two arenas in turns
    std::fill(y.begin(), y.end(), 0.f);
    RunOptions options;
    const AlignedMemory& memory = i % 2 == 0 ? one : two;
    options.arena = {memory.data(), memory.size()};
    EXPECT_EQ(rewrites(options), arena);
    EXPECT_EQ(y, expected);
  }
  std::vector<float> other = x;
  std::vector<float> result(320);
  in[0].tensor.data = other.data();
  out[0].tensor.data = result.data();
  EXPECT_EQ(rewrites(), arena + io) << "back in its own arena, with other buffers";
  EXPECT_EQ(result, expected);
  for (const AllocationInfo& a : session.plan("forward", in).allocations) {
    const void* expected_base = a.memory == "input" ? other.data() : a.memory == "output" ? result.data() : a.base;
    EXPECT_EQ(a.base, expected_base) << a.memory;
  }
}

TEST(Arena, TwoSessionsThatShareOneCannotRunAtOnce) {
  Net net;
  SessionOptions options;
  options.arena = std::make_shared<Arena>();
  Session a(net.program, options);
  Session b(net.program, options);
  std::vector<float> x = Net::input(512);
  const std::vector<Value> in{tensor(x, {512, 16})};
  const std::vector<float> expected = floats(a.run("forward", in)[0]);
  std::atomic<int> wrong{0};
  std::atomic<int> busy{0};
  const auto work = [&](Session& session) {
    for (int i = 0; i < 300; ++i) {
      try {
        wrong += floats(session.run("forward", in)[0]) != expected;
      } catch (const Busy&) {
        ++busy;
      }
    }
  };
  std::thread other([&] { work(a); });
  work(b);
  other.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(a.counters().runs + b.counters().runs + static_cast<std::uint64_t>(busy.load()), 601u);
}

TEST(Aliasing, LegalOverlapsRunAndOthersAreRefusedBeforeAnythingRuns) {
  // exp may write over its own input, and a sum over one of its operands; the second output is written while x is still
  // needed.
  GraphBuilder graph;
  const std::vector<ir::Dim> dims{fixed(64)};
  const auto x = graph.input("x", DType::f32, dims);
  const auto z = graph.input("z", DType::f32, dims);
  const auto e = graph.node("aten.exp.default", {{"self", Arg::of_value(z)}}, DType::f32, dims);
  const auto reversed =
      graph.node("aten.flip.default", {{"self", Arg::of_value(x)}, {"dims", test::of_ints({0})}}, DType::f32, dims);
  const auto sum = graph.node("aten.mul.Tensor", binary(reversed, x), DType::f32, dims);
  graph.output(e);
  graph.output(sum);
  Session session(graph.build());
  std::vector<float> a = counting(64);
  std::vector<float> b(64, 0.5f);
  std::vector<float> y(128);
  std::vector<Value> in{tensor(a, {64}), tensor(b, {64})};
  std::vector<Value> out{tensor(y, {64}), tensor(y, {64})};
  out[1].tensor.data = y.data() + 64;
  session.run_into("forward", in, out);
  const std::vector<float> expected = y;

  out[0].tensor.data = b.data();  // over its own input
  session.run_into("forward", in, out);
  EXPECT_TRUE(std::equal(b.begin(), b.end(), expected.begin()));
  EXPECT_TRUE(std::equal(y.begin() + 64, y.end(), expected.begin() + 64));

  const std::uint64_t runs = session.counters().runs;
  out[0].tensor.data = y.data();
  out[1].tensor.data = a.data();  // read in reverse order while it is written
  expect_error<InvalidArgument>([&] { session.run_into("forward", in, out); }, "output 1");
  EXPECT_EQ(a, counting(64));
  out[1].tensor.data = y.data() + 32;  // overlapping outputs
  expect_error<InvalidArgument>([&] { session.run_into("forward", in, out); }, "share memory");
  expect_error<InvalidArgument>([&] { session.run_into("forward", in, out); }, "share memory");  // and again
  EXPECT_EQ(session.counters().runs, runs);
  out[1].tensor.data = y.data() + 64;
  std::fill(b.begin(), b.end(), 0.5f);
  session.run_into("forward", in, out);
  EXPECT_EQ(y, expected);
}

TEST(FrozenInput, LeavesTheCompareList) {
  Net net;
  Session session(net.program);
  session.freeze_input("forward", 0);
  expect_error<InvalidArgument>([&] { session.freeze_input("forward", 1); }, "input 1");
  std::vector<float> x = Net::input(4);
  std::vector<float> y(64);
  std::vector<Value> in{tensor(x, {4, 16})};
  std::vector<Value> out{tensor(y, {4, 16})};
  session.run_into("forward", in, out);
  std::vector<float> moved = Net::input(4, 2);
  in[0].tensor.data = moved.data();
  expect_error<InvalidArgument>([&] { session.run_into("forward", in, out); },
                                "input 0 of method 'forward' is frozen at");
  in[0].tensor.data = x.data();
  const std::vector<float> expected = y;
  session.run_into("forward", in, out);
  EXPECT_EQ(y, expected);
}

TEST(State, ResetForkSaveAndRestore) {
  Net net;
  const std::string path = ::testing::TempDir() + "graft_states";
  std::vector<float> x = Net::input(3);
  const std::vector<Value> in{tensor(x, {3, 16})};
  {
    Session session(net.program);
    for (int i = 0; i < 5; ++i) session.run("forward", in);
    Session copy = session.fork();
    session.run("forward", in);
    EXPECT_EQ(Net::count(copy), 5.f);
    EXPECT_EQ(Net::count(session), 6.f);
    session.save(path);
    session.reset();
    EXPECT_EQ(Net::count(session), 0.f);
    EXPECT_EQ(Net::count(copy), 5.f);
  }
  Session later(net.program);
  later.restore(path);
  EXPECT_EQ(Net::count(later), 6.f);

  const auto contents = [&] {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  const auto write = [&](const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; };
  std::string bytes = contents;
  bytes[bytes.size() - 34] ^= 1;
  write(bytes);
  expect_error<InvalidProgram>([&] { later.restore(path); }, "damaged");
  write(contents.substr(0, contents.size() - 1));
  expect_error<InvalidProgram>([&] { later.restore(path); }, "damaged");
  write("something else entirely, of some length, that is no file of states");
  expect_error<InvalidProgram>([&] { later.restore(path); }, "not a file of states");
  bytes = contents;
  bytes[8] = 9;
  write(bytes);
  expect_error<InvalidProgram>([&] { later.restore(path); }, "version");
  GraphBuilder other;
  const auto count = other.state("elsewhere", DType::f32, {1});
  other.output(count);
  write(contents);
  Session stranger(other.build());
  expect_error<InvalidProgram>([&] { stranger.restore(path); }, "another program");
  expect_error<NotFound>([&] { later.restore(path + "-is-not-there"); }, "is-not-there");
  expect_error<SystemError>([&] { later.save("/no-such-folder/states"); }, "/no-such-folder");
  EXPECT_EQ(Net::count(later), 6.f) << "nothing lost";
  std::remove(path.c_str());
}

TEST(Submit, RunsInOrderWithBackPressureAndIsDrainedByClose) {
  Net net;
  SessionOptions options;
  options.queue_capacity = 4;
  Session session(net.program, options);
  std::vector<float> x = Net::input(512);
  const std::vector<Value> in{tensor(x, {512, 16})};
  const std::vector<float> expected = floats(session.run("forward", in)[0]);
  std::vector<std::future<std::vector<Value>>> results;
  int full = 0;
  while (results.size() < 40) {
    try {
      results.push_back(session.submit("forward", in));
    } catch (const Busy& e) {
      EXPECT_THAT(e.what(), HasSubstr("at most 4"));
      ++full;
      std::this_thread::yield();
    }
  }
  std::future<std::vector<Value>> bad = [&] {
    for (;;) {
      try {
        return session.submit("no_such_method", in);
      } catch (const Busy&) {
        std::this_thread::yield();
      }
    }
  }();
  session.close();
  for (auto& result : results) EXPECT_EQ(floats(result.get()[0]), expected);
  EXPECT_THROW(bad.get(), NotFound);
  EXPECT_GT(full, 0);
  EXPECT_EQ(session.counters().runs, 41u);
  expect_error<InvalidArgument>([&] { session.run("forward", in); }, "closed");
  expect_error<InvalidArgument>([&] { session.submit("forward", in); }, "closed");
  expect_error<InvalidArgument>([&] { session.states(); }, "closed");
}

TEST(Session, TwoThreadsOnOneSessionIsATypedErrorAndNothingIsLost) {
  Net net;
  Session session(net.program);
  std::vector<float> x = Net::input(512);
  const std::vector<Value> in{tensor(x, {512, 16})};
  std::atomic<int> done{0};
  std::atomic<int> busy{0};
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      try {
        session.run("forward", in);
        ++done;
      } catch (const Busy&) {
        ++busy;
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(done + busy, 400);
  EXPECT_EQ(Net::count(session), static_cast<float>(done.load()));
}

TEST(Sessions, ThousandsOfRunsInThreadsAreBitIdentical) {
  Net net;
  std::vector<float> x = Net::input(40);
  const std::vector<Value> in{tensor(x, {40, 16})};
  const std::vector<float> expected = floats(Session(net.program).run("forward", in)[0]);
  for (int sessions : {1, 2, 4}) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int s = 0; s < sessions; ++s)
      threads.emplace_back([&] {
        Session session(net.program);
        std::vector<float> y(40 * 16);
        std::vector<Value> out{tensor(y, {40, 16})};
        for (int run = 0; run < 10000 / sessions; ++run) {
          session.run_into("forward", in, out);
          wrong += y != expected;
        }
        wrong += session.counters().arena_allocations != 1 || session.counters().graphs_built != 1;
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0) << sessions << " sessions";
  }
}

}  // namespace
}  // namespace graft
