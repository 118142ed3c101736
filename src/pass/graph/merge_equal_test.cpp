#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load/test_graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::of_int;
using test::of_none;
using ::testing::ElementsAre;

const std::vector<ir::Dim> kRow = {dynamic(1, 64, "n")};

std::vector<std::string> targets(const ir::Program& program) {
  std::vector<std::string> out;
  for (const ir::Node& node : program.methods[0].nodes) out.push_back(program.op_of(node).target);
  return out;
}

ir::ValueId sum(GraphBuilder& graph, ir::ValueId a, const Arg& b, DType dtype = DType::i64) {
  return graph.node("aten.add.Tensor", {{"self", Arg::of_value(a)}, {"other", b}, {"alpha", of_int(1)}}, dtype, kRow);
}

// The number of rewrites.
std::size_t merge(GraphBuilder& graph, ir::Program& program) {
  program = graph.program();
  return merge_equal_nodes(program);
}

TEST(MergeEqualNodes, ChainsOfEqualNodesBecomeOne) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::i64, kRow);
  const auto a = sum(graph, sum(graph, x, of_int(1)), of_int(2)), b = sum(graph, sum(graph, x, of_int(1)), of_int(2));
  graph.output(sum(graph, a, Arg::of_value(b)));
  ir::Program program;
  EXPECT_EQ(merge(graph, program), 2u);
  EXPECT_EQ(targets(program).size(), 3u);
  ir::verify(program);
  Session session(graph.build());
  std::vector<std::int64_t> data = {5, -7};
  const Value out = session.run("forward", std::vector<Value>{test::tensor(data, DType::i64, {2})})[0];
  EXPECT_EQ(static_cast<const std::int64_t*>(out.tensor.data)[0], 16);
  EXPECT_EQ(static_cast<const std::int64_t*>(out.tensor.data)[1], -8);
}

TEST(MergeEqualNodes, ASumWithZeroIsItsOperand) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::i64, kRow);
  const auto same = sum(graph, sum(graph, x, of_int(0)), of_int(0));
  graph.output(sum(graph, same, of_int(3)));
  ir::Program program;
  EXPECT_EQ(merge(graph, program), 2u);
  ASSERT_EQ(targets(program).size(), 1u);
  EXPECT_EQ(program.methods[0].nodes[0].args[0].value(), x);
}

TEST(MergeEqualNodes, WhatDiffersStays) {
  const auto left = [](auto build) {
    GraphBuilder graph;
    build(graph);
    ir::Program program;
    EXPECT_EQ(merge(graph, program), 0u);
    return targets(program).size();
  };
  // Other numbers.
  EXPECT_EQ(left([](GraphBuilder& graph) {
              const auto x = graph.input("x", DType::i64, kRow);
              graph.output(sum(graph, sum(graph, x, of_int(1)), Arg::of_value(sum(graph, x, of_int(2)))));
            }),
            3u);
  // Results of the call: two tensors in eager PyTorch, which callers may write to. A sum with zero is a copy.
  EXPECT_EQ(left([](GraphBuilder& graph) {
              const auto x = graph.input("x", DType::i64, kRow);
              graph.output(sum(graph, x, of_int(1)));
              graph.output(sum(graph, x, of_int(1)));
              graph.output(sum(graph, x, of_int(0)));
            }),
            3u);
  // Floats: -0.0 + 0 is 0.0.
  EXPECT_EQ(left([](GraphBuilder& graph) {
              const auto x = graph.input("x", DType::f32, kRow);
              const auto a = sum(graph, x, of_int(0), DType::f32), b = sum(graph, x, of_int(0), DType::f32);
              graph.output(sum(graph, a, Arg::of_value(b), DType::f32));
            }),
            3u);
  // A sum that broadcasts, or widens.
  EXPECT_EQ(left([](GraphBuilder& graph) {
              const auto x = graph.input("x", DType::i32, kRow);
              graph.output(sum(graph, sum(graph, x, of_int(0)), of_int(1)));
            }),
            2u);
}

TEST(MergeEqualNodes, RandomNumbersAreDrawnAnew) {
  GraphBuilder graph;
  const auto draw = [&] {
    return graph.node("aten.randint.low",
                      {{"low", of_int(0)},
                       {"high", of_int(9)},
                       {"size", test::of_ints({4})},
                       {"dtype", of_none()},
                       {"layout", of_none()},
                       {"device", of_none()},
                       {"pin_memory", of_none()}},
                      DType::i64, {fixed(4)});
  };
  const auto a = draw(), b = draw();
  graph.output(
      graph.node("aten.eq.Tensor", {{"self", Arg::of_value(a)}, {"other", Arg::of_value(b)}}, DType::b8, {fixed(4)}));
  ir::Program program;
  EXPECT_EQ(merge(graph, program), 0u);
  EXPECT_THAT(targets(program), ElementsAre("aten.randint.low", "aten.randint.low", "aten.eq.Tensor"));
}

}  // namespace
}  // namespace graft
