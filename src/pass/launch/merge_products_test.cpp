#include <gtest/gtest.h>

#include <map>

#include "kernel/matmul/block_test_util.h"
#include "kernel/matmul/blocks_vec.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::fixed;
using test::GraphBuilder;
using test::tensor;

constexpr std::int64_t kTokens = 9, kDepth = 256;

// Linear layers with block-quantized weights.
struct Net {
  GraphBuilder graph;
  std::map<std::string, std::pair<BlockType, std::vector<std::byte>>> blocks;
  std::map<std::string, std::vector<float>> plain;
  ir::ValueId x = graph.input("x", DType::f32, {fixed(kTokens), fixed(kDepth)});

  ir::ValueId linear(const std::string& name, const char* type, std::int64_t columns, ir::ValueId of, bool bias) {
    const BlockType block = *find_block_type(type);
    const auto seed = static_cast<unsigned>(name.size() + static_cast<std::size_t>(columns));
    blocks[name] = {block, test::quantized(block, test::random_values(columns * kDepth, seed), kDepth)};
    const std::vector<float> nothing(static_cast<std::size_t>(columns * kDepth));
    const auto w = graph.weight(name, nothing, {columns, kDepth});
    Arg added = test::of_none();
    if (bias) {
      plain[name + ".bias"] = test::random_values(columns, 7);
      added = Arg::of_value(graph.weight(name + ".bias", plain[name + ".bias"], {columns}));
    }
    return graph.node("aten.linear.default",
                      {{"input", Arg::of_value(of)}, {"weight", Arg::of_value(w)}, {"bias", added}}, DType::f32,
                      {fixed(kTokens), fixed(columns)});
  }

  std::vector<std::vector<float>> run(bool pack, std::uint64_t& launches, int threads = 2) {
    const auto find = [this](const ir::Weight& weight) {
      const auto found = blocks.find(weight.fqn);
      if (found != blocks.end())
        return FoundWeight{found->second.second, FoundWeight::Origin::file, "the test",
                           Stored::as_blocks(found->second.first)};
      return FoundWeight{std::as_bytes(std::span(plain.at(weight.fqn))), FoundWeight::Origin::file, "the test"};
    };
    LoadOptions options;
    options.pack_weights = pack;
    const auto again = [this](std::size_t) { return graph.program(); };
    SessionOptions session_options;
    session_options.threads = threads;
    Session session(Internal::program(build_program({graph.program()}, find, again, options, "test")), session_options);
    std::vector<float> rows = test::random_values(kTokens * kDepth, 3);
    std::vector<std::vector<float>> out;
    for (const Value& v : session.run("forward", std::vector{tensor(rows, {kTokens, kDepth})}))
      out.push_back(test::floats(v));
    launches = session.counters().kernels_launched;
    return out;
  }
};

TEST(MergeProducts, QueriesKeysAndValuesAreOneLaunch) {
  if (!simd::panels()) GTEST_SKIP() << "no panels here";
  const std::int64_t sizes[][3] = {{80, 33, 16}, {1, 31, 32}, {32, 1, 65}};
  for (const char* type : {"q8_0", "q4_K", "q6_K"})
    for (const auto& columns : sizes) {
      const std::string names[] = {"query", "key", "value"};
      Net net, alone[3];
      for (std::size_t i = 0; i < 3; ++i) {
        net.graph.output(net.linear(names[i], type, columns[i], net.x, i != 1));
        alone[i].graph.output(alone[i].linear(names[i], type, columns[i], alone[i].x, i != 1));
      }
      std::uint64_t launches = 0;
      for (const int threads : {1, 2}) {
        const auto merged = net.run(true, launches, threads);
        EXPECT_EQ(launches, 1U);
        for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(merged.at(i), alone[i].run(true, launches, threads).at(0));
      }
      net.run(false, launches);
      EXPECT_EQ(launches, 3U) << "ggml's rows";
    }
}

// f32 linear layers with packed weights; at precision medium in bf16 where that is faster (GRAFT_ISA=avx512bf16).
struct LinearNet {
  struct Layer {
    std::int64_t columns = 0;
    bool bias = false, relu = false, residual = false;
  };
  GraphBuilder graph;
  std::int64_t rows;
  ir::ValueId x = graph.input("x", DType::f32, {fixed(rows), fixed(kDepth)});
  ir::ValueId added = graph.input("added", DType::f32, {fixed(rows), fixed(64)});

  LinearNet(std::int64_t tokens, const std::vector<Layer>& layers) : rows(tokens) {
    for (std::size_t i = 0; i < layers.size(); ++i) add(layers[i], static_cast<unsigned>(i));
  }

  void add(const Layer& layer, unsigned seed) {
    const std::string name = "w" + std::to_string(seed);
    const auto w = graph.weight(name, test::random_values(layer.columns * kDepth, seed + 1), {layer.columns, kDepth});
    Arg bias = test::of_none();
    if (layer.bias)
      bias =
          Arg::of_value(graph.weight(name + ".bias", test::random_values(layer.columns, seed + 50), {layer.columns}));
    const std::vector<ir::Dim> dims = {fixed(rows), fixed(layer.columns)};
    auto out =
        graph.node("aten.linear.default", {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(w)}, {"bias", bias}},
                   DType::f32, dims);
    if (layer.relu) out = graph.node("aten.relu.default", {{"self", Arg::of_value(out)}}, DType::f32, dims);
    if (layer.residual)
      out = graph.node("aten.add.Tensor",
                       {{"self", Arg::of_value(added)}, {"other", Arg::of_value(out)}, {"alpha", Arg::of_integer(1)}},
                       DType::f32, dims);
    graph.output(out);
  }

  std::vector<std::vector<float>> run(std::uint64_t& launches, int threads) {
    LoadOptions options;
    options.matmul_precision = MatmulPrecision::medium;
    SessionOptions session_options;
    session_options.threads = threads;
    Session session(graph.build(options), session_options);
    std::vector<float> values = test::random_values(rows * kDepth, 3), more = test::random_values(rows * 64, 4);
    std::vector<std::vector<float>> out;
    for (const Value& v : session.run("forward", std::vector{tensor(values, {rows, kDepth}), tensor(more, {rows, 64})}))
      out.push_back(test::floats(v));
    launches = session.counters().kernels_launched;
    return out;
  }
};

TEST(MergeProducts, LinearLayersOfTheSameSizeAreOneLaunch) {
  const std::vector<LinearNet::Layer> layers = {{64, true}, {64, false}, {64, true, true}, {64, true}};
  for (const std::int64_t columns : {8, 31, 64, 96, 100})
    for (const std::int64_t rows : {9, 30, 800}) {
      std::vector<LinearNet::Layer> sized = layers;
      for (auto& layer : sized) layer.columns = columns;
      std::uint64_t launches = 0;
      for (const int threads : {1, 2, 3}) {
        const auto merged = LinearNet(rows, sized).run(launches, threads);
        EXPECT_EQ(launches, 1U);
        for (std::size_t i = 0; i < sized.size(); ++i) {
          LinearNet alone(rows, {});
          alone.add(sized[i], static_cast<unsigned>(i));
          EXPECT_EQ(merged.at(i), alone.run(launches, threads).at(0))
              << rows << " rows, " << columns << " columns, layer " << i << ", " << threads << " threads";
        }
      }
    }
}

TEST(MergeProducts, LinearLayersThatStayApart) {
  std::uint64_t launches = 0;
  LinearNet(9, {{64}, {32}, {64}}).run(launches, 2);
  EXPECT_EQ(launches, 2U) << "other sizes";
  LinearNet(9, {{64}, {64, true, false, true}, {64}}).run(launches, 2);
  EXPECT_EQ(launches, 2U) << "a sum with another tensor on the way out";
  LinearNet(9, {{64}, {64}, {64}, {64}, {64}}).run(launches, 2);
  EXPECT_EQ(launches, 2U) << "four and one";
}

TEST(MergeProducts, WhatDoesNotFitStaysApart) {
  if (!simd::panels()) GTEST_SKIP() << "no panels here";
  std::uint64_t launches = 0;
  Net types;
  types.graph.output(types.linear("a", "q8_0", 32, types.x, false));
  types.graph.output(types.linear("b", "q4_0", 32, types.x, false));
  types.run(true, launches);
  EXPECT_EQ(launches, 2U) << "other blocks are quantized otherwise";

  Net chain;
  const auto middle = chain.linear("a", "q8_0", kDepth, chain.x, false);
  chain.graph.output(chain.linear("b", "q8_0", 32, middle, false));
  chain.run(true, launches);
  EXPECT_EQ(launches, 2U) << "other rows";

  Net five;
  for (int i = 0; i < 5; ++i) five.graph.output(five.linear("w" + std::to_string(i), "q8_0", 32, five.x, false));
  five.run(true, launches);
  EXPECT_EQ(launches, 2U) << "four and one";
}

}  // namespace
}  // namespace graft
