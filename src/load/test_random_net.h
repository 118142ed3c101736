#pragma once

// Test only: nets with branches, built by hand.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "load/test_graph.h"

namespace graft::test {

// Matrices [4, 16]: products with weights, and functions that devices have.
struct BranchedNet {
  static constexpr std::int64_t kRows = 4, kColumns = 16;

  GraphBuilder graph;
  std::vector<ir::Dim> dims{fixed(kRows), fixed(kColumns)};
  ir::ValueId x = graph.input("x", DType::f32, dims);
  int weights = 0;

  ir::ValueId one(const char* name, ir::ValueId self) {
    return graph.node(std::string("aten.") + name + ".default", {{"self", ir::Arg::of_value(self)}}, DType::f32, dims);
  }
  ir::ValueId two(const char* name, ir::ValueId a, ir::ValueId b) {
    GraphBuilder::Args args{{"self", ir::Arg::of_value(a)}, {"other", ir::Arg::of_value(b)}};
    if (std::string(name) != "mul") args.emplace_back("alpha", of_int(1));
    return graph.node(std::string("aten.") + name + ".Tensor", args, DType::f32, dims);
  }
  // Times a weight of its own.
  ir::ValueId product(ir::ValueId self) {
    std::vector<float> values(kColumns * kColumns);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((i * 7919 + static_cast<std::size_t>(weights) * 31) % 64) / 128 - 0.25f;
    const ir::ValueId w = graph.weight("w" + std::to_string(weights++), values, {kColumns, kColumns});
    return graph.node("aten.linear.default",
                      {{"input", ir::Arg::of_value(self)}, {"weight", ir::Arg::of_value(w)}, {"bias", of_none()}},
                      DType::f32, dims);
  }
  ir::ValueId tower(ir::ValueId value, int layers) {
    for (int i = 0; i < layers; ++i) value = one("sigmoid", product(value));
    return value;
  }
  // Adds nodes that read values made shortly before, and three outputs.
  void add_random_nodes(std::mt19937& random) {
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    std::vector<ir::ValueId> values{x};
    const std::size_t nodes = 8 + below(50), reach = 2 + below(10);
    const auto pick = [&] { return values[values.size() - 1 - below(std::min(values.size(), reach))]; };
    for (std::size_t i = 0; i < nodes; ++i) {
      switch (below(6)) {
        case 0:
          values.push_back(one("sigmoid", pick()));
          break;
        case 1:
          values.push_back(one("neg", pick()));
          break;
        case 2:
          values.push_back(two("add", pick(), pick()));
          break;
        case 3:
          values.push_back(two("mul", pick(), pick()));
          break;
        default:
          values.push_back(product(pick()));
      }
    }
    for (int i = 0; i < 3; ++i) graph.output(one("tanh", pick()));
  }
};

}  // namespace graft::test
