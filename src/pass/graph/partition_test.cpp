#include "pass/graph/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graft/error.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::of_int;
using test::of_list;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ir::Arg use(ir::ValueId id) { return ir::Arg::of_value(id); }

std::vector<Step::Kind> kinds(const std::vector<Step>& steps) {
  std::vector<Step::Kind> out;
  for (const Step& step : steps) out.push_back(step.kind);
  return out;
}

std::vector<std::string> targets(const ir::Program& graph) {
  std::vector<std::string> out;
  for (const ir::Node& node : graph.methods[0].nodes) out.push_back(graph.op_of(node).target);
  return out;
}

constexpr auto kPlan = Step::Kind::plan;
constexpr auto kHost = Step::Kind::host;

// relu(x) decides which rows of tanh(x) are kept; sigmoid(x) needs none of it.
class Chosen : public ::testing::Test {
 protected:
  Chosen() {
    const ir::ValueId x = builder.input("x", DType::f32, {fixed(6)});
    const ir::ValueId relu = node("aten.relu.default", x);
    const ir::ValueId tanh = node("aten.tanh.default", x);
    const ir::ValueId sigmoid = node("aten.sigmoid.default", x);
    const ir::ValueId found =
        builder.node("aten.nonzero.default", {{"self", use(relu)}}, DType::i64, {dynamic(0, 6, "u0"), fixed(1)});
    const ir::ValueId places =
        builder.node("aten.select.int", {{"self", use(found)}, {"dim", of_int(1)}, {"index", of_int(0)}}, DType::i64,
                     {dynamic(0, 6, "u0")});
    const ir::ValueId kept =
        builder.node("aten.index.Tensor", {{"self", use(tanh)}, {"indices", of_list({use(places)})}}, DType::f32,
                     {dynamic(0, 6, "u0")});
    builder.output(kept);
    builder.output(sigmoid);
  }

  ir::ValueId node(const std::string& target, ir::ValueId x) {
    return builder.node(target, {{"self", use(x)}}, DType::f32, {fixed(6)});
  }

  GraphBuilder builder;
};

TEST_F(Chosen, OnlyWhatNeedsTheSizeLiesBehindTheCut) {
  const std::vector<Part> parts = partition(builder.program(), {.merge = 0});
  EXPECT_THAT(kinds(parts[0].steps), ElementsAre(kPlan, kHost, kPlan));
  EXPECT_THAT(targets(parts[parts[0].steps[0].parts[0]].graph),
              ElementsAre("aten.relu.default", "aten.tanh.default", "aten.sigmoid.default"));
  EXPECT_THAT(targets(parts[parts[0].steps[2].parts[0]].graph), ElementsAre("aten.select.int", "aten.index.Tensor"));
  for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_NO_THROW(ir::verify(parts[i].graph));
}

TEST_F(Chosen, FewNodesThatNothingBeforeTheCutNeedsMoveBehindIt) {
  const std::vector<Part> parts = partition(builder.program(), {.merge = 2});
  EXPECT_THAT(targets(parts[parts[0].steps[0].parts[0]].graph), ElementsAre("aten.relu.default"));
  EXPECT_THAT(targets(parts[parts[0].steps[2].parts[0]].graph),
              ElementsAre("aten.tanh.default", "aten.sigmoid.default", "aten.select.int", "aten.index.Tensor"));
  // Only the positions cross.
  EXPECT_EQ(parts[0].steps[2].inputs.size(), 2u);
}

TEST_F(Chosen, ValuesEndWithTheLastStepThatNeedsThem) {
  const std::vector<Part> parts = partition(builder.program(), {.merge = 2});
  EXPECT_THAT(parts[0].steps[1].finished, ElementsAre(parts[0].steps[0].outputs[0]));
  EXPECT_THAT(parts[0].steps[2].finished, ::testing::SizeIs(2));  // x and the positions
}

TEST(Partition, AMethodWithoutSuchNodesIsOneGraphAsItWas) {
  GraphBuilder builder;
  const ir::ValueId x = builder.input("x", DType::f32, {fixed(6)});
  builder.output(builder.node("aten.relu.default", {{"self", use(x)}}, DType::f32, {fixed(6)}));
  const std::vector<Part> parts = partition(builder.program());
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_TRUE(parts[0].steps.empty());
  EXPECT_THAT(targets(parts[0].graph), ElementsAre("aten.relu.default"));
}

TEST(Partition, WhatIsMadeOfWeightsAloneIsInEveryGraphThatWantsIt) {
  GraphBuilder builder;
  const ir::ValueId x = builder.input("x", DType::f32, {fixed(2)});
  const ir::ValueId w = builder.weight("w", {1, 2}, {2});
  const ir::ValueId weight = builder.node("aten.relu.default", {{"self", use(w)}}, DType::f32, {fixed(2)});
  const auto product = [&](ir::ValueId a, std::vector<ir::Dim> dims) {
    return builder.node("aten.mul.Tensor", {{"self", use(a)}, {"other", use(weight)}}, DType::f32, std::move(dims));
  };
  const ir::ValueId before = product(x, {fixed(2)});
  const ir::ValueId found =
      builder.node("aten.nonzero.default", {{"self", use(before)}}, DType::i64, {dynamic(0, 2, "u0"), fixed(1)});
  const ir::ValueId cast =
      builder.node("aten._to_copy.default", {{"self", use(found)}}, DType::f32, {dynamic(0, 2, "u0"), fixed(1)});
  builder.output(product(cast, {dynamic(0, 2, "u0"), fixed(2)}));
  const std::vector<Part> parts = partition(builder.program(), {.merge = 0});
  ASSERT_EQ(parts.size(), 3u);
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(targets(parts[i].graph)[i == 1 ? 0 : 0], "aten.relu.default");
    EXPECT_EQ(parts[i].graph.weights.size(), 1u);
  }
}

TEST(Partition, StatesAreWrittenByTheLastGraph) {
  GraphBuilder builder;
  const ir::ValueId x = builder.input("x", DType::f32, {fixed(2)});
  const ir::ValueId h = builder.state("h", DType::f32, {2});
  const ir::ValueId next =
      builder.node("aten.mul.Tensor", {{"self", use(h)}, {"other", use(x)}}, DType::f32, {fixed(2)});
  builder.output(
      builder.node("aten.nonzero.default", {{"self", use(next)}}, DType::i64, {dynamic(0, 2, "u0"), fixed(1)}));
  builder.mutate_state(0, next);
  const std::vector<Part> parts = partition(builder.program(), {.merge = 0});
  EXPECT_THAT(kinds(parts[0].steps), ElementsAre(kPlan, kHost, kPlan));
  const ir::Method& last = parts[parts[0].steps[2].parts[0]].graph.methods[0];
  ASSERT_EQ(last.outputs.size(), 1u);
  EXPECT_EQ(last.outputs[0].kind, ir::OutputKind::state_mutation);
  EXPECT_TRUE(parts[parts[0].steps[0].parts[0]].graph.methods[0].outputs[0].kind == ir::OutputKind::user);
}

// A part reads the states of its own attention nodes; which tokens the cache holds is written by the last part alone.
TEST(Partition, CachesAreStatesOfThePartsThatAttend) {
  GraphBuilder builder;
  const ir::ValueId x = builder.input("x", DType::f32, {fixed(2)});
  const ir::ValueId lengths = builder.state("kv.length", DType::i64, {2}),
                    cache = builder.state("kv.0.key", DType::f32, {2});
  builder.program().states[0].kind = ir::StateKind::kv_length;
  builder.program().states[1].kind = ir::StateKind::kv;
  const auto sum = [&](ir::ValueId a, ir::ValueId b, DType dtype) {
    return builder.node("aten.mul.Tensor", {{"self", use(a)}, {"other", use(b)}}, dtype, {fixed(2)});
  };
  const ir::ValueId after = sum(lengths, lengths, DType::i64);
  builder.output(builder.node("aten.nonzero.default", {{"self", use(sum(x, cache, DType::f32))}}, DType::i64,
                              {dynamic(0, 2, "u0"), fixed(1)}));
  builder.mutate_state(0, after);
  const std::vector<Part> parts = partition(builder.program(), {.merge = 0});
  EXPECT_THAT(kinds(parts[0].steps), ElementsAre(kPlan, kHost, kPlan));
  const ir::Program& first = parts[parts[0].steps[0].parts[0]].graph;
  const ir::Program& last = parts[parts[0].steps[2].parts[0]].graph;
  EXPECT_EQ(first.states.size(), 2u);
  ASSERT_EQ(last.states.size(), 1u);
  EXPECT_EQ(last.states[0].fqn, "kv.length");
  ASSERT_EQ(last.methods[0].outputs.size(), 1u);
  EXPECT_EQ(last.methods[0].outputs[0].kind, ir::OutputKind::state_mutation);
}

}  // namespace
}  // namespace graft
