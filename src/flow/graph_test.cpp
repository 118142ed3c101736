#include "flow/graph.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/test_errors.h"
#include "flow/test_flow.h"

namespace graft {
namespace {

using test::dynamic;
using test::expect_error;
using test::fixed;
using test::GraphBuilder;
using test::MixProgram;
using test::owned;
using test::SumProgram;

ValueInfo type(DType dtype, std::vector<DimInfo> dims) {
  ValueInfo out;
  out.dtype = dtype;
  out.dims = std::move(dims);
  return out;
}

FlowStage function(std::string name, std::vector<FlowPort> inputs, std::vector<FlowPort> outputs) {
  FlowStage stage;
  stage.name = std::move(name);
  stage.inputs = std::move(inputs);
  stage.outputs = std::move(outputs);
  stage.function = [](FlowCall&) {};
  return stage;
}

// x -> split (fan-out) -> mix -> join (fan-in) -> y.
struct Rules : ::testing::Test {
  MixProgram mix;
  FlowGraph graph;

  Rules() {
    graph.inputs = {"x"};
    FlowStage mixes;
    mixes.name = "mix";
    mixes.sessions = mix.sessions(2);
    graph.stages = {function("split", {{"x"}}, {{"item"}, {"more", type(DType::i64, {{1, 8, ""}})}}), mixes,
                    function("join", {{"all"}}, {{"y"}})};
    graph.stages[0].fan_out = graph.stages[2].fan_in = true;
    graph.connections = {{"split.x", "x"}, {"mix.a", "split.item"}, {"mix.b", "split.more"}, {"join.all", "mix.0"}};
    graph.outputs = {"join.y"};
  }
  void expect(const std::function<void(FlowGraph&)>& change, const std::string& text) const {
    FlowGraph changed = graph;
    change(changed);
    expect_error<InvalidArgument>([&] { Flow flow(changed); }, text);
  }
};

TEST_F(Rules, HoldForTheGraphItself) {
  const CheckedFlow flow = check_flow(graph);
  EXPECT_EQ(flow.sources.size(), 5u);
  EXPECT_EQ(flow.nodes[1].origin, 0u);
  EXPECT_EQ(flow.nodes[2].origin, kNoStage);
  Flow runs(graph);
}

TEST_F(Rules, Names) {
  expect([](FlowGraph& g) { g.stages.clear(); }, "a flow needs at least one stage, got none");
  expect([](FlowGraph& g) { g.outputs.clear(); }, "a flow needs at least one output, got none");
  expect([](FlowGraph& g) { g.inputs = {""}; }, "an input of a flow needs a name without '.', got ''");
  expect([](FlowGraph& g) { g.stages[0].name = "a.b"; }, "a stage of a flow needs a name without '.', got 'a.b'");
  expect([](FlowGraph& g) { g.stages[2].name = "mix"; }, "the flow has the name 'mix' twice");
  expect([](FlowGraph& g) { g.stages[2].name = "x"; }, "the flow has the name 'x' twice");
  expect([](FlowGraph& g) { g.inputs.push_back("z"); }, "no stage reads the input 'z' of the flow");
  expect([](FlowGraph& g) { g.outputs = {"w"}; }, "the flow has no input 'w', it has x");
  expect([](FlowGraph& g) { g.outputs = {"mixer.0"}; },
         "'mixer.0': the flow has no stage 'mixer', it has split, mix, join");
  expect([](FlowGraph& g) { g.connections["mix.c"] = "x"; }, "'mix.c': the stage has no input 'c', it has a, b");
  expect([](FlowGraph& g) { g.connections["mix.2"] = "x"; }, "'mix.2': the stage has no input '2', it has a, b");
  expect([](FlowGraph& g) { g.connections["mix.a"] = "split.no"; },
         "'split.no': the stage has no output 'no', it has item, more");
  expect([](FlowGraph& g) { g.connections["x"] = "split.item"; }, "must go to an input of a stage");
  expect([](FlowGraph& g) { g.connections["mix.0"] = "split.item"; }, "input 'a' of stage 'mix' is connected twice");
  expect([](FlowGraph& g) { g.connections.erase("mix.b"); }, "input 'b' of stage 'mix' is not connected");
  expect(
      [](FlowGraph& g) {
        g.stages[0].outputs[0].name = "more";
        g.connections["mix.a"] = "split.more";
      },
      "'split.more': the stage has several outputs of this name; give its number");
}

TEST_F(Rules, Stages) {
  expect([](FlowGraph& g) { g.stages[0].function = nullptr; },
         "stage 'split' of the flow: needs either sessions or a function, got neither");
  expect([](FlowGraph& g) { g.stages[1].function = [](FlowCall&) {}; },
         "stage 'mix' of the flow: needs either sessions or a function, got both");
  expect([](FlowGraph& g) { g.stages[0].workers = 0; }, "stage 'split' of the flow: needs at least one worker, got 0");
  expect([](FlowGraph& g) { g.stages[1].workers = 2; }, "a method has a worker for each session");
  expect([](FlowGraph& g) { g.stages[1].fan_in = true; }, "only a function can be a fan-out or a fan-in");
  expect([](FlowGraph& g) { g.stages[1].sessions[0] = nullptr; }, "stage 'mix' of the flow: a session is null");
  expect([](FlowGraph& g) { g.stages[1].sessions[0] = g.stages[1].sessions[1]; }, "a session is there twice");
  const MixProgram other;
  expect([&](FlowGraph& g) { g.stages[1].sessions[0] = other.sessions()[0]; }, "its sessions must be of one program");
  FlowGraph changed = graph;
  changed.stages[1].method = "backward";
  expect_error<NotFound>([&] { Flow flow(changed); }, "no method 'backward'");
  FlowOptions none;
  none.runs = 0;
  expect_error<InvalidArgument>([&] { Flow flow(graph, none); }, "room for at least one run, got 0");
  none = {};
  none.items = 0;
  expect_error<InvalidArgument>([&] { Flow flow(graph, none); }, "room for at least one item, got 0");
}

TEST_F(Rules, SessionsThatShare) {
  SessionOptions states, arena;
  states.threads = arena.threads = 1;
  states.states = std::make_shared<States>();
  arena.arena = std::make_shared<Arena>();
  const SumProgram sum;
  const auto two = [&](const std::shared_ptr<const Program>& program, const SessionOptions& options) {
    FlowGraph out;
    out.inputs = {"x"};
    out.outputs = {"second.0"};
    for (const char* name : {"first", "second"}) {
      FlowStage stage;
      stage.name = name;
      stage.sessions = {std::make_shared<Session>(program, options)};
      out.stages.push_back(std::move(stage));
      for (const ValueInfo& input : program->method("forward").inputs)
        out.connections[str(name, ".", input.name)] = name == std::string("first") ? "x" : "first.0";
    }
    return out;
  };
  expect_error<InvalidArgument>([&] { Flow flow(two(sum.program, states)); },
                                "stages 'first' and 'second' of the flow: their sessions share one States");
  expect_error<InvalidArgument>([&] { Flow flow(two(mix.program, arena)); },
                                "stages 'first' and 'second' of the flow: their sessions share one Arena");
  Flow without_states(two(mix.program, states));  // nothing of it is used
  expect(
      [&](FlowGraph& g) {
        for (std::shared_ptr<Session>& session : g.stages[1].sessions)
          session = std::make_shared<Session>(mix.program, arena);
      },
      "stage 'mix' of the flow: its sessions share one Arena");
}

TEST_F(Rules, Cycles) {
  expect(
      [](FlowGraph& g) {
        g.stages.push_back(function("loop", {{"in"}, {"back"}}, {{"out"}}));
        g.stages.push_back(function("turn", {{"in"}}, {{"out"}}));
        g.connections["loop.in"] = "x";
        g.connections["loop.back"] = "turn.out";
        g.connections["turn.in"] = "loop.out";
      },
      "the flow has a cycle; these stages wait for each other: loop, turn");
}

TEST_F(Rules, Items) {
  expect([](FlowGraph& g) { g.connections["join.all"] = "x"; },
         "stage 'join' of the flow: it is a fan-in, but none of its inputs has items");
  expect(
      [](FlowGraph& g) {
        g.stages[2].fan_in = false;
        g.stages[2].fan_out = true;
      },
      "stage 'join' of the flow: it is a fan-out, but runs for each item of 'split': items have no items");
  expect(
      [](FlowGraph& g) {
        g.stages.push_back(function("split2", {{"x"}}, {{"item"}}));
        g.stages.back().fan_out = true;
        g.connections["split2.x"] = "x";
        g.connections["mix.a"] = "split2.item";
      },
      "stage 'mix' of the flow: its inputs 'a' and 'b' have items of different fan-outs, 'split2' and 'split'");
}

TEST_F(Rules, Types) {
  const auto of_item = [this](const ValueInfo& info) {
    FlowGraph changed = graph;
    changed.stages[0].outputs[0].type = info;
    return changed;
  };
  const auto expect_refused = [&](const ValueInfo& info, const std::string& text) {
    expect_error<InvalidArgument>([&] { check_flow(of_item(info)); }, text);
  };
  expect_refused(type(DType::f32, {{1, 8, ""}}),
                 "input 'mix.a' of the flow expects i64[1..64], 'split.item' is f32[1..8]");
  expect_refused(type(DType::i64, {{2, 2, ""}, {3, INT64_MAX, ""}}), "expects i64[1..64], 'split.item' is i64[2, 3..]");
  expect_refused(type(DType::i64, {{65, 100, ""}}), "expects i64[1..64], 'split.item' is i64[65..100]");
  ValueInfo number;
  number.kind = Value::Kind::integer;
  expect_refused(number, "expects i64[1..64], 'split.item' is an integer");
  check_flow(of_item(type(DType::i64, {{64, 100, ""}})));
  // An input of the flow is what all its readers take.
  FlowGraph changed = graph;
  changed.stages[0].inputs[0].type = type(DType::f32, {{3, 3, ""}});
  check_flow(changed);
  changed.stages.push_back(function("also", {{"x", type(DType::f32, {{4, 4, ""}})}}, {}));
  changed.connections["also.x"] = "x";
  expect_error<InvalidArgument>([&] { check_flow(changed); },
                                "input 'also.x' of the flow expects f32[4], 'x' is f32[3] as 'split.x' takes it");
}

TEST_F(Rules, MethodsWithStatesHaveOneSession) {
  const SumProgram sum;
  FlowGraph changed;
  changed.inputs = {"x"};
  changed.stages.emplace_back().name = "sum";
  changed.stages[0].sessions = {std::make_shared<Session>(sum.program)};
  changed.connections = {{"sum.x", "x"}};
  changed.outputs = {"sum.0"};
  check_flow(changed);
  changed.stages[0].sessions.push_back(std::make_shared<Session>(sum.program));
  expect_error<InvalidArgument>(
      [&] { check_flow(changed); },
      "stage 'sum' of the flow: method 'forward' has the state 's', so its results depend on the "
      "order of runs: it needs one session, got 2");
}

TEST_F(Rules, MethodsWithRandomNumbersHaveOneSession) {
  GraphBuilder random;
  const auto x = random.input("x", DType::f32, {fixed(4)});
  random.output(random.node("aten.rand_like.default", {{"self", ir::Arg::of_value(x)}}, DType::f32, {fixed(4)}));
  const auto program = random.build();
  FlowGraph changed;
  changed.inputs = {"x"};
  changed.stages.emplace_back().name = "noise";
  for (int i = 0; i < 2; ++i) changed.stages[0].sessions.push_back(std::make_shared<Session>(program));
  changed.connections = {{"noise.x", "x"}};
  changed.outputs = {"noise.0"};
  expect_error<InvalidArgument>([&] { check_flow(changed); }, "draws random numbers");
  changed.stages[0].sessions.pop_back();
  check_flow(changed);
}

TEST_F(Rules, MethodsThatWriteTheirInputsAreRefused) {
  GraphBuilder writes;
  const auto x = writes.input("x", DType::i64, {fixed(1)});
  const auto y = writes.node("aten.mul.Scalar", {{"self", ir::Arg::of_value(x)}, {"other", test::of_int(3)}},
                             DType::i64, {fixed(1)});
  writes.output(y);
  ir::Output written;
  written.kind = ir::OutputKind::input_mutation;
  written.arg = ir::Arg::of_value(y);
  writes.method().outputs.push_back(written);
  FlowGraph changed;
  changed.inputs = {"x"};
  changed.stages.emplace_back().name = "triple";
  changed.stages[0].sessions = {std::make_shared<Session>(writes.build())};
  changed.connections = {{"triple.x", "x"}};
  changed.outputs = {"triple.0"};
  expect_error<InvalidArgument>([&] { check_flow(changed); },
                                "method 'forward' writes its input 'x', which other stages may read");
}

TEST_F(Rules, InputsOfARunMustFit) {
  FlowGraph changed = graph;
  changed.stages[0].inputs[0].type = type(DType::i64, {{1, 3, ""}});
  Flow flow(changed);
  const auto expect_refused = [&](std::vector<Value> inputs, const std::string& text) {
    expect_error<InvalidArgument>([&] { flow.submit(std::move(inputs)); }, text);
  };
  expect_refused({}, "the flow takes 1 inputs, got 0");
  expect_refused({owned({1, 2, 3, 4})}, "'x' of the flow must be i64[1..3], got i64[4]");
  expect_refused({Value::of(2.5)}, "'x' of the flow must be i64[1..3], got a float");
  expect_refused({Value::of(TensorView{nullptr, DType::i64, Shape{2}})}, "'x' of the flow has no memory");
  RunOptions options;
  std::vector<NodeTiming> profile;
  options.profile = &profile;
  expect_error<InvalidArgument>([&] { flow.submit({owned({1})}, options); },
                                "takes deadline, cancel, priority and check, not profile");
  EXPECT_EQ(flow.counters().submitted, 0u);
}

TEST_F(Rules, OutputsOfAFunctionMustBeWhatItDeclares) {
  FlowGraph changed = graph;
  changed.stages[0].function = [](FlowCall& call) {
    test::give(call, 0, {1});
    call.set(1, owned(test::Numbers(9, 1)));
    call.emit();
  };
  Flow flow(changed);
  auto run = flow.submit({owned({1})});
  flow.drain();
  expect_error<InvalidArgument>([&] { run.get(); },
                                "stage 'split': 'split.more' of the flow must be i64[1..8], got i64[9]");
}

}  // namespace
}  // namespace graft
