#include "pass/graph/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernel/matmul/packed_pairs_vec.h"
#include "load/test_graph.h"
#include "pass/pipeline.h"

// Each pass: the graph before and after, the values of both, and similar graphs that must stay unchanged.
namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::of_int;
using test::of_ints;
using test::of_list;
using test::of_none;
using test::of_real;
using test::tensor;
using ::testing::ElementsAre;

std::vector<std::string> targets(const ir::Program& program) {
  std::vector<std::string> out;
  for (const ir::Node& node : program.methods[0].nodes) out.push_back(program.op_of(node).target);
  return out;
}

std::vector<std::string> after_passes(ir::Program program, const PassOptions& options = {}) {
  GraphPasses passes{program, options};
  run_graph_passes(PassStage::placed, passes);
  return targets(program);
}

Arg of_bool(bool v) { return {Arg::Kind::boolean, v ? 1 : 0, 0, {}, {}}; }

struct NormOptions {
  double eps = 1e-5;
  double exponent = 2;
  std::int64_t dim = -1;
  bool keepdim = true;
  bool weight_first = true;
  bool square_by_mul = false;
  DType dtype = DType::f32;
  bool weight = true;
};

// weight * (x * rsqrt(mean(x ^ 2) + eps)) of x [n, 8].
void add_norm(GraphBuilder& graph, const NormOptions& o = {}) {
  const std::vector<ir::Dim> dims = {dynamic(1, 64, "n"), fixed(8)}, column = {dynamic(1, 64, "n"), fixed(1)};
  const auto x = graph.input("x", o.dtype, dims);
  const auto square =
      o.square_by_mul
          ? graph.node("aten.mul.Tensor", {{"self", Arg::of_value(x)}, {"other", Arg::of_value(x)}}, o.dtype, dims)
          : graph.node("aten.pow.Tensor_Scalar", {{"self", Arg::of_value(x)}, {"exponent", of_real(o.exponent)}},
                       o.dtype, dims);
  const auto mean = graph.node("aten.mean.dim",
                               {{"self", Arg::of_value(square)},
                                {"dim", of_ints({o.dim})},
                                {"keepdim", of_bool(o.keepdim)},
                                {"dtype", of_none()}},
                               o.dtype, o.dim == 0 ? std::vector<ir::Dim>{fixed(1), fixed(8)} : column);
  const auto shifted =
      graph.node("aten.add.Tensor", {{"self", Arg::of_value(mean)}, {"other", of_real(o.eps)}, {"alpha", of_int(1)}},
                 o.dtype, column);
  const auto inverse = graph.node("aten.rsqrt.default", {{"self", Arg::of_value(shifted)}}, o.dtype, column);
  const auto normal =
      graph.node("aten.mul.Tensor", {{"self", Arg::of_value(x)}, {"other", Arg::of_value(inverse)}}, o.dtype, dims);
  if (!o.weight) return graph.output(normal);
  const auto w = graph.weight("w", {1, 2, 3, 4, 5, 6, 7, 8}, {8});
  const auto a = Arg::of_value(o.weight_first ? w : normal), b = Arg::of_value(o.weight_first ? normal : w);
  graph.output(graph.node("aten.mul.Tensor", {{"self", a}, {"other", b}}, o.dtype, dims));
}

TEST(FuseRmsNorm, BeforeAndAfter) {
  for (const bool weight_first : {true, false}) {
    for (const bool square_by_mul : {true, false}) {
      GraphBuilder graph;
      add_norm(graph, {.eps = 0.25, .weight_first = weight_first, .square_by_mul = square_by_mul});
      EXPECT_EQ(targets(graph.program()).size(), 6u);
      EXPECT_THAT(after_passes(graph.program()), ElementsAre("aten.rms_norm.default"));
      Session session(graph.build());
      std::vector<float> x = {1, -2, 3, -4, 5, -6, 7, -8, 1, 1, 1, 1, 1, 1, 1, 1};
      const Value out = session.run("forward", std::vector<Value>{tensor(x, {2, 8})})[0];
      for (std::size_t i = 0; i < 16; ++i) {
        const double mean = i < 8 ? 204.0 / 8 : 1;
        const double want = static_cast<double>(i % 8 + 1) * static_cast<double>(x[i]) / std::sqrt(mean + 0.25);
        EXPECT_NEAR(static_cast<double>(static_cast<const float*>(out.tensor.data)[i]), want, 1e-5);
      }
    }
  }
}

TEST(FuseRmsNorm, WithoutAWeight) {
  GraphBuilder graph;
  add_norm(graph, {.weight = false});
  EXPECT_THAT(after_passes(graph.program()), ElementsAre("aten.rms_norm.default"));
}

TEST(FuseRmsNorm, WhatOnlyLooksAlikeStays) {
  for (const NormOptions& o : {NormOptions{.exponent = 3}, NormOptions{.dim = 0}, NormOptions{.dtype = DType::bf16},
                               NormOptions{.keepdim = false}}) {
    GraphBuilder graph;
    add_norm(graph, o);
    EXPECT_EQ(after_passes(graph.program()).size(), 6u);
  }
}

struct RopeOptions {
  std::int64_t cut = 4;      // where x is divided
  bool negate_first = true;  // cat(-second, first)
  bool swapped = false;      // cat(first, -second)
  bool cos_first = false;
  std::int64_t batch_of_x = 0;  // 0: as that of cos
};

// x * cos + cat(-x[4:], x[:4]) * sin of x [n, 2, t, 8] and cos, sin [n, 1, t, 8].
void add_rope(GraphBuilder& graph, const RopeOptions& o = {}) {
  const ir::Dim n = dynamic(1, 4, "n"), t = dynamic(1, 64, "t");
  const ir::Dim batch = o.batch_of_x ? fixed(o.batch_of_x) : n;
  const std::vector<ir::Dim> dims = {batch, fixed(2), t, fixed(8)}, angles = {n, fixed(1), t, fixed(8)};
  const std::vector<ir::Dim> result = {n, fixed(2), t, fixed(8)};
  const auto half = [&](std::int64_t size) { return std::vector<ir::Dim>{batch, fixed(2), t, fixed(size)}; };
  const auto x = graph.input("x", DType::f32, dims);
  const auto cos = graph.input("cos", DType::f32, angles), sin = graph.input("sin", DType::f32, angles);
  const auto mul = [&](ir::ValueId a, ir::ValueId b, const std::vector<ir::Dim>& d) {
    return graph.node("aten.mul.Tensor", {{"self", Arg::of_value(a)}, {"other", Arg::of_value(b)}}, DType::f32, d);
  };
  const auto slice = [&](std::int64_t from, std::int64_t to, std::int64_t size) {
    return graph.node("aten.slice.Tensor",
                      {{"self", Arg::of_value(x)},
                       {"dim", of_int(3)},
                       {"start", of_int(from)},
                       {"end", of_int(to)},
                       {"step", of_int(1)}},
                      DType::f32, half(size));
  };
  const auto plain = o.cos_first ? mul(cos, x, result) : mul(x, cos, result);
  const auto first = slice(0, o.cut, o.cut);
  const auto second = slice(o.cut, std::numeric_limits<std::int64_t>::max(), 8 - o.cut);
  const auto negative = graph.node("aten.neg.default", {{"self", Arg::of_value(o.negate_first ? second : first)}},
                                   DType::f32, half(o.negate_first ? 8 - o.cut : o.cut));
  const auto other = o.negate_first ? first : second;
  const auto parts = o.swapped ? of_list({Arg::of_value(other), Arg::of_value(negative)})
                               : of_list({Arg::of_value(negative), Arg::of_value(other)});
  const auto turned = graph.node("aten.cat.default", {{"tensors", parts}, {"dim", of_int(-1)}}, DType::f32, dims);
  graph.output(graph.node(
      "aten.add.Tensor",
      {{"self", Arg::of_value(plain)}, {"other", Arg::of_value(mul(turned, sin, result))}, {"alpha", of_int(1)}},
      DType::f32, result));
}

TEST(FuseRope, BeforeAndAfter) {
  for (const bool cos_first : {false, true}) {
    GraphBuilder graph;
    add_rope(graph, {.cos_first = cos_first});
    EXPECT_EQ(targets(graph.program()).size(), 7u);
    EXPECT_THAT(after_passes(graph.program()), ElementsAre("graft.rope"));
    Session session(graph.build());
    std::vector<float> x(2 * 2 * 3 * 8), cos(2 * 3 * 8), sin(2 * 3 * 8);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    for (std::size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(static_cast<float>(i) * 0.7f);
      sin[i] = std::sin(static_cast<float>(i) * 0.3f);
    }
    const Value out = session.run("forward", std::vector<Value>{tensor(x, {2, 2, 3, 8}), tensor(cos, {2, 1, 3, 8}),
                                                                tensor(sin, {2, 1, 3, 8})})[0];
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t d = i % 8, row = i / 8 * 8, angle = (i / 48 * 3 + i / 8 % 3) * 8 + d;
      const float turned = d < 4 ? -x[row + d + 4] : x[row + d - 4];
      EXPECT_NEAR(static_cast<const float*>(out.tensor.data)[i], x[i] * cos[angle] + turned * sin[angle], 1e-6f) << i;
    }
  }
}

TEST(FuseRope, WhatOnlyLooksAlikeStays) {
  for (const RopeOptions& o : {RopeOptions{.cut = 3}, RopeOptions{.negate_first = false}, RopeOptions{.swapped = true},
                               RopeOptions{.batch_of_x = 1}}) {
    GraphBuilder graph;
    add_rope(graph, o);
    EXPECT_EQ(after_passes(graph.program()).size(), 7u);
  }
}

TEST(InlineScalars, AWeightWithoutDimensionsBecomesANumber) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  const auto half = graph.weight("half", {0.5f}, {});
  const auto add = [&](ir::ValueId a, ir::ValueId b) {
    return graph.node("aten.add.Tensor",
                      {{"self", Arg::of_value(a)}, {"other", Arg::of_value(b)}, {"alpha", of_int(3)}}, DType::f32,
                      {fixed(2)});
  };
  graph.output(add(half, add(x, half)));
  ir::Program program = graph.program();
  inline_scalars(program, [](std::uint32_t) { return 0.5; });
  EXPECT_EQ(program.methods[0].nodes[0].args[1].kind, Arg::Kind::real);
  EXPECT_TRUE(program.methods[0].nodes[1].args[0].is_value());  // the first operand stays a tensor
  Session session(graph.build());
  std::vector<float> data = {1, 2};
  const Value out = session.run("forward", std::vector<Value>{tensor(data, {2})})[0];
  EXPECT_EQ(static_cast<const float*>(out.tensor.data)[0], 8);  // 0.5 + 3 * (1 + 3 * 0.5)
}

// --- quantized weights ---

struct Quantized {
  std::int64_t group = 32;
  double low = -8, high = 7;
  bool dynamic = false;
  DType zero = DType::i8;
};

// linear(x [n, 64], dequantized w [8, 64]), x quantized by rows or not.
void add_quantized_linear(GraphBuilder& graph, const Quantized& o = {}) {
  const std::vector<ir::Dim> dims = {dynamic(1, 64, "n"), fixed(64)}, rows = {dynamic(1, 64, "n"), fixed(1)};
  const auto w = graph.weight("w", DType::i8, {8, 64});
  const auto scale = graph.weight("scale", DType::f32, {8, 64 / o.group});
  const auto zero = graph.weight("zero", o.zero, {8, 64 / o.group});
  const auto dequantize = [&](ir::ValueId q, std::int64_t block, ir::ValueId s, ir::ValueId z, double low, double high,
                              std::vector<ir::Dim> sizes) {
    return graph.node("torchao.dequantize_affine.default",
                      {{"input", Arg::of_value(q)},
                       {"block_size", of_ints({1, block})},
                       {"scale", Arg::of_value(s)},
                       {"zero_point", Arg::of_value(z)},
                       {"input_dtype", {Arg::Kind::dtype, static_cast<std::int64_t>(DType::i8), 0, {}, {}}},
                       {"quant_min", of_int(static_cast<std::int64_t>(low))},
                       {"quant_max", of_int(static_cast<std::int64_t>(high))},
                       {"output_dtype", {Arg::Kind::dtype, static_cast<std::int64_t>(DType::f32), 0, {}, {}}}},
                      DType::f32, sizes);
  };
  auto x = graph.input("x", o.dynamic ? DType::i8 : DType::f32, dims);
  if (o.dynamic) {
    const auto s = graph.input("s", DType::f32, rows), z = graph.input("z", DType::i8, rows);
    x = dequantize(x, 64, s, z, -128, 127, dims);
  }
  const auto weight = dequantize(w, o.group, scale, zero, o.low, o.high, {fixed(8), fixed(64)});
  graph.output(graph.node("aten.linear.default",
                          {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(weight)}, {"bias", of_none()}},
                          DType::f32, {dynamic(1, 64, "n"), fixed(8)}));
}

std::vector<std::string> after_quantized(const Quantized& o) {
  GraphBuilder graph;
  add_quantized_linear(graph, o);
  return after_passes(graph.program());
}

TEST(FuseQuantized, BeforeAndAfter) {
  EXPECT_THAT(after_quantized({}), ElementsAre("graft.pack_int4", "graft.quantized_linear"));
  EXPECT_THAT(after_quantized({.dynamic = true}), ElementsAre("graft.pack_int4", "graft.quantized_linear"));
  EXPECT_THAT(after_quantized({.low = -128, .high = 127}), ElementsAre("graft.quantized_linear"));
}

TEST(FuseQuantized, WhatStays) {
  // Groups that 4-bit blocks do not divide are read one byte per element.
  EXPECT_THAT(after_quantized({.group = 16}), ElementsAre("graft.quantized_linear"));
  // A zero of a type that the kernel does not read.
  EXPECT_THAT(after_quantized({.zero = DType::f32}),
              ElementsAre("torchao.dequantize_affine.default", "aten.linear.default"));
}

TEST(InlineScalars, AnIntegerOfIntegers) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::i32, {fixed(2)});
  const auto y = graph.input("y", DType::f32, {fixed(2)});
  const auto seven = graph.weight("seven", DType::i64, {});
  const auto product = [&](ir::ValueId a, DType dtype) {
    return graph.node("aten.mul.Tensor", {{"self", Arg::of_value(a)}, {"other", Arg::of_value(seven)}}, dtype,
                      {fixed(2)});
  };
  graph.output(product(x, DType::i32));
  graph.output(product(y, DType::f32));
  ir::Program program = graph.program();
  inline_scalars(program, [](std::uint32_t) { return 7.0; });
  EXPECT_EQ(program.methods[0].nodes[0].args[1].kind, Arg::Kind::integer);
  EXPECT_EQ(program.methods[0].nodes[0].args[1].i, 7);
  EXPECT_TRUE(program.methods[0].nodes[1].args[1].is_value());  // an integer tensor with floats stays one
}

TEST(DropDeadNodes, ChainsGoAndResultsStay) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {fixed(2)});
  const auto relu = [&](ir::ValueId v) {
    return graph.node("aten.relu.default", {{"self", Arg::of_value(v)}}, DType::f32, {fixed(2)});
  };
  relu(relu(x));
  graph.output(relu(x));
  EXPECT_THAT(after_passes(graph.program()), ElementsAre("aten.relu.default"));
}

struct LinearOptions {
  std::int64_t least = 1, most = 64;  // rows
  std::int64_t outputs = 40;
  bool bias = true;
  bool rows_of_bias = true;  // else one number for all
  bool weight_is_read = false;
  bool twice = false;
};

// x [n, 24] by a weight.
void add_linear(GraphBuilder& graph, const LinearOptions& o = {}) {
  const auto rows = o.least == o.most ? fixed(o.least) : dynamic(o.least, o.most, "n");
  const auto x = graph.input("x", DType::f32, {rows, fixed(24)});
  const auto size = static_cast<std::size_t>(o.outputs * 24);
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(static_cast<int>(i * 7 % 23) - 11) / 8;
  const auto w = graph.weight("w", values, {o.outputs, 24});
  Arg bias = of_none();
  if (o.bias) {
    const std::int64_t n = o.rows_of_bias ? o.outputs : 1;
    bias = Arg::of_value(graph.weight("b", test::counting(static_cast<std::size_t>(n)), {n}));
  }
  for (int i = 0; i < (o.twice ? 2 : 1); ++i)
    graph.output(graph.node("aten.linear.default",
                            {{"input", Arg::of_value(x)}, {"weight", Arg::of_value(w)}, {"bias", bias}}, DType::f32,
                            {rows, fixed(o.outputs)}));
  if (o.weight_is_read)
    graph.output(
        graph.node("aten.exp.default", {{"self", Arg::of_value(w)}}, DType::f32, {fixed(o.outputs), fixed(24)}));
}

std::vector<float> sines(std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::sin(static_cast<float>(i));
  return out;
}

// The values with the weight packed and unpacked.
void check_linear(const LinearOptions& o) {
  GraphBuilder graph;
  add_linear(graph, o);
  LoadOptions as_stored;
  as_stored.pack_weights = false;
  const auto packed = graph.build(), plain = graph.build(as_stored);
  Session session(packed), reference(plain);
  for (const std::int64_t rows : {1, 2, 5, 8, 9, 12, 13, 24, 31, 37, 64}) {
    if (rows < o.least || rows > o.most) continue;
    if (rows == 12) packed->shrink();  // the graph is read again and must come out the same
    std::vector<float> x = sines(rows * 24);
    const std::vector<Value> inputs = {tensor(x, DType::f32, {rows, 24})};
    const auto found = session.run("forward", inputs), expected = reference.run("forward", inputs);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_THAT(test::floats(found[i]), ::testing::Pointwise(::testing::FloatNear(2e-5F), test::floats(expected[i])))
          << rows << " rows";
  }
}

TEST(PackLinearLayers, BeforeAndAfter) {
  for (const bool bias : {true, false})
    for (const std::int64_t outputs : {8, 31, 32, 33, 100}) {
      GraphBuilder graph;
      add_linear(graph, {.outputs = outputs, .bias = bias});
      EXPECT_THAT(after_passes(graph.program()), ElementsAre("graft.pack_linear", "graft.packed_linear"));
      check_linear({.outputs = outputs, .bias = bias});
    }
}

TEST(PackLinearLayers, AWeightOfTwoLayersIsPackedOnce) {
  GraphBuilder graph;
  add_linear(graph, {.twice = true});
  EXPECT_THAT(after_passes(graph.program()),
              ElementsAre("graft.pack_linear", "graft.packed_linear", "graft.packed_linear"));
  check_linear({.twice = true});
}

// With bf16 operands, a layer with an unknown number of rows may get few, which are not rounded: it has its weight too.
TEST(PackLinearLayers, InBf16) {
  if (simd::packed_pairs() == nullptr) GTEST_SKIP() << "this CPU does not multiply bf16, or no faster than f32";
  const auto after = [](const LinearOptions& o) {
    GraphBuilder graph;
    add_linear(graph, o);
    return after_passes(graph.program(), {.in_bf16 = true});
  };
  EXPECT_THAT(after({.least = 9, .most = 9}), ElementsAre("graft.pack_linear", "graft.packed_linear"));
  EXPECT_THAT(after({.least = 8, .most = 8}), ElementsAre("aten.linear.default"));
  EXPECT_THAT(after({.least = 1, .most = 64}), ElementsAre("graft.pack_linear", "graft.packed_linear"));

  GraphBuilder graph;
  add_linear(graph, {.least = 1, .most = 64});
  LoadOptions medium, plain;
  medium.matmul_precision = MatmulPrecision::medium;
  plain.pack_weights = false;
  Session rounded(graph.build(medium)), exact(graph.build(plain));
  for (const std::int64_t rows : {1, 8, 9, 64}) {
    std::vector<float> x = sines(rows * 24);
    const std::vector<Value> inputs = {tensor(x, DType::f32, {rows, 24})};
    const auto found = test::floats(rounded.run("forward", inputs)[0]);
    const auto expected = test::floats(exact.run("forward", inputs)[0]);
    float most = 0;
    for (std::size_t i = 0; i < found.size(); ++i) most = std::max(most, std::abs(found[i] - expected[i]));
    EXPECT_EQ(most > 2e-5F, rows > 8) << rows << " rows";
    EXPECT_LT(most, 0.1F) << rows << " rows";
  }
}

// A stage of a model decides as the whole model would.
TEST(PackLinearLayers, OtherStagesCount) {
  GraphBuilder graph;
  add_linear(graph, {});
  const std::string key = graph.program().weights[0].key;
  const auto after = [&](const OtherStages& others) { return after_passes(graph.program(), {.others = &others}); };
  EXPECT_THAT(after({}), ElementsAre("graft.pack_linear", "graft.packed_linear"));
  EXPECT_THAT(after({.linear_bytes = 0, .read_so = {"another"}}),
              ElementsAre("graft.pack_linear", "graft.packed_linear"));
  EXPECT_THAT(after({.linear_bytes = 0, .read_so = {key}}), ElementsAre("aten.linear.default"));
  const std::int64_t own = graph.program().weights[0].shape.numel() * 4, most = std::int64_t{512} << 20;
  EXPECT_THAT(after({.linear_bytes = most - own, .read_so = {}}),
              ElementsAre("graft.pack_linear", "graft.packed_linear"));
  EXPECT_THAT(after({.linear_bytes = most - own + 1, .read_so = {}}), ElementsAre("aten.linear.default"));
}

TEST(PackLinearLayers, WhatStays) {
  const auto after = [](const LinearOptions& o) {
    check_linear(o);
    GraphBuilder graph;
    add_linear(graph, o);
    return after_passes(graph.program());
  };
  // Few rows, few outputs, a bias that is one number.
  EXPECT_THAT(after({.least = 8, .most = 8}), ElementsAre("aten.linear.default"));
  EXPECT_THAT(after({.least = 9, .most = 9}), ElementsAre("graft.pack_linear", "graft.packed_linear"));
  EXPECT_THAT(after({.outputs = 7}), ElementsAre("aten.linear.default"));
  EXPECT_THAT(after({.rows_of_bias = false}), ElementsAre("aten.linear.default"));
  // Weights that must stay unpacked: read by another node, a result, stored in another type.
  EXPECT_THAT(after({.weight_is_read = true}), ElementsAre("aten.linear.default", "aten.exp.default"));
  GraphBuilder graph;
  add_linear(graph);
  graph.output(graph.method().inputs[1].value);
  EXPECT_THAT(after_passes(graph.program()), ElementsAre("aten.linear.default"));
  GraphBuilder half;
  add_linear(half);
  half.program().weights[0].dtype = DType::bf16;
  half.program().weights[0].byte_size /= 2;
  EXPECT_THAT(after_passes(half.program()), ElementsAre("aten.linear.default"));
}

}  // namespace
}  // namespace graft
