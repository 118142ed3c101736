// Programs on a device with its own memory (ggml's RPC backend over loopback), compared with the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "device/test_device.h"
#include "ggml.h"
#include "load/test_graph.h"
#include "plan/stages.h"

namespace graft {
namespace {

using namespace graft::test;
using ir::Arg;
using ::testing::HasSubstr;

std::vector<float> noise(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& v : out) v = normal(random);
  return out;
}

Value tensor(std::vector<float>& data, const Shape& shape) {
  return Value::of(TensorView{data.data(), DType::f32, shape});
}

// The largest difference, relative to the largest value.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_FALSE(std::isnan(a[i]) != std::isnan(b[i]));
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return largest > 0 ? worst / largest : worst;
}

LoadOptions on_device() {
  LoadOptions options;
  options.device = "rpc0";
  return options;
}

class OnDevice : public DeviceTest {
 protected:
  // Runs on both and compares; keeps the device's session in `session`.
  void compare(GraphBuilder& graph, const std::vector<Value>& inputs, double tolerance = 1e-5) {
    LoadOptions cpu;
    cpu.device = "cpu";
    Session reference(graph.build(cpu));
    const std::vector<Value> expected = reference.run("forward", inputs);
    program = graph.build(on_device());
    session.emplace(program);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const std::vector<Value> found = session->run("forward", inputs);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (found[i].tensor.dtype != DType::f32) continue;
        EXPECT_LE(difference(floats(found[i]), floats(expected[i])), tolerance) << "output " << i;
      }
    }
  }

  std::shared_ptr<const Program> program;
  std::optional<Session> session;
};

Arg of(ir::ValueId id) { return Arg::of_value(id); }

TEST_F(OnDevice, LinearWithBiasIsOneStageOnTheDevice) {
  GraphBuilder graph;
  const auto w = graph.weight("w", noise(24, 1), {4, 6});
  const auto b = graph.weight("b", noise(4, 2), {4});
  const auto x = graph.input("x", DType::f32, {fixed(3), fixed(6)});
  graph.output(graph.node("aten.linear.default", {{"input", of(x)}, {"weight", of(w)}, {"bias", of(b)}}, DType::f32,
                          {fixed(3), fixed(4)}));
  std::vector<float> data = noise(18, 3);
  compare(graph, {tensor(data, {3, 6})});
  const Counters& c = session->counters();
  EXPECT_EQ(c.runs, 2u);
  EXPECT_EQ(c.stages, 2u * 2) << "the device, and the host that takes the result";
  EXPECT_EQ(c.uploads, 2u);
  EXPECT_EQ(c.upload_bytes, 2u * 18 * 4);
  EXPECT_EQ(c.downloads, 2u);
  EXPECT_EQ(c.download_bytes, 2u * 12 * 4);
}

// Weights are uploaded once for all sessions and sizes.
TEST_F(OnDevice, WeightsAreUploadedOncePerProgram) {
  GraphBuilder graph;
  const auto w = graph.weight("w", noise(24, 1), {4, 6});
  const auto x = graph.input("x", DType::f32, {dynamic(1, 9, "n"), fixed(6)});
  graph.output(graph.node("aten.linear.default", {{"input", of(x)}, {"weight", of(w)}, {"bias", of_none()}}, DType::f32,
                          {dynamic(1, 9, "n"), fixed(4)}));
  std::vector<float> data = noise(54, 3);
  compare(graph, {tensor(data, {2, 6})});
  EXPECT_EQ(Internal::of(*program).on_device->uploads(), 1u);
  EXPECT_EQ(Internal::of(*program).on_device->uploaded_bytes(), 24u * 4);
  Session second(program);
  second.run("forward", std::vector{tensor(data, {9, 6})});
  session->run("forward", std::vector{tensor(data, {9, 6})});  // the block grows: addresses are rewritten
  EXPECT_EQ(floats(second.run("forward", std::vector{tensor(data, {3, 6})})[0]),
            floats(session->run("forward", std::vector{tensor(data, {3, 6})})[0]));
  EXPECT_EQ(Internal::of(*program).on_device->uploaded_bytes(), 24u * 4);
}

TEST_F(OnDevice, ASteadyRunRewritesNothing) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(3), fixed(6)});
  graph.output(graph.node("aten.silu.default", {{"self", of(x)}}, DType::f32, {fixed(3), fixed(6)}));
  std::vector<float> data = noise(18, 3);
  compare(graph, {tensor(data, {3, 6})});
  std::vector<float> out(18);
  std::vector<Value> outputs{tensor(out, {3, 6})};
  session->run_into("forward", std::vector{tensor(data, {3, 6})}, outputs);
  const std::uint64_t rewrites = session->counters().rewrites;
  session->run_into("forward", std::vector{tensor(data, {3, 6})}, outputs);
  EXPECT_EQ(session->counters().rewrites, rewrites);
}

// Launches of the only plan on the device, and on the CPU.
struct Places {
  std::size_t device = 0, host = 0;
};
Places places(const Program& program) {
  Places out;
  for (const Launch& launch : Internal::of(program).plans->list().at(0).second->launches)
    ++(launch.on_device ? out.device : out.host);
  return out;
}

TEST_F(OnDevice, FunctionsOfOneOperand) {
  for (const char* name : {"neg", "abs", "exp", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "relu", "silu"}) {
    SCOPED_TRACE(name);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      GraphBuilder graph;
      const std::vector<ir::Dim> dims{fixed(3), fixed(5), fixed(7)};
      const auto x = graph.input("x", DType::f32, dims);
      auto y = x;
      if (dtype != DType::f32) y = graph.node("aten._to_copy.default", {{"self", of(y)}}, dtype, dims);
      y = graph.node(std::string("aten.") + name + ".default", {{"self", of(y)}}, dtype, dims);
      if (dtype != DType::f32) y = graph.node("aten._to_copy.default", {{"self", of(y)}}, DType::f32, dims);
      graph.output(y);
      std::vector<float> data = noise(105, 3);
      for (float& v : data) v = std::abs(v) + 0.1f;
      data[5] = -0.0f;
      compare(graph, {tensor(data, {3, 5, 7})}, dtype == DType::f32 ? 1e-5 : 1e-2);
      EXPECT_GT(places(*program).device, 0u);
    }
  }
}

TEST_F(OnDevice, SumsAndMeans) {
  for (const char* name : {"sum.dim_IntList", "mean.dim"}) {
    for (const bool last : {true, false}) {
      SCOPED_TRACE(std::string(name) + (last ? " of the last dim" : " of the middle"));
      GraphBuilder graph;
      const auto x = graph.input("x", DType::f32, {fixed(3), fixed(5), fixed(70)});
      graph.output(
          graph.node(std::string("aten.") + name,
                     {{"self", of(x)}, {"dim", of_ints({last ? -1 : 1})}, {"keepdim", of_int(0)}, {"dtype", of_none()}},
                     DType::f32, {fixed(3), fixed(last ? 5 : 70)}));
      std::vector<float> data = noise(1050, 3);
      compare(graph, {tensor(data, {3, 5, 70})});
      EXPECT_EQ(places(*program).device, last ? 1u : 2u) << "other dims are moved to the end first";
      EXPECT_EQ(places(*program).host, 0u);
    }
  }
}

// How often the only plan launches one of ggml's ops.
std::size_t launches_of(const Program& program, ggml_op op) {
  const std::vector<Launch>& launches = Internal::of(program).plans->list().at(0).second->launches;
  return static_cast<std::size_t>(
      std::ranges::count_if(launches, [&](const Launch& l) { return !l.kernel && l.ggml_op == op; }));
}

// silu(gate) * up, either operand first; what else reads the silu needs it as it is.
TEST_F(OnDevice, AGatedProductIsOneLaunch) {
  for (const bool silu_first : {true, false}) {
    for (const bool read_again : {false, true}) {
      GraphBuilder graph;
      const std::vector<ir::Dim> dims{dynamic(1, 9, "n"), fixed(33)};
      const auto gate = graph.input("gate", DType::f32, dims), up = graph.input("up", DType::f32, dims);
      const auto silu = graph.node("aten.silu.default", {{"self", of(gate)}}, DType::f32, dims);
      graph.output(graph.node("aten.mul.Tensor",
                              {{"self", of(silu_first ? silu : up)}, {"other", of(silu_first ? up : silu)}}, DType::f32,
                              dims));
      if (read_again) graph.output(silu);
      std::vector<float> a = noise(66, 3), b = noise(66, 4);
      compare(graph, {tensor(a, {2, 33}), tensor(b, {2, 33})});
      EXPECT_EQ(launches_of(*program, GGML_OP_GLU), 1u);
      EXPECT_EQ(launches_of(*program, GGML_OP_UNARY), read_again ? 1u : 0u);
    }
  }
}

// x[:, index], the same rows of every batch.
TEST_F(OnDevice, RowsOfEveryBatchAreTakenThere) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(3), fixed(5), fixed(7)});
  const auto index = graph.input("index", DType::i64, {fixed(2)});
  graph.output(graph.node("aten.index.Tensor", {{"self", of(x)}, {"indices", of_list({of_none(), of(index)})}},
                          DType::f32, {fixed(3), fixed(2), fixed(7)}));
  std::vector<float> data = noise(105, 3);
  std::vector<std::int64_t> rows = {4, -3};
  compare(graph, {tensor(data, {3, 5, 7}), Value::of(TensorView{rows.data(), DType::i64, Shape{2}})});
  EXPECT_EQ(launches_of(*program, GGML_OP_GET_ROWS), 1u);
  rows[1] = 5;
  EXPECT_THROW(session->run("forward", std::vector{tensor(data, {3, 5, 7}),
                                                   Value::of(TensorView{rows.data(), DType::i64, Shape{2}})}),
               ExecutionError);
}

ir::Arg text(std::string value) {
  Arg arg;
  arg.kind = Arg::Kind::string;
  arg.s = std::move(value);
  return arg;
}

TEST_F(OnDevice, BothKindsOfGelu) {
  for (const char* kind : {"none", "tanh"}) {
    GraphBuilder graph;
    const auto x = graph.input("x", DType::f32, {fixed(300)});
    graph.output(
        graph.node("aten.gelu.default", {{"self", of(x)}, {"approximate", text(kind)}}, DType::f32, {fixed(300)}));
    std::vector<float> data = noise(300, 4);
    compare(graph, {tensor(data, {300})});
    EXPECT_GT(places(*program).device, 0u);
  }
}

// Both operands may be broadcast, in any dimension.
TEST_F(OnDevice, ArithmeticWithBroadcast) {
  const std::vector<std::pair<Shape, Shape>> shapes = {{{2, 3, 4, 5}, {2, 3, 4, 5}},
                                                       {{2, 3, 4, 5}, {5}},
                                                       {{2, 3, 4, 5}, {3, 1, 5}},
                                                       {{5}, {2, 3, 4, 5}},
                                                       {{2, 1, 4, 1}, {3, 1, 5}},
                                                       {{2, 3, 4, 5}, {2, 1, 1, 1}},
                                                       {{4, 5}, {}},
                                                       {{2, 3, 2, 2, 2, 5}, {5}},
                                                       {{2, 3, 4, 5}, {2, 3, 4, 1}},
                                                       {{7, 1}, {1, 9}}};
  for (const char* name : {"add", "sub", "mul", "div"}) {
    for (const auto& [a, b] : shapes) {
      SCOPED_TRACE(std::string(name) + " " + a.str() + " " + b.str());
      GraphBuilder graph;
      const auto dims = [](const Shape& shape) {
        std::vector<ir::Dim> out;
        for (const std::int64_t size : shape.sizes()) out.push_back(fixed(size));
        return out;
      };
      Shape out;
      for (int d = std::max(a.rank(), b.rank()); d > 0; --d)
        out.push_back(std::max(d <= a.rank() ? a[a.rank() - d] : 1, d <= b.rank() ? b[b.rank() - d] : 1));
      const auto x = graph.input("x", DType::f32, dims(a));
      const auto y = graph.input("y", DType::f32, dims(b));
      GraphBuilder::Args args{{"self", of(x)}, {"other", of(y)}};
      if (std::string(name) == "add" || std::string(name) == "sub") args.emplace_back("alpha", of_int(1));
      graph.output(graph.node(std::string("aten.") + name + ".Tensor", args, DType::f32, dims(out)));
      std::vector<float> u = noise(static_cast<std::size_t>(a.numel()), 1);
      std::vector<float> v = noise(static_cast<std::size_t>(b.numel()), 2);
      compare(graph, {tensor(u, a), tensor(v, b)});
      EXPECT_GT(places(*program).device, 0u);
    }
  }
}

TEST_F(OnDevice, ArithmeticWithNumbers) {
  for (const char* name :
       {"add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "rsub.Scalar", "pow.Tensor_Scalar"}) {
    SCOPED_TRACE(name);
    GraphBuilder graph;
    const std::vector<ir::Dim> dims{fixed(3), fixed(70)};
    const auto x = graph.input("x", DType::f32, dims);
    const bool power = std::string(name) == "pow.Tensor_Scalar";
    GraphBuilder::Args args{{"self", of(x)}, {power ? "exponent" : "other", of_real(power ? 2 : 3)}};
    if (std::string(name).find("ub") != std::string::npos || std::string(name) == "add.Tensor")
      args.emplace_back("alpha", of_int(1));
    graph.output(graph.node(std::string("aten.") + name, args, DType::f32, dims));
    std::vector<float> data = noise(210, 3);
    compare(graph, {tensor(data, {3, 70})});
    EXPECT_EQ(places(*program).device, 1u);
    EXPECT_EQ(places(*program).host, 0u);
  }
}

ir::Arg of_bool(bool value) {
  Arg arg;
  arg.kind = Arg::Kind::boolean;
  arg.i = value;
  return arg;
}

struct AttentionCase {
  const char* name;
  Shape q, k;
  Shape mask;  // rank 0: none
  bool causal = false, groups = false, bool_mask = false;
};

TEST_F(OnDevice, Attention) {
  const AttentionCase cases[] = {
      {"plain", {2, 3, 5, 8}, {2, 3, 7, 8}, {}},
      {"rank 3", {3, 5, 8}, {3, 7, 8}, {}},
      {"causal", {2, 3, 7, 8}, {2, 3, 7, 8}, {}, true},
      {"groups", {2, 6, 5, 8}, {2, 2, 7, 8}, {}, false, true},
      {"groups, causal", {1, 6, 5, 8}, {1, 2, 5, 8}, {}, true, true},
      {"added mask", {2, 3, 5, 8}, {2, 3, 7, 8}, {5, 7}},
      {"added mask of a batch", {2, 3, 5, 8}, {2, 3, 7, 8}, {2, 1, 5, 7}},
      {"padding", {2, 3, 5, 8}, {2, 3, 7, 8}, {2, 1, 1, 7}, false, false, true},
      {"bool mask, a row without keys", {2, 3, 5, 8}, {2, 3, 7, 8}, {2, 1, 5, 7}, false, false, true},
  };
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(c.name);
    GraphBuilder graph;
    const auto dims = [](const Shape& shape) {
      std::vector<ir::Dim> out;
      for (const std::int64_t size : shape.sizes()) out.push_back(fixed(size));
      return out;
    };
    const auto q = graph.input("q", DType::f32, dims(c.q));
    const auto k = graph.input("k", DType::f32, dims(c.k));
    const auto v = graph.input("v", DType::f32, dims(c.k));
    std::vector<float> qs = noise(static_cast<std::size_t>(c.q.numel()), 1);
    std::vector<float> ks = noise(static_cast<std::size_t>(c.k.numel()), 2);
    std::vector<float> vs = noise(static_cast<std::size_t>(c.k.numel()), 3);
    std::vector<Value> inputs{tensor(qs, c.q), tensor(ks, c.k), tensor(vs, c.k)};
    std::vector<float> added = noise(static_cast<std::size_t>(c.mask.numel()), 4);
    std::vector<std::uint8_t> seen;
    for (std::size_t i = 0; i < added.size(); ++i) seen.push_back(added[i] > -0.5f && i >= 7);
    Arg mask = of_none();
    if (c.mask.rank() > 0) {
      mask = of(graph.input("mask", c.bool_mask ? DType::b8 : DType::f32, dims(c.mask)));
      inputs.push_back(c.bool_mask ? Value::of(TensorView{seen.data(), DType::b8, c.mask}) : tensor(added, c.mask));
    }
    graph.output(graph.node("aten.scaled_dot_product_attention.default",
                            {{"query", of(q)},
                             {"key", of(k)},
                             {"value", of(v)},
                             {"attn_mask", mask},
                             {"dropout_p", of_real(0)},
                             {"is_causal", of_bool(c.causal)},
                             {"scale", of_none()},
                             {"enable_gqa", of_bool(c.groups)}},
                            DType::f32, dims(c.q)));
    compare(graph, inputs);
    EXPECT_EQ(places(*program).host, c.mask.rank() > 0 ? 1u : 0u) << "what a mask adds";
    EXPECT_GE(places(*program).device, 3u);
  }
}

// f16 and bf16 weights keep their stored type.
TEST_F(OnDevice, HalfPrecisionLinear) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    GraphBuilder graph;
    const auto w = graph.weight("w", noise(32 * 64, 1), {32, 64});
    const auto b = graph.weight("b", noise(32, 2), {32});
    const auto x = graph.input("x", DType::f32, {fixed(5), fixed(64)});
    const auto cast = [&](ir::ValueId id, std::vector<ir::Dim> dims) {
      return graph.node("aten._to_copy.default", {{"self", of(id)}}, dtype, std::move(dims));
    };
    const auto y = graph.node("aten.linear.default",
                              {{"input", of(cast(x, {fixed(5), fixed(64)}))},
                               {"weight", of(cast(w, {fixed(32), fixed(64)}))},
                               {"bias", of(cast(b, {fixed(32)}))}},
                              dtype, {fixed(5), fixed(32)});
    graph.output(graph.node("aten._to_copy.default", {{"self", of(y)}}, DType::f32, {fixed(5), fixed(32)}));
    std::vector<float> data = noise(320, 3);
    // The result is rounded to 11 or 8 bits, once.
    compare(graph, {tensor(data, {5, 64})}, dtype == DType::f16 ? 1e-3 : 8e-3);
    EXPECT_EQ(Internal::of(*program).on_device->uploaded_bytes(), (32u * 64 + 32) * 2) << "two bytes an element";
  }
}

// An op that the device lacks runs on the CPU between two device stages.
TEST_F(OnDevice, TheCpuRunsWhatTheDeviceLacks) {
  GraphBuilder graph;
  const std::vector<ir::Dim> dims{fixed(64), fixed(256)};
  const auto w = graph.weight("w", noise(256 * 256, 1), {256, 256});
  const auto x = graph.input("x", DType::f32, dims);
  const auto linear = [&](ir::ValueId in) {
    return graph.node("aten.linear.default", {{"input", of(in)}, {"weight", of(w)}, {"bias", of_none()}}, DType::f32,
                      dims);
  };
  const auto first = linear(x);
  const auto scanned = graph.node("aten.cumsum.default", {{"self", of(first)}, {"dim", of_int(1)}}, DType::f32, dims);
  graph.output(linear(scanned));
  graph.output(first);
  std::vector<float> data = noise(64 * 256, 3);
  compare(graph, {tensor(data, {64, 256})});
  const Places p = places(*program);
  EXPECT_EQ(p.device, 2u);
  EXPECT_EQ(p.host, 1u);
  const Counters& c = session->counters();
  EXPECT_EQ(c.stages, 2u * 4) << "device, cumsum, device, results";
  EXPECT_EQ(c.uploads, 2u * 2);
  EXPECT_EQ(c.downloads, 2u * 2);
  EXPECT_EQ(c.upload_bytes, 2u * 2 * 64 * 256 * 4);
  EXPECT_EQ(c.download_bytes, 2u * 2 * 64 * 256 * 4);
}

// Small inputs share one transfer.
TEST_F(OnDevice, InputsGoUpInOneCopy) {
  GraphBuilder graph;
  const auto a = graph.input("a", DType::f32, {fixed(3)});
  const auto b = graph.input("b", DType::f32, {fixed(3)});
  const auto c = graph.input("c", DType::f32, {fixed(3)});
  const auto add = [&](ir::ValueId x, ir::ValueId y) {
    return graph.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(y)}, {"alpha", of_int(1)}}, DType::f32,
                      {fixed(3)});
  };
  const auto ab = add(a, b);
  graph.output(add(ab, c));
  graph.output(ab);
  std::vector<float> x = noise(3, 1), y = noise(3, 2), z = noise(3, 3);
  compare(graph, {tensor(x, {3}), tensor(y, {3}), tensor(z, {3})});
  EXPECT_EQ(session->counters().uploads, 2u);
  EXPECT_EQ(session->counters().downloads, 2u);
}

TEST_F(OnDevice, StatesAreKeptOnTheHostBetweenRuns) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  const auto s = graph.state("sum", DType::f32, {2});
  const auto next =
      graph.node("aten.add.Tensor", {{"self", of(s)}, {"other", of(x)}, {"alpha", of_int(1)}}, DType::f32, {fixed(2)});
  graph.mutate_state(0, next);
  graph.output(s);
  const auto loaded = graph.build(on_device());
  Session one(loaded), two(loaded);
  std::vector<float> data{1, 2};
  const std::vector<Value> in{tensor(data, {2})};
  EXPECT_EQ(floats(one.run("forward", in)[0]), (std::vector<float>{0, 0}));
  EXPECT_EQ(floats(one.run("forward", in)[0]), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats(two.run("forward", in)[0]), (std::vector<float>{0, 0}));
  EXPECT_EQ(floats(one.run("forward", in)[0]), (std::vector<float>{2, 4}));
}

// The indices are checked before ggml, which checks nothing, reads them.
TEST_F(OnDevice, EmbeddingRunsThereAndChecksItsIndices) {
  GraphBuilder graph;
  const auto table = graph.weight("table", noise(10 * 4, 1), {10, 4});
  const auto ids = graph.input("ids", DType::i64, {fixed(2), fixed(3)});
  graph.output(graph.node("aten.embedding.default",
                          {{"weight", of(table)},
                           {"indices", of(ids)},
                           {"padding_idx", of_int(-1)},
                           {"scale_grad_by_freq", of_int(0)},
                           {"sparse", of_int(0)}},
                          DType::f32, {fixed(2), fixed(3), fixed(4)}));
  std::vector<std::int64_t> good{9, 0, 3, 3, 1, 8}, bad{9, 0, 10, 3, 1, 8}, negative{0, 0, 0, 0, -1, 0};
  const auto value = [](std::vector<std::int64_t>& data) {
    return std::vector{Value::of(TensorView{data.data(), DType::i64, {2, 3}})};
  };
  compare(graph, value(good));
  EXPECT_EQ(places(*program).device, 1u);
  for (auto* wrong : {&bad, &negative}) {
    try {
      session->run("forward", value(*wrong));
      FAIL() << "an index out of range was taken";
    } catch (const ExecutionError& e) {
      EXPECT_THAT(e.what(), HasSubstr("out of range"));
    }
  }
  EXPECT_NO_THROW(session->run("forward", value(good)));
}

TEST_F(OnDevice, SessionsOfSeveralThreads) {
  GraphBuilder graph;
  const auto w = graph.weight("w", noise(36, 1), {6, 6});
  const auto x = graph.input("x", DType::f32, {dynamic(1, 9, "n"), fixed(6)});
  graph.output(graph.node("aten.linear.default", {{"input", of(x)}, {"weight", of(w)}, {"bias", of_none()}}, DType::f32,
                          {dynamic(1, 9, "n"), fixed(6)}));
  const auto loaded = graph.build(on_device());
  LoadOptions on_cpu;
  on_cpu.device = "cpu";
  const auto reference = graph.build(on_cpu);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Session there(loaded), cpu(reference);
      for (int i = 0; i < 20; ++i) {
        const std::int64_t n = 1 + (i + t) % 9;
        std::vector<float> data = noise(static_cast<std::size_t>(n) * 6, static_cast<unsigned>(i));
        const std::vector<Value> in{tensor(data, {n, 6})};
        wrong += difference(floats(there.run("forward", in)[0]), floats(cpu.run("forward", in)[0])) > 1e-5;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(OnDevice, CancelledAndLateRuns) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2), fixed(2)});
  graph.output(graph.node("aten.silu.default", {{"self", of(x)}}, DType::f32, {fixed(2), fixed(2)}));
  std::vector<float> data = noise(4, 1);
  compare(graph, {tensor(data, {2, 2})});
  RunOptions late;
  late.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_THROW(session->run("forward", std::vector{tensor(data, {2, 2})}, late), Cancelled);
  EXPECT_NO_THROW(session->run("forward", std::vector{tensor(data, {2, 2})}));
}

TEST_F(OnDevice, ProfileNamesEveryLaunch) {
  GraphBuilder graph;
  const std::vector<ir::Dim> dims{fixed(2), fixed(2)};
  const auto x = graph.input("x", DType::f32, dims);
  const auto y = graph.node("aten.silu.default", {{"self", of(x)}}, DType::f32, dims);
  graph.output(graph.node("aten.cumsum.default", {{"self", of(y)}, {"dim", of_int(1)}}, DType::f32, dims));
  std::vector<float> data = noise(4, 1);
  compare(graph, {tensor(data, {2, 2})});
  std::vector<NodeTiming> profile;
  RunOptions options;
  options.profile = &profile;
  session->run("forward", std::vector{tensor(data, {2, 2})}, options);
  ASSERT_EQ(profile.size(), 2u);
  EXPECT_EQ(profile[0].kernel, "ggml UNARY");
  EXPECT_EQ(profile[1].kernel, "graft scan");
}

TEST_F(OnDevice, EnvironmentAndUnknownNames) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  graph.output(graph.node("aten.silu.default", {{"self", of(x)}}, DType::f32, {fixed(2)}));
  ASSERT_EQ(setenv("GRAFT_DEVICE", "RPC0", 1), 0);
  EXPECT_EQ(Internal::of(*graph.build()).device, "rpc0");
  unsetenv("GRAFT_DEVICE");
  LoadOptions options;
  options.device = "rpc7";
  try {
    graph.build(options);
    FAIL() << "device 'rpc7' was accepted";
  } catch (const NotFound& e) {
    EXPECT_THAT(e.what(), HasSubstr("cpu"));
    EXPECT_THAT(e.what(), HasSubstr("rpc0"));
  }
}

// ggml would end the process.
TEST_F(OnDevice, AServerThatIsNotThereIsATypedError) {
  const std::string before = std::getenv("GRAFT_RPC");
  for (const char* wrong : {"nonsense", "127.0.0.1:", "127.0.0.1:99999", ":1"}) {
    setenv("GRAFT_RPC", wrong, 1);
    EXPECT_THROW(devices(), InvalidArgument) << wrong;
  }
  setenv("GRAFT_RPC", "127.0.0.1:1", 1);
  try {
    devices();
    FAIL() << "a server on port 1";
  } catch (const SystemError& e) {
    EXPECT_THAT(e.what(), HasSubstr("127.0.0.1:1"));
  }
  setenv("GRAFT_RPC", before.c_str(), 1);
}

TEST_F(OnDevice, MemoryThatCannotBeHadIsATypedError) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  graph.output(graph.node("aten.silu.default", {{"self", of(x)}}, DType::f32, {fixed(2)}));
  const auto loaded = graph.build(on_device());
  try {
    DeviceMemory(Internal::of(*loaded).on_device->handle(), "rpc0", std::size_t{1} << 60, "a test");
    FAIL() << "2^60 bytes";
  } catch (const SystemError& e) {
    EXPECT_THAT(e.what(), HasSubstr("rpc0"));
    EXPECT_THAT(e.what(), HasSubstr("a test"));
  }
  Session there(loaded);
  std::vector<float> data{1, 2};
  EXPECT_NO_THROW(there.run("forward", std::vector{tensor(data, {2})}));
}

}  // namespace
}  // namespace graft
