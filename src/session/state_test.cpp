#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/executor.h"
#include "load/test_graph.h"
#include "plan/state_updates.h"

// States of a session: written in place where nothing needs the old values, and unchanged by a run that fails.
namespace graft {
namespace {

using ir::Arg;
using test::counting;
using test::dynamic;
using test::fixed;
using test::floats;
using test::GraphBuilder;
using test::of_int;
using test::of_list;
using test::of_none;
using test::tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A small model of a decoder's states. Each step takes rows x [n, 2] and their positions at [n], and
//   cache [6, 2]: cache[at] = x            (index_put, in place)
//   last  [3, 2]: last[0:1] = x[0:1]       (slice_scatter, in place)
//   total [2]:    total += sum of the rows (a new value, written at the end)
//   previous [2]: the total before         (reads one state into another)
// and returns cache + 0 [6, 2] and the new total.
struct Decoder {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
  static constexpr std::size_t kStates = 4;

  Decoder() {
    const ir::Dim n = dynamic(1, 6, "n");
    const auto x = graph.input("x", DType::f32, {n, fixed(2)});
    const auto at = graph.input("at", DType::i64, {n});
    const auto cache = graph.state("cache", DType::f32, {6, 2});
    const auto last = graph.state("last", DType::f32, {3, 2});
    const auto total = graph.state("total", DType::f32, {2});
    graph.state("previous", DType::f32, {2});
    const auto stored = graph.node("aten.index_put.default",
                                   {{"self", Arg::of_value(cache)},
                                    {"indices", of_list({Arg::of_value(at)})},
                                    {"values", Arg::of_value(x)},
                                    {"accumulate", of_int(0)}},
                                   DType::f32, {fixed(6), fixed(2)});
    const auto first = graph.node(
        "aten.slice.Tensor",
        {{"self", Arg::of_value(x)}, {"dim", of_int(0)}, {"start", of_int(0)}, {"end", of_int(1)}, {"step", of_int(1)}},
        DType::f32, {fixed(1), fixed(2)});
    const auto kept = graph.node("aten.slice_scatter.default",
                                 {{"self", Arg::of_value(last)},
                                  {"src", Arg::of_value(first)},
                                  {"dim", of_int(0)},
                                  {"start", of_int(0)},
                                  {"end", of_int(1)},
                                  {"step", of_int(1)}},
                                 DType::f32, {fixed(3), fixed(2)});
    const auto sum = graph.node(
        "aten.sum.dim_IntList",
        {{"self", Arg::of_value(x)}, {"dim", test::of_ints({0})}, {"keepdim", of_int(0)}, {"dtype", of_none()}},
        DType::f32, {fixed(2)});
    const auto grown = graph.node("aten.add.Tensor",
                                  {{"self", Arg::of_value(total)}, {"other", Arg::of_value(sum)}, {"alpha", of_int(1)}},
                                  DType::f32, {fixed(2)});
    const auto seen =
        graph.node("aten.add.Scalar", {{"self", Arg::of_value(stored)}, {"other", of_int(0)}, {"alpha", of_int(1)}},
                   DType::f32, {fixed(6), fixed(2)});
    graph.output(seen);
    graph.output(grown);
    graph.mutate_state(0, stored);
    graph.mutate_state(1, kept);
    graph.mutate_state(2, grown);
    graph.mutate_state(3, total);
    program = graph.build();
  }
};

struct Step {
  std::vector<float> x;
  std::vector<std::int64_t> at;
  std::vector<Value> values() {
    const auto n = static_cast<std::int64_t>(at.size());
    return {tensor(x, {n, 2}), tensor(at, DType::i64, {n})};
  }
};

std::vector<std::vector<float>> states_of(Session& session) {
  std::vector<std::vector<float>> out;
  for (const StateView& state : session.states()) {
    const auto* data = static_cast<const float*>(state.tensor.data);
    out.emplace_back(data, data + state.tensor.shape.numel());
  }
  return out;
}

TEST(State, WrittenInPlaceInTheOrderOfTheProgram) {
  Decoder decoder;
  const auto graph = Internal::of(*decoder.program).graph(0);
  const std::vector<bool> in_place = find_state_updates(*graph, graph->methods[0]);
  EXPECT_EQ(std::count(in_place.begin(), in_place.end(), true), 2);

  Session session(decoder.program);
  Step one{{1, 2, 3, 4}, {4, 0}};
  const std::vector<Value> out = session.run("forward", one.values());
  EXPECT_THAT(floats(out[0]), ElementsAre(3, 4, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0)) << "the write comes before the read";
  EXPECT_THAT(floats(out[1]), ElementsAre(4, 6));
  // Two rows of the cache, one of `last`, and the two small states.
  EXPECT_EQ(session.counters().state_bytes_written, (4u + 2u + 2u + 2u) * sizeof(float));
  Step two{{5, 6}, {1}};
  session.run("forward", two.values());
  EXPECT_THAT(states_of(session)[0], ElementsAre(3, 4, 5, 6, 0, 0, 0, 0, 1, 2, 0, 0));
  EXPECT_THAT(states_of(session)[1], ElementsAre(5, 6, 0, 0, 0, 0));
  EXPECT_THAT(states_of(session)[2], ElementsAre(9, 12));
  EXPECT_THAT(states_of(session)[3], ElementsAre(4, 6)) << "the total before the step";
}

TEST(State, ReadAfterTheWriteThatWantsTheOldValueMakesACopy) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(1), fixed(2)});
  const auto cache = graph.state("cache", DType::f32, {3, 2});
  const auto stored = graph.node("aten.slice_scatter.default",
                                 {{"self", Arg::of_value(cache)},
                                  {"src", Arg::of_value(x)},
                                  {"dim", of_int(0)},
                                  {"start", of_int(0)},
                                  {"end", of_int(1)},
                                  {"step", of_int(1)}},
                                 DType::f32, {fixed(3), fixed(2)});
  const auto old =
      graph.node("aten.add.Scalar", {{"self", Arg::of_value(cache)}, {"other", of_int(10)}, {"alpha", of_int(1)}},
                 DType::f32, {fixed(3), fixed(2)});
  graph.output(old);
  graph.mutate_state(0, stored);
  Session session(graph.build());
  std::vector<float> data{1, 2};
  const std::vector<Value> in{tensor(data, {1, 2})};
  EXPECT_THAT(floats(session.run("forward", in)[0]), ElementsAre(10, 10, 10, 10, 10, 10));
  EXPECT_THAT(floats(session.run("forward", in)[0]), ElementsAre(11, 12, 10, 10, 10, 10));
}

// A kernel that does the work of another and then cancels the run.
const Kernel* original = nullptr;
std::atomic<bool>* stop = nullptr;
const Kernel kThenStop{"then_stop",
                       [](const KernelContext& ctx) noexcept {
                         original->run(ctx);
                         stop->store(true);
                       },
                       0,
                       [](const KernelContext& ctx) noexcept { return original->phases ? original->phases(ctx) : 1; }};

TEST(State, ARunStoppedAfterAnyLaunchLeavesThemAsTheyWere) {
  Decoder decoder;
  const ProgramImpl& impl = Internal::of(*decoder.program);
  std::size_t launches = 1;
  std::size_t commit_begin = 0;
  std::size_t stopped = 0;
  for (std::size_t k = 0; k < launches; ++k) {
    Session session(decoder.program);
    Step before{counting(8, 1), {0, 3, 4, 1}};
    session.run("forward", before.values());
    const std::vector<std::vector<float>> states = states_of(session);

    // The plan for two rows, with its launch k replaced.
    Decoder other;
    CancelToken token;
    Step step{{50, 60, 70, 80}, {3, 5}};
    std::vector<InputDesc> inputs(2);
    inputs[0].desc = TensorDesc(DType::f32, {2, 2});
    inputs[1].desc = TensorDesc(DType::i64, {2});
    PlanOptions options;
    options.max_threads = session.threads();
    const auto graph = impl.graph(0);
    Plan plan = make_plan(*graph, graph->methods[0], inputs, options);
    launches = plan.launches.size();
    commit_begin = plan.commit_begin;
    std::atomic<bool> flag{false};
    original = plan.launches[k].kernel;
    stop = &flag;
    plan.launches[k].kernel = &kThenStop;
    RunControl control;
    control.cancel = &flag;
    const auto executor = make_executor(std::make_shared<const Plan>(plan), session.threads(), control);
    AlignedMemory arena(static_cast<std::size_t>(plan.arena_bytes));
    std::vector<AlignedMemory> outputs;
    std::vector<std::byte*> bases;
    std::vector<Value> in = step.values();
    for (const Allocation& a : plan.allocations) {
      switch (a.memory) {
        case MemoryKind::arena:
          bases.push_back(arena.data());
          break;
        case MemoryKind::input:
          bases.push_back(static_cast<std::byte*>(in[a.index].tensor.data));
          break;
        case MemoryKind::state:
          bases.push_back(static_cast<std::byte*>(session.states()[a.index].tensor.data));
          break;
        default:
          outputs.emplace_back(static_cast<std::size_t>(a.bytes));
          bases.push_back(outputs.back().data());
      }
    }
    executor->bind(bases);
    const bool finished = executor->run();
    EXPECT_EQ(finished, k >= commit_begin || k + 1 == launches) << "stopped after launch " << k;
    if (finished) {
      EXPECT_NE(states_of(session), states);
      continue;
    }
    ++stopped;
    EXPECT_EQ(states_of(session), states) << "stopped after launch " << k << " of " << launches;
    session.run("forward", step.values());
    EXPECT_THAT(states_of(session)[0], ElementsAre(1, 2, 7, 8, 0, 0, 50, 60, 5, 6, 70, 80)) << "the next run is right";
  }
  EXPECT_GT(stopped, 4u);
}

TEST(State, AnIndexOutOfRangeChangesNothing) {
  Decoder decoder;
  Session session(decoder.program);
  Step good{{1, 2, 3, 4}, {0, 1}};
  session.run("forward", good.values());
  const std::vector<std::vector<float>> states = states_of(session);
  Step bad{{7, 7, 8, 8}, {2, 6}};
  EXPECT_THROW(session.run("forward", bad.values()), ExecutionError);
  EXPECT_EQ(states_of(session), states);
}

TEST(State, ResetGivesBackTheInitialValue) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  const auto total = graph.state("total", DType::f32, Shape{2});
  graph.weight("start", {3, 5}, Shape{2});
  graph.program().states[0].initial = 0;
  const auto grown =
      graph.node("aten.add.Tensor", {{"self", Arg::of_value(total)}, {"other", Arg::of_value(x)}, {"alpha", of_int(1)}},
                 DType::f32, {fixed(2)});
  graph.output(grown);
  graph.mutate_state(0, grown);
  Session session(graph.build());
  std::vector<float> ones{1, 1};
  const std::vector<Value> in{tensor(ones, {2})};
  EXPECT_THAT(floats(session.run("forward", in)[0]), ElementsAre(4, 6));
  EXPECT_THAT(floats(session.run("forward", in)[0]), ElementsAre(5, 7));
  session.reset();
  EXPECT_THAT(floats(session.run("forward", in)[0]), ElementsAre(4, 6));
}

}  // namespace
}  // namespace graft
