#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "graft/graft.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using test::counting;
using test::dynamic;
using test::fixed;
using test::floats;
using test::GraphBuilder;
using test::of_int;
using test::of_none;
using test::of_real;
using test::tensor;
using ::testing::HasSubstr;

using ir::Arg;

// y = x W^T + b with a dynamic first dimension: [n, 3] -> [n, 2].
struct LinearProgram {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;

  explicit LinearProgram(std::int64_t max = 512, const LoadOptions& options = {}) {
    const auto x = graph.input("x", DType::f32, {dynamic(0, max, "n"), fixed(3)});
    const auto w = graph.weight("w", {1, 2, 3, 4, 5, 6}, {2, 3});
    const auto b = graph.weight("b", {10, 20}, {2});
    const auto y = graph.node("aten.linear.default",
                              {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(w)}, {"bias", Arg::of_value(b)}},
                              DType::f32, {dynamic(0, max, "n"), fixed(2)});
    graph.output(y);
    program = graph.build(options);
  }
};

std::vector<float> linear_reference(const std::vector<float>& x) {
  std::vector<float> out;
  for (std::size_t r = 0; r < x.size() / 3; ++r) {
    const float a = x[r * 3];
    const float b = x[r * 3 + 1];
    const float c = x[r * 3 + 2];
    out.push_back(a + 2 * b + 3 * c + 10);
    out.push_back(4 * a + 5 * b + 6 * c + 20);
  }
  return out;
}

TEST(Session, OneProgramServesEverySize) {
  LinearProgram linear;
  Session session(linear.program);
  for (std::int64_t n : {3, 7, 1, 0, 300, 7}) {
    std::vector<float> x = counting(static_cast<std::size_t>(n) * 3);
    const std::vector<Value> out = session.run("forward", std::vector{tensor(x, {n, 3})});
    EXPECT_EQ(out[0].tensor.shape, (Shape{n, 2}));
    EXPECT_EQ(floats(out[0]), linear_reference(x)) << "n = " << n;
  }
  EXPECT_EQ(session.counters().plan_misses, 5u);
  EXPECT_EQ(session.counters().plan_hits, 1u);
}

TEST(Session, SteadyStateRewritesOnlyWhatMoved) {
  LinearProgram linear;
  Session session(linear.program);
  std::vector<float> x = counting(9);
  std::vector<float> x2 = counting(9);
  std::vector<float> y(6);
  std::vector<float> y2(6);
  std::vector<Value> in{tensor(x, {3, 3})};
  std::vector<Value> out{tensor(y, {3, 2})};
  session.run_into("forward", in, out);
  const std::uint64_t first = session.counters().rewrites;
  EXPECT_GT(first, 0u);

  for (int i = 0; i < 5; ++i) session.run_into("forward", in, out);
  EXPECT_EQ(session.counters().rewrites, first) << "same buffers: nothing to rewrite";

  x2[0] = 50;
  in[0] = tensor(x2, {3, 3});
  session.run_into("forward", in, out);
  EXPECT_EQ(y, linear_reference(x2));
  EXPECT_EQ(session.counters().rewrites, first + 1) << "the input is one operand";

  out[0] = tensor(y2, {3, 2});
  session.run_into("forward", in, out);
  EXPECT_GE(session.counters().rewrites, first + 2);
  EXPECT_EQ(y2, y);
  EXPECT_EQ(session.counters().io_copies, 0u);
  EXPECT_EQ(session.counters().graphs_built, 1u);
}

TEST(Session, MisalignedInputIsCopiedAndCounted) {
  LinearProgram linear;
  std::vector<std::byte> bytes(9 * sizeof(float) + 1);
  const std::vector<float> x = counting(9);
  std::memcpy(bytes.data() + 1, x.data(), 9 * sizeof(float));
  const std::vector<Value> in{Value::of(TensorView{bytes.data() + 1, DType::f32, {3, 3}})};

  Session session(linear.program);
  EXPECT_EQ(floats(session.run("forward", in)[0]), linear_reference(x));
  EXPECT_EQ(session.counters().io_copies, 1u);
  EXPECT_EQ(session.counters().io_bytes_copied, 36u);
  EXPECT_EQ(session.counters().staging_bytes, 36u);

  SessionOptions strict;
  strict.strict_zero_copy = true;
  Session refusing(linear.program, strict);
  EXPECT_THROW(refusing.run("forward", in), InvalidArgument);
}

TEST(Session, WrongInputsNameWhatWasExpectedAndFound) {
  LinearProgram linear;
  Session session(linear.program);
  std::vector<float> x = counting(9);
  std::vector<std::int64_t> ints(9);
  const auto message = [&](const std::vector<Value>& in) {
    try {
      session.run("forward", in);
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message({}), HasSubstr("takes 1 inputs, got 0"));
  EXPECT_THAT(message({tensor(ints, DType::i64, {3, 3})}),
              HasSubstr("input 0 ('x') of method 'forward' must have dtype f32, got i64"));
  EXPECT_THAT(message({tensor(x, {9})}), HasSubstr("(rank 2), got f32[9] (rank 1)"));
  EXPECT_THAT(message({tensor(x, {1, 9})}), HasSubstr("size of dimension 1 must be 3, got 9"));
  EXPECT_THAT(message({Value::of(TensorView{nullptr, DType::f32, {600, 3}})}), HasSubstr("must be in 0..512, got 600"));
  EXPECT_THAT(message({Value::of(TensorView{nullptr, DType::f32, {3, 3}})}), HasSubstr("pointer is null"));
  EXPECT_THAT(message({Value::of(std::int64_t{3})}), HasSubstr("must be a tensor"));
  EXPECT_THROW(session.run("backward", std::vector{tensor(x, {3, 3})}), NotFound);
  EXPECT_EQ(floats(session.run("forward", std::vector{tensor(x, {3, 3})})[0]), linear_reference(x)) << "still usable";
}

// A hit in the plan cache must not let the wrong dtype through: its sizes are the same.
TEST(Session, DtypeIsCheckedOnHitsToo) {
  LinearProgram linear;
  Session session(linear.program);
  std::vector<float> x = counting(9);
  std::vector<std::int64_t> ints(9);
  session.run("forward", std::vector{tensor(x, {3, 3})});
  EXPECT_THROW(session.run("forward", std::vector{tensor(ints, DType::i64, {3, 3})}), InvalidArgument);
}

// Memory of the right sizes but another dtype would be written as raw bytes.
TEST(Session, WrongOutputsAreRefused) {
  LinearProgram linear;
  Session session(linear.program);
  std::vector<float> x = counting(9);
  std::vector<float> y(9);
  std::vector<std::int32_t> ints(6, -1);
  const std::vector<Value> in{tensor(x, {3, 3})};
  const auto message = [&](Value room) {
    try {
      session.run_into("forward", in, std::span(&room, 1));
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(tensor(ints, DType::i32, {3, 2})), HasSubstr("must be a tensor f32[3, 2], got i32[3, 2]"));
  EXPECT_EQ(ints, std::vector<std::int32_t>(6, -1));
  EXPECT_THAT(message(tensor(y, {3, 3})), HasSubstr("got f32[3, 3]"));
  EXPECT_THAT(message(tensor(y, {6})), HasSubstr("got f32[6]"));
  EXPECT_THAT(message(Value::of(1.5)), HasSubstr("got a float"));
  EXPECT_THAT(message(Value::of(TensorView{nullptr, DType::f32, {3, 2}})), HasSubstr("pointer is null"));
  EXPECT_EQ(message(tensor(y, {3, 2})), "no error");
  y.resize(6);
  EXPECT_EQ(y, linear_reference(x));
}

// The sum of the sizes, and any hash of them, can be equal.
TEST(Session, SizesInAnotherOrderAreAnotherPlan) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {dynamic(1, 8, "m"), dynamic(1, 8, "n")});
  graph.output(graph.node("aten.permute.default", {{"self", Arg::of_value(x)}, {"dims", test::of_ints({1, 0})}},
                          DType::f32, {dynamic(1, 8, "n"), dynamic(1, 8, "m")}));
  Session session(graph.build());
  std::vector<float> data = counting(6);
  EXPECT_EQ(floats(session.run("forward", std::vector{tensor(data, {2, 3})})[0]),
            (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(floats(session.run("forward", std::vector{tensor(data, {3, 2})})[0]),
            (std::vector<float>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(session.counters().plan_misses, 2u);
}

// Contents never decide whether a buffer is bound anew: its first bytes may equal those of the last one.
TEST(Session, AnInputThatBeginsLikeTheLastOneIsRead) {
  LinearProgram linear;
  Session session(linear.program);
  std::vector<float> first = counting(300);
  std::vector<float> second = first;
  second.back() = -1;
  EXPECT_EQ(floats(session.run("forward", std::vector{tensor(first, {100, 3})})[0]), linear_reference(first));
  EXPECT_EQ(floats(session.run("forward", std::vector{tensor(second, {100, 3})})[0]), linear_reference(second));
}

TEST(Session, DimensionsWithOneSymbolMustAgree) {
  GraphBuilder graph;
  graph.input("a", DType::f32, {dynamic(1, 8, "s0")});
  const auto b = graph.input("b", DType::f32, {dynamic(1, 8, "s0")});
  graph.output(b);
  Session session(graph.build());
  std::vector<float> a = counting(3);
  std::vector<float> c = counting(4);
  EXPECT_NO_THROW(session.run("forward", std::vector{tensor(a, {3}), tensor(a, {3})}));
  EXPECT_THROW(session.run("forward", std::vector{tensor(a, {3}), tensor(c, {4})}), InvalidArgument);
}

// Outputs that are inputs, the same value twice, and numbers.
TEST(Session, OutputsOfEveryKind) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {dynamic(1, 8, "n")});
  const auto n = graph.scalar("aten.sym_size.int", {{"self", Arg::of_value(x)}, {"dim", of_int(0)}});
  graph.output(x);
  graph.output(x);
  graph.output(n);
  Session session(graph.build());
  std::vector<float> data = counting(5);
  const std::vector<Value> out = session.run("forward", std::vector{tensor(data, {5})});
  EXPECT_EQ(floats(out[0]), data);
  EXPECT_EQ(floats(out[1]), data);
  EXPECT_NE(out[0].tensor.data, out[1].tensor.data);
  EXPECT_NE(out[0].tensor.data, data.data()) << "results belong to the caller";
  EXPECT_EQ(out[2].kind, Value::Kind::integer);
  EXPECT_EQ(out[2].i, 5);
}

struct LookupProgram {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
  LookupProgram() {
    const auto table = graph.weight("table", counting(10), {5, 2});
    const auto ids = graph.input("ids", DType::i64, {dynamic(1, 8, "n")});
    const auto rows = graph.node("aten.embedding.default",
                                 {{"weight", Arg::of_value(table)},
                                  {"indices", Arg::of_value(ids)},
                                  {"padding_idx", of_int(-1)},
                                  {"scale_grad_by_freq", of_int(0)},
                                  {"sparse", of_int(0)}},
                                 DType::f32, {dynamic(1, 8, "n"), fixed(2)});
    graph.output(rows);
    program = graph.build();
  }
};

TEST(Session, KernelErrorIsTypedAndTheSessionStaysUsable) {
  LookupProgram lookup;
  Session session(lookup.program);
  std::vector<std::int64_t> good{4, 0};
  std::vector<std::int64_t> bad{1, 5};
  try {
    session.run("forward", std::vector{tensor(bad, DType::i64, {2})});
    FAIL() << "index 5 of 5 rows was read";
  } catch (const ExecutionError& e) {
    EXPECT_THAT(e.what(), HasSubstr("5"));
  }
  EXPECT_EQ(floats(session.run("forward", std::vector{tensor(good, DType::i64, {2})})[0]),
            (std::vector<float>{8, 9, 0, 1}));
}

TEST(Session, CancelledAndLateRunsThrowAndTheNextIsRight) {
  LinearProgram linear;
  Session session(linear.program);
  std::vector<float> x = counting(9);
  const std::vector<Value> in{tensor(x, {3, 3})};
  CancelToken token;
  token.cancel();
  RunOptions cancelled;
  cancelled.cancel = &token;
  EXPECT_THROW(session.run("forward", in, cancelled), Cancelled);
  RunOptions late;
  late.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_THROW(session.run("forward", in, late), Cancelled);
  EXPECT_EQ(floats(session.run("forward", in)[0]), linear_reference(x));
}

TEST(Session, ADeadlineThatPassesInARunEndsIt) {
  constexpr std::int64_t kSize = 256;
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(kSize), fixed(kSize)});
  auto value = x;
  for (int i = 0; i < 100; ++i)
    value = graph.node("aten.mm.default", {{"self", Arg::of_value(value)}, {"mat2", Arg::of_value(x)}}, DType::f32,
                       {fixed(kSize), fixed(kSize)});
  graph.output(value);
  Session session(graph.build());
  std::vector<float> zeros(kSize * kSize, 0.f);
  const std::vector<Value> in{tensor(zeros, {kSize, kSize})};
  session.run("forward", in);
  const auto begin = std::chrono::steady_clock::now();
  session.run("forward", in);
  const auto whole = std::chrono::steady_clock::now() - begin;
  RunOptions late;
  late.deadline = std::chrono::steady_clock::now() + whole / 5;
  try {
    session.run("forward", in, late);
    FAIL() << "the run ended after its deadline";
  } catch (const Cancelled& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("the deadline passed"));
  }
  EXPECT_EQ(floats(session.run("forward", in)[0]), zeros);
}

TEST(Session, StatesKeepTheirValueFromRunToRun) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  const auto s = graph.state("sum", DType::f32, {2});
  const auto next =
      graph.node("aten.add.Tensor", {{"self", Arg::of_value(s)}, {"other", Arg::of_value(x)}, {"alpha", of_int(1)}},
                 DType::f32, {fixed(2)});
  graph.mutate_state(0, next);
  graph.output(s);  // what it was before this run
  const auto program = graph.build();
  Session one(program);
  Session two(program);
  std::vector<float> data{1, 2};
  const std::vector<Value> in{tensor(data, {2})};
  EXPECT_EQ(floats(one.run("forward", in)[0]), (std::vector<float>{0, 0}));
  EXPECT_EQ(floats(one.run("forward", in)[0]), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats(two.run("forward", in)[0]), (std::vector<float>{0, 0})) << "each session has its own";
  EXPECT_EQ(floats(one.run("forward", in)[0]), (std::vector<float>{2, 4}));
  EXPECT_EQ(one.counters().state_bytes, 8u);
}

TEST(Session, ThreadsShareAProgram) {
  LinearProgram linear;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Session session(linear.program);
      for (int i = 0; i < 200; ++i) {
        const std::int64_t n = 1 + i % 5;
        std::vector<float> x = counting(static_cast<std::size_t>(n) * 3);
        wrong += floats(session.run("forward", std::vector{tensor(x, {n, 3})})[0]) != linear_reference(x);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Session, TwoThreadsThatMissOneKeyMakeOnePlan) {
  LinearProgram linear;
  std::atomic<std::uint64_t> misses = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      Session session(linear.program);
      std::vector<float> x = counting(33);
      session.run("forward", std::vector{tensor(x, {11, 3})});
      misses += session.counters().plan_misses;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(misses.load(), 1u);
}

TEST(Session, PlansAreBounded) {
  LoadOptions options;
  options.max_plans = 4;
  LinearProgram linear(512, options);
  SessionOptions session_options;
  session_options.max_graphs = 2;
  Session session(linear.program, session_options);
  for (std::int64_t n = 1; n <= 20; ++n) {
    std::vector<float> x = counting(static_cast<std::size_t>(n) * 3);
    session.run("forward", std::vector{tensor(x, {n, 3})});
  }
  EXPECT_EQ(Internal::of(*linear.program).plans->size(), 4u);
  std::vector<float> x = counting(3);
  session.run("forward", std::vector{tensor(x, {1, 3})});
  EXPECT_EQ(session.counters().plan_misses, 21u) << "the plan for n = 1 was dropped";
}

TEST(Session, ChildAfterForkRuns) {
  LinearProgram linear;
  Session session(linear.program);
  std::vector<float> x = counting(9);
  const std::vector<Value> in{tensor(x, {3, 3})};
  session.run("forward", in);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a dead thread pool would hang
    _exit(floats(session.run("forward", in)[0]) == linear_reference(x) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(floats(session.run("forward", in)[0]), linear_reference(x));
}

TEST(Session, ThreadCountsAreChecked) {
  LinearProgram linear;
  SessionOptions options;
  options.threads = -1;
  EXPECT_THROW(Session(linear.program, options), InvalidArgument);
  ASSERT_EQ(setenv("GRAFT_THREADS", "1", 1), 0);
  EXPECT_EQ(Session(linear.program).threads(), 1);
  ASSERT_EQ(setenv("GRAFT_THREADS", "many", 1), 0);
  EXPECT_THROW(Session{linear.program}, InvalidArgument);
  unsetenv("GRAFT_THREADS");
}

TEST(Device, AnUnknownNameListsWhatThereIs) {
  LoadOptions options;
  options.device = "tpu";
  try {
    LinearProgram linear(512, options);
    FAIL() << "device 'tpu' was accepted";
  } catch (const NotFound& e) {
    EXPECT_THAT(e.what(), HasSubstr("no device 'tpu'"));
    EXPECT_THAT(e.what(), HasSubstr("cpu"));
  }
}

TEST(Session, ProfileNamesEveryLaunch) {
  LinearProgram linear;
  Session session(linear.program);
  std::vector<float> x = counting(9);
  std::vector<NodeTiming> profile;
  RunOptions options;
  options.profile = &profile;
  session.run("forward", std::vector{tensor(x, {3, 3})}, options);
  ASSERT_EQ(profile.size(), session.counters().kernels_launched);
  EXPECT_EQ(profile[0].node, "n0");
  EXPECT_LE(profile[0].start_ns, profile[0].end_ns);
}

// An argument of another kind than the operator's must not be read as if it were 0, false or "".
TEST(Program, ArgumentsOfAnotherKindAreErrors) {
  std::vector<float> data{3, 1, 2};
  const auto message = [&](const std::string& target, const GraphBuilder::Args& rest) {
    GraphBuilder graph;
    const auto x = graph.input("x", DType::f32, {fixed(3)});
    GraphBuilder::Args args{{"self", Arg::of_value(x)}};
    args.insert(args.end(), rest.begin(), rest.end());
    graph.output(graph.node(target, args, DType::f32, {fixed(3)}));
    try {
      Session session(graph.build());
      session.run("forward", std::vector{tensor(data, {3})});
    } catch (const InvalidProgram& e) {
      return std::string(e.what());
    } catch (const Unsupported& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const Arg text{Arg::Kind::string, 0, 0, "none", {}};
  const Arg tensor_x = Arg::of_value(0);
  EXPECT_THAT(message("aten.cumsum.default", {{"dim", of_real(0.5)}}), HasSubstr("must be an integer, got 0.5"));
  EXPECT_THAT(message("aten.cumsum.default", {{"dim", text}}), HasSubstr("must be a number"));
  EXPECT_THAT(message("aten.cumsum.default", {{"dim", tensor_x}}), HasSubstr("must be a number"));
  EXPECT_THAT(message("aten.cumsum.default", {}), HasSubstr("must be a number"));
  EXPECT_THAT(message("aten.flip.default", {{"dims", test::of_list({of_real(0)})}}), HasSubstr("must hold integers"));
  EXPECT_THAT(message("aten.gelu.default", {{"approximate", of_int(1)}}), HasSubstr("approximate"));
  EXPECT_THAT(message("aten.leaky_relu.default", {{"negative_slope", text}}), HasSubstr("must be a number"));
  EXPECT_THAT(message("aten.cat.default", {{"tensors", of_int(1)}, {"dim", of_int(0)}}), HasSubstr("list of tensors"));
  EXPECT_THAT(message("aten.add.Tensor", {{"other", of_none()}, {"alpha", of_int(1)}}), HasSubstr("must be a number"));
  EXPECT_EQ(message("aten.cumsum.default", {{"dim", of_int(0)}}), "no error");

  const auto sorted = [&](const Arg& descending) {
    GraphBuilder graph;
    const auto in = graph.input("x", DType::f32, {fixed(3)});
    graph.output(graph.node("aten.argsort.default",
                            {{"self", Arg::of_value(in)}, {"dim", of_int(0)}, {"descending", descending}}, DType::i64,
                            {fixed(3)}));
    Session session(graph.build());
    return session.run("forward", std::vector{tensor(data, {3})}).size();
  };
  EXPECT_THROW(sorted(of_real(0.5)), InvalidProgram);
  EXPECT_THROW(sorted(of_int(2)), InvalidProgram);
  EXPECT_EQ(sorted(of_int(1)), 1u);
}

TEST(Program, ADtypeThatTheOperatorDoesNotGiveIsAnError) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2), fixed(3)});
  graph.output(graph.node("aten.permute.default", {{"self", Arg::of_value(x)}, {"dims", test::of_ints({1, 0})}},
                          DType::i64, {fixed(3), fixed(2)}));
  Session session(graph.build());
  std::vector<float> data(6);
  try {
    session.run("forward", std::vector{tensor(data, {2, 3})});
    FAIL() << "f32 was read as i64";
  } catch (const InvalidProgram& e) {
    EXPECT_THAT(e.what(), HasSubstr("node n0 (aten.permute.default): output 0 is f32, but the program declares i64"));
  }
}

TEST(Program, UnknownOperatorIsNamed) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  graph.output(graph.node("aten.no_such_op.default", {{"self", Arg::of_value(x)}}, DType::f32, {fixed(2)}));
  try {
    graph.build();
    FAIL() << "built";
  } catch (const Unsupported& e) {
    EXPECT_THAT(e.what(), HasSubstr("aten.no_such_op.default"));
  }
  // An unknown overload of a known operator: its meaning is not known.
  GraphBuilder overload;
  const auto y = overload.input("y", DType::f32, {fixed(2)});
  overload.output(overload.node("aten.relu.no_such_overload", {{"self", Arg::of_value(y)}}, DType::f32, {fixed(2)}));
  EXPECT_THROW(overload.build(), Unsupported);
}

}  // namespace
}  // namespace graft
