#include "pass/graph/stored_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernel/matmul/block_test_util.h"
#include "load/test_graph.h"
#include "weight/stored_weight.h"

namespace graft {
namespace {

using ir::Arg;
using test::fixed;
using test::GraphBuilder;
using ::testing::ElementsAre;

// y = linear(x, w), and the other ways to use a weight w [4, 32].
struct Graph : GraphBuilder {
  ir::ValueId w = 0, x = 0;

  explicit Graph(const Stored& stored = Stored::as(DType::bf16)) {
    w = weight("w", std::vector<float>(4 * 32), {4, 32});
    x = input("x", DType::f32, {fixed(2), fixed(32)});
    set_stored(program().weights[0], stored);
  }
  void linear() {
    output(node("aten.linear.default",
                {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(w)}, {"bias", test::of_none()}}, DType::f32,
                {fixed(2), fixed(4)}));
  }
  ir::ValueId transposed(std::vector<std::int64_t> dims) {
    std::vector<Arg> items;
    for (std::int64_t dim : dims) items.push_back(test::of_int(dim));
    return node("aten.permute.default", {{"self", Arg::of_value(w)}, {"dims", test::of_list(std::move(items))}},
                DType::f32, {fixed(32), fixed(4)});
  }
  ir::ValueId mm(ir::ValueId a, ir::ValueId b, std::int64_t m, std::int64_t n) {
    return node("aten.mm.default", {{"self", Arg::of_value(a)}, {"mat2", Arg::of_value(b)}}, DType::f32,
                {fixed(m), fixed(n)});
  }
  ir::ValueId doubled() {
    return node("aten.add.Tensor",
                {{"self", Arg::of_value(w)}, {"other", Arg::of_value(w)}, {"alpha", test::of_int(1)}}, DType::f32,
                {fixed(4), fixed(32)});
  }
  // ConvertedWeight's members as pairs: weight and source.
  std::vector<std::pair<int, int>> convert(bool only_blocks = false) {
    std::vector<std::pair<int, int>> out;
    for (const ConvertedWeight& c : convert_stored_weights(program(), only_blocks)) out.push_back({c.weight, c.source});
    ir::verify(program());
    return out;
  }
};

TEST(StoredWeights, ProductsReadThemAsTheyAre) {
  for (const Stored& stored : {Stored::as(DType::bf16), Stored::as_blocks(*find_block_type("q4_0"))}) {
    Graph graph(stored);
    graph.linear();
    graph.output(graph.mm(graph.x, graph.transposed({1, -2}), 2, 4));
    EXPECT_THAT(graph.convert(), ElementsAre());
    EXPECT_EQ(stored_of(graph.program().weights[0]), stored);
    const std::vector<std::pair<int, int>> of_devices = Graph(graph).convert(true);
    if (stored.is_plain()) {
      EXPECT_THAT(of_devices, ElementsAre(std::pair(0, 0)));
    } else {
      EXPECT_THAT(of_devices, ElementsAre());
    }
  }
}

TEST(StoredWeights, OtherUsesReadOneConversion) {
  Graph graph;
  graph.output(graph.doubled());
  EXPECT_THAT(graph.convert(), ElementsAre(std::pair(0, 0)));
  EXPECT_EQ(stored_of(graph.program().weights[0]), Stored::as(DType::f32));

  Graph both;
  both.linear();
  both.output(both.doubled());
  both.output(both.w);
  both.output(both.mm(both.transposed({1, 0}), both.x, 32, 32));  // as the wrong operand
  EXPECT_THAT(both.convert(), ElementsAre(std::pair(1, 0)));
  EXPECT_EQ(stored_of(both.program().weights[0]), Stored::as(DType::bf16));
  EXPECT_EQ(stored_of(both.program().weights[1]), Stored::as(DType::f32));
  EXPECT_EQ(both.program().weights[1].byte_size, 512U);
  const auto& nodes = both.method().nodes;
  EXPECT_EQ(nodes[0].args[1].value(), both.w);
  for (const Arg& arg : {nodes[1].args[0], nodes[1].args[1], nodes[2].args[0]}) EXPECT_NE(arg.value(), both.w);
  EXPECT_NE(both.method().outputs[2].arg.value(), both.w);
}

TEST(StoredWeights, WhatNothingReadsIsNotConverted) {
  Graph graph;
  graph.output(graph.x);
  EXPECT_THAT(graph.convert(), ElementsAre());
}

TEST(StoredWeights, AViewThatIsReadTwoWaysIsConverted) {
  Graph graph;
  const ir::ValueId view = graph.transposed({1, 0});
  graph.output(graph.mm(graph.x, view, 2, 4));
  graph.output(view);
  EXPECT_THAT(graph.convert(), ElementsAre(std::pair(0, 0)));
}

TEST(StoredWeights, InitialValuesOfStatesAreConverted) {
  Graph graph;
  graph.linear();
  graph.state("s", DType::f32, {4, 32});
  graph.program().states[0].initial = 0;
  EXPECT_THAT(graph.convert(), ElementsAre(std::pair(1, 0)));
  EXPECT_EQ(graph.program().states[0].initial, 1);
}

TEST(StoredWeights, ValuesOfThatDtypeAreNoConversion) {
  GraphBuilder graph;
  const ir::ValueId w = graph.weight("w", std::vector<float>(16), {4, 8});
  graph.method().values[w].dtype = DType::bf16;
  set_stored(graph.program().weights[0], Stored::as(DType::bf16));
  graph.output(w);
  EXPECT_THAT(convert_stored_weights(graph.program(), false), ElementsAre());
}

}  // namespace
}  // namespace graft
