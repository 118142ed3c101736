// Rotary positions whose angles are products of positions and frequencies: the pass, and what runs on a device and on
// the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device/test_device.h"
#include "ggml.h"
#include "load/program_impl.h"
#include "load/test_graph.h"
#include "pass/graph/passes.h"

namespace graft {
namespace {

using namespace graft::test;
using ir::Arg;
using ::testing::Contains;
using ::testing::Not;

struct Options {
  bool transposed = false;       // frequencies [D / 2, 1] times positions [1, T], then transposed
  double scale = 1;              // of cosines and sines
  double sine_scale = 1;         // of sines, besides
  bool float_positions = false;  // given as f32
  bool computed = false;         // the frequencies are no weight
  bool halves_differ = false;    // cat(f, 2 f)
  bool normed = false;           // x is the norm of an input [b, t, 2, 8], transposed
  DType positions = DType::i64;
};

constexpr std::int64_t kHeads = 2, kSize = 8;

// x * cos(a) + cat(-x[4:], x[:4]) * sin(a) of x [b, 2, t, 8]; a = cat(p * f, p * f) of positions p [b, t], f [4].
void add_rope(GraphBuilder& graph, const Options& o) {
  const ir::Dim b = dynamic(1, 4, "b"), t = dynamic(1, 64, "t"), one = fixed(1), half = fixed(kSize / 2);
  using Dims = std::vector<ir::Dim>;
  const auto node = [&](const char* target, const GraphBuilder::Args& args, const Dims& dims,
                        DType dtype = DType::f32) { return Arg::of_value(graph.node(target, args, dtype, dims)); };
  const auto mul = [&](const Arg& x, const Arg& y, const Dims& dims) {
    return node("aten.mul.Tensor", {{"self", x}, {"other", y}}, dims);
  };
  const auto unsqueeze = [&](const Arg& x, std::int64_t dim, const Dims& dims, DType dtype = DType::f32) {
    return node("aten.unsqueeze.default", {{"self", x}, {"dim", of_int(dim)}}, dims, dtype);
  };
  const Dims tokens_first = {b, t, fixed(kHeads), fixed(kSize)};
  Arg x =
      Arg::of_value(graph.input("x", DType::f32, o.normed ? tokens_first : Dims{b, fixed(kHeads), t, fixed(kSize)}));
  if (o.normed) {
    const Arg weight = Arg::of_value(graph.weight("norm", std::vector<float>(kSize, 2), Shape{kSize}));
    // Of a sum, since inputs of a program have memory of their own.
    x = node("aten.add.Tensor", {{"self", x}, {"other", x}, {"alpha", of_int(1)}}, tokens_first);
    x = node("aten.rms_norm.default",
             {{"input", x}, {"normalized_shape", of_ints({kSize})}, {"weight", weight}, {"eps", of_real(1e-6)}},
             tokens_first);
    x = node("aten.transpose.int", {{"self", x}, {"dim0", of_int(1)}, {"dim1", of_int(2)}},
             {b, fixed(kHeads), t, fixed(kSize)});
  }
  const DType given = o.float_positions ? DType::f32 : o.positions;
  const Arg position = Arg::of_value(graph.input("position", given, {b, t}));
  Arg frequency = Arg::of_value(graph.weight("frequency", {1, 0.5f, 0.03f, 0}, Shape{kSize / 2}));
  if (o.computed) frequency = node("aten.neg.default", {{"self", position}}, {half});
  const auto to_f32 = [&](const Arg& value, const Dims& dims) {
    return o.float_positions
               ? value
               : node("aten.to.dtype",
                      {{"self", value},
                       {"dtype", Arg{Arg::Kind::dtype, static_cast<std::int64_t>(DType::f32), 0, {}, {}}}},
                      dims);
  };
  Arg angle;
  if (o.transposed) {
    const Arg column = unsqueeze(unsqueeze(frequency, 0, {one, half}), 2, {one, half, one});
    const Arg row = to_f32(unsqueeze(position, 1, {b, one, t}, given), {b, one, t});
    angle = node("aten.transpose.int",
                 {{"self", mul(column, row, {b, half, t})}, {"dim0", of_int(1)}, {"dim1", of_int(-1)}}, {b, t, half});
  } else {
    angle = mul(to_f32(unsqueeze(position, -1, {b, t, one}, given), {b, t, one}), frequency, {b, t, half});
  }
  const Arg second = o.halves_differ ? mul(angle, of_real(2), {b, t, half}) : angle;
  const Dims whole = {b, t, fixed(kSize)}, heads = {b, fixed(kHeads), t, fixed(kSize)};
  const Arg both = node("aten.cat.default", {{"tensors", of_list({angle, second})}, {"dim", of_int(-1)}}, whole);
  const auto factor = [&](const char* function, double scale) {
    Arg value = node(function, {{"self", both}}, whole);
    if (scale != 1) value = mul(value, of_real(scale), whole);
    return unsqueeze(value, 1, {b, one, t, fixed(kSize)});
  };
  const auto slice = [&](std::int64_t from) {
    return node("aten.slice.Tensor",
                {{"self", x},
                 {"dim", of_int(3)},
                 {"start", of_int(from)},
                 {"end", of_int(from + kSize / 2)},
                 {"step", of_int(1)}},
                {b, fixed(kHeads), t, half});
  };
  const Arg negative = node("aten.neg.default", {{"self", slice(kSize / 2)}}, {b, fixed(kHeads), t, half});
  const Arg turned = node("aten.cat.default", {{"tensors", of_list({negative, slice(0)})}, {"dim", of_int(-1)}}, heads);
  const Arg sum = node("aten.add.Tensor",
                       {{"self", mul(x, factor("aten.cos.default", o.scale), heads)},
                        {"other", mul(turned, factor("aten.sin.default", o.scale * o.sine_scale), heads)},
                        {"alpha", of_int(1)}},
                       heads);
  const GraphBuilder::Args twice = {{"self", sum}, {"other", sum}, {"alpha", of_int(1)}};
  graph.output((o.normed ? node("aten.add.Tensor", twice, heads) : sum).value());
}

std::vector<std::string> targets_after(ir::Program program) {
  rope_at_positions(program);
  std::vector<std::string> out;
  for (const ir::Node& node : program.methods[0].nodes) out.push_back(program.op_of(node).target);
  return out;
}

const std::vector<Options> kMatched = {{}, {.transposed = true}, {.scale = 1.25}, {.positions = DType::i32}};

TEST(RopeAt, BecomesOneNode) {
  for (const Options& o : kMatched) {
    GraphBuilder graph;
    add_rope(graph, o);
    EXPECT_THAT(targets_after(graph.program()), ::testing::ElementsAre("aten.reciprocal.default", "graft.rope_at"));
  }
}

TEST(RopeAt, WhatOnlyLooksAlikeStays) {
  for (const Options& o : {Options{.sine_scale = 2}, Options{.float_positions = true}, Options{.computed = true},
                           Options{.halves_differ = true}}) {
    GraphBuilder graph;
    add_rope(graph, o);
    EXPECT_THAT(targets_after(graph.program()), Not(Contains("graft.rope_at")));
  }
}

class RopeAtOnDevice : public DeviceTest {
 protected:
  static std::vector<float> run(Session& session, DType dtype) {
    constexpr std::int64_t kBatch = 2, kTokens = 5;
    std::vector<float> x(static_cast<std::size_t>(kBatch * kHeads * kTokens * kSize));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    const std::vector<std::int64_t> wide = {0, 1, 2, 3, 4, 7, 300, 4095, -1, 40000};
    const std::vector<std::int32_t> narrow(wide.begin(), wide.end());
    const void* positions = dtype == DType::i32 ? static_cast<const void*>(narrow.data()) : wide.data();
    const std::vector<Value> out = session.run(
        "forward",
        std::vector<Value>{tensor(x, {kBatch, kHeads, kTokens, kSize}),
                           Value::of(TensorView{const_cast<void*>(positions), dtype, Shape{kBatch, kTokens}})});
    const auto* data = static_cast<const float*>(out[0].tensor.data);
    return {data, data + x.size()};
  }
};

// Angles up to 40,000, whose f32 products have errors of 1e-3 themselves: the same ones in both, but for one rounding.
TEST_F(RopeAtOnDevice, EqualsTheCpu) {
  for (const Options& o : kMatched) {
    GraphBuilder here, there;
    add_rope(here, o);
    add_rope(there, o);
    LoadOptions on_cpu, on_device;
    on_cpu.device = "cpu";
    on_device.device = "rpc0";
    const auto program = there.build(on_device);
    Session cpu(here.build(on_cpu)), device(program);
    const std::vector<float> expected = run(cpu, o.positions), found = run(device, o.positions);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 4e-3) << i;
    EXPECT_THAT(program->describe(), ::testing::HasSubstr("ggml ROPE"));
    // The same graph on the CPU, once the device has no memory for a run.
    Session without(program);
    setenv("GRAFT_DEVICE_MEMORY", "1", 1);
    EXPECT_THROW(run(without, o.positions), OutOfMemory);
    unsetenv("GRAFT_DEVICE_MEMORY");
    const std::vector<float> again = run(without, o.positions);
    for (std::size_t i = 0; i < again.size(); ++i) EXPECT_NEAR(again[i], expected[i], 1e-6) << i;
  }
}

// ggml's CUDA backend makes one kernel of the three, if the last one does not write where the first one reads.
TEST_F(RopeAtOnDevice, ANormAndItsPositionsCanBeOneKernel) {
  GraphBuilder graph;
  add_rope(graph, {.normed = true});
  LoadOptions on_device;
  on_device.device = "rpc0";
  const auto program = graph.build(on_device);
  Session session(program);
  std::vector<float> x(2 * 5 * kHeads * kSize, 1);
  std::vector<std::int64_t> positions(10, 3);
  session.run("forward", std::vector<Value>{tensor(x, {2, 5, kHeads, kSize}),
                                            Value::of(TensorView{positions.data(), DType::i64, Shape{2, 5}})});
  const Plan& plan = *Internal::of(*program).plans->list().at(0).second;
  const auto rope = std::ranges::find(plan.launches, static_cast<int>(GGML_OP_ROPE), &Launch::ggml_op);
  ASSERT_NE(rope, plan.launches.end());
  EXPECT_EQ((rope - 1)->ggml_op, GGML_OP_MUL);
  EXPECT_EQ((rope - 2)->ggml_op, GGML_OP_RMS_NORM);
  const Buffer &from = plan.buffers[(rope - 2)->inputs[0].buffer], &to = plan.buffers[rope->outputs[0].buffer];
  EXPECT_TRUE(from.allocation != to.allocation || from.offset + from.bytes <= to.offset ||
              to.offset + to.bytes <= from.offset);
}

}  // namespace
}  // namespace graft
