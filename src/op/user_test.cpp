#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "graft/error.h"
#include "graft/op.h"
#include "load/test_graph.h"

namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::GraphBuilder;
using test::of_real;
using test::tensor;
using ::testing::HasSubstr;

// scaled(x, factor, other?) -> factor * x
OpDefinition scaled(const std::string& target, bool parallel) {
  OpDefinition op;
  op.target = target;
  op.refuse = [](const OpNode& node) { return node.rank("x") == 1 ? "" : "x must have rank 1"; };
  op.shape = [](const OpCall& call) { return std::vector<Shape>{call.shape("x")}; };
  op.run = [](const OpRun& run) {
    if (run.numbers[0].real == 0) throw std::runtime_error("a factor of 0");
    const auto* x = static_cast<const float*>(run.inputs[0].data);
    const std::int64_t n = run.inputs[0].shape.numel();
    for (std::int64_t i = n * run.task / run.tasks; i < n * (run.task + 1) / run.tasks; ++i)
      static_cast<float*>(run.outputs[0].data)[i] = x[i] * static_cast<float>(run.numbers[0].real);
  };
  op.parallel = parallel;
  return op;
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

std::shared_ptr<const Program> program_of(const std::string& target, double factor) {
  GraphBuilder graph;
  const auto x = graph.input("x", DType::f32, {dynamic(0, 100000, "n")});
  graph.output(graph.node(target, {{"x", Arg::of_value(x)}, {"factor", of_real(factor)}, {"other", {}}}, DType::f32,
                          {dynamic(0, 100000, "n")}));
  return graph.build();
}

TEST(UserOp, RunsWithAnyNumberOfThreads) {
  register_op(scaled("usertest.scaled.default", true));
  register_op(scaled("usertest.scaled.alone", false));
  for (const char* target : {"usertest.scaled.default", "usertest.scaled.alone"}) {
    const auto program = program_of(target, 3);
    SessionOptions options;
    options.threads = 2;
    Session session(program, options);
    for (const std::int64_t n : {0, 1, 7, 50000}) {
      std::vector<float> data(static_cast<std::size_t>(n), 2);
      const Value out = session.run("forward", std::vector<Value>{tensor(data, {n})})[0];
      ASSERT_EQ(out.tensor.shape, Shape{n});
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(static_cast<const float*>(out.tensor.data)[i], 6);
    }
  }
}

TEST(UserOp, WhatIsThrownEndsTheRun) {
  register_op(scaled("usertest.throws.default", false));
  Session session(program_of("usertest.throws.default", 0));
  std::vector<float> data(3, 1);
  const std::vector<Value> inputs = {tensor(data, {3})};
  EXPECT_THAT(message([&] { session.run("forward", inputs); }), HasSubstr("a factor of 0"));
}

TEST(UserOp, RefusedDefinitions) {
  const auto refused = [](const std::function<void(OpDefinition&)>& change) {
    OpDefinition op = scaled("usertest.refused.default", false);
    change(op);
    return message([&] { register_op(op); });
  };
  EXPECT_THAT(refused([](OpDefinition& op) { op.target = "aten.add.Tensor"; }), HasSubstr("is an operator of graft"));
  EXPECT_THAT(refused([](OpDefinition& op) { op.target = "aten.sym_size.int"; }), HasSubstr("is an operator of graft"));
  EXPECT_THAT(refused([](OpDefinition& op) { op.target = "scaled"; }), HasSubstr("namespace.name.overload"));
  EXPECT_THAT(refused([](OpDefinition& op) { op.run = nullptr; }), HasSubstr("a shape rule and a kernel"));
  register_op(scaled("usertest.twice.default", false));
  EXPECT_THAT(refused([](OpDefinition& op) { op.target = "usertest.twice.default"; }), HasSubstr("registered before"));
}

}  // namespace
}  // namespace graft
