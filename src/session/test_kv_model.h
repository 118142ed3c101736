#pragma once

#include <gtest/gtest.h>

#include <random>

#include "base/test_errors.h"
#include "load/test_graph.h"

// Small programs with attention over a cache, for tests of session state.
namespace graft::test {

struct AttentionNode {
  std::int64_t layer = 0, window = 0, chunk = 0;
  double softcap = 0;
  ir::Arg sinks = of_none();
  ir::Arg blocks = of_none();
  bool whole_blocks = false;
};

// k = v = x [B, H, T, D] -> [B, T, H of the query, D]; `dims` those of the result.
inline ir::ValueId attention(GraphBuilder& graph, ir::ValueId query, ir::ValueId x, ir::ValueId position,
                             const AttentionNode& node, std::vector<ir::Dim> dims) {
  return graph.node("graft.attention.default",
                    {{"query", ir::Arg::of_value(query)},
                     {"key", ir::Arg::of_value(x)},
                     {"value", ir::Arg::of_value(x)},
                     {"cache_position", ir::Arg::of_value(position)},
                     {"sinks", node.sinks},
                     {"bias", of_none()},
                     {"blocks", node.blocks},
                     {"whole_blocks", ir::Arg{ir::Arg::Kind::boolean, node.whole_blocks, 0, {}, {}}},
                     {"layer", of_int(node.layer)},
                     {"scale", of_real(0.3)},
                     {"window", of_int(node.window)},
                     {"chunk", of_int(node.chunk)},
                     {"softcap", of_real(node.softcap)}},
                    DType::f32, std::move(dims));
}

struct KvModelOptions {
  std::int64_t window = 0, chunk = 0;
  double softcap = 0;
  bool sinks = false;  // so large that they dominate the softmax
  int layers = 2;
  int group = 1;                // query heads of a head: the query is x, `group` times
  bool first_sees_all = false;  // window and chunk are those of the second layer alone
  bool may_fail = false;        // a third input, i64 [1]: the run fails after the attention when it is not 0
};

// Two layers of attention over x [B, 2, T, 32]: q = k = v = x, the second on the first's result.
struct KvModel {
  static constexpr std::int64_t kHeads = 2, kSize = 32;

  GraphBuilder graph;
  std::shared_ptr<const Program> program;

  explicit KvModel(KvModelOptions options = {}, const LoadOptions& load = {}) {
    const ir::Dim b = dynamic(1, 8, "b"), t = dynamic(1, 64, "t");
    const auto x = graph.input("x", DType::f32, {b, fixed(kHeads), t, fixed(kSize)});
    const auto position = graph.input("cache_position", DType::i64, {b, t});
    AttentionNode node{.softcap = options.softcap};
    if (options.sinks) node.sinks = ir::Arg::of_value(graph.weight("sinks", {80, 80}, {kHeads}));
    const std::vector<ir::Dim> x_dims = {b, fixed(kHeads), t, fixed(kSize)};
    const std::vector<ir::Dim> dims = {b, t, fixed(kHeads * options.group), fixed(kSize)};
    for (int layer = 0; layer < options.layers; ++layer) {
      const bool all = options.first_sees_all && layer == 0;
      node.layer = layer;
      node.window = all ? 0 : options.window;
      node.chunk = all ? 0 : options.chunk;
      const auto in = layer == 0 ? x : first_heads(x_dims, dims, options.group);
      const auto query =
          options.group == 1
              ? in
              : graph.node("aten.repeat.default",
                           {{"self", ir::Arg::of_value(in)}, {"repeats", of_ints({1, options.group, 1, 1})}},
                           DType::f32, {b, fixed(kHeads * options.group), t, fixed(kSize)});
      last_ = attention(graph, query, in, position, node, dims);
    }
    if (options.may_fail) {
      const auto index = graph.input("index", DType::i64, {fixed(1)});
      graph.output(
          graph.node("aten.index_select.default",
                     {{"self", ir::Arg::of_value(last_)}, {"dim", of_int(2)}, {"index", ir::Arg::of_value(index)}},
                     DType::f32, {b, t, fixed(1), fixed(kSize)}));
    } else {
      graph.output(last_);
    }
    program = graph.build(load);
  }

 private:
  // The last result as the next layer's input.
  ir::ValueId first_heads(const std::vector<ir::Dim>& x_dims, const std::vector<ir::Dim>& dims, int group) {
    const auto heads_first =
        graph.node("aten.transpose.int", {{"self", ir::Arg::of_value(last_)}, {"dim0", of_int(1)}, {"dim1", of_int(2)}},
                   DType::f32, {dims[0], dims[2], dims[1], dims[3]});
    if (group == 1) return heads_first;
    return graph.node("aten.slice.Tensor",
                      {{"self", ir::Arg::of_value(heads_first)},
                       {"dim", of_int(1)},
                       {"start", of_int(1)},
                       {"end", of_int(1 + kHeads)},
                       {"step", of_int(1)}},
                      DType::f32, x_dims);
  }

  ir::ValueId last_ = 0;
};

inline SessionOptions with(KvOptions kv) {
  SessionOptions options;
  options.threads = 2;
  options.kv = kv;
  return options;
}

// Tokens [from, to) of `rows` sequences that depend on (row, position) alone.
inline std::vector<float> tokens_of(const std::vector<int>& rows, std::int64_t from, std::int64_t to) {
  std::vector<float> x;
  for (const int row : rows)
    for (std::int64_t h = 0; h < KvModel::kHeads; ++h)
      for (std::int64_t t = from; t < to; ++t) {
        std::mt19937 rng(static_cast<unsigned>(row * 1000 + t * 10 + h));
        std::uniform_real_distribution<float> values(-1, 1);
        for (std::int64_t i = 0; i < KvModel::kSize; ++i) x.push_back(values(rng));
      }
  return x;
}

// `kv_rows`: as in RunOptions. `index`: the third input of a model that may fail; below 0 when it has none.
inline std::vector<float> run(Session& session, const std::vector<int>& rows, std::int64_t from, std::int64_t to,
                              std::int64_t index = -1, const std::vector<std::int64_t>& kv_rows = {}) {
  std::vector<float> x = tokens_of(rows, from, to);
  std::vector<std::int64_t> position;
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::int64_t t = from; t < to; ++t) position.push_back(t);
  const auto batch = static_cast<std::int64_t>(rows.size());
  std::vector<Value> in = {tensor(x, {batch, KvModel::kHeads, to - from, KvModel::kSize}),
                           tensor(position, DType::i64, {batch, to - from})};
  std::vector<std::int64_t> indices = {index};
  if (index >= 0) in.push_back(tensor(indices, DType::i64, {1}));
  RunOptions options;
  options.kv_rows = kv_rows;
  const Value out = session.run("forward", in, options)[0];
  const auto* data = static_cast<const float*>(out.tensor.data);
  return {data, data + out.tensor.shape.numel()};
}

inline void expect_near(const std::vector<float>& a, const std::vector<float>& b, float limit) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], limit) << "at " << i;
}

}  // namespace graft::test
