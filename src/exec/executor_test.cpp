#include "exec/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "load/test_graph.h"
#include "plan/make_plan.h"

namespace graft {
namespace {

using ir::Arg;
using test::fixed;
using test::GraphBuilder;
using ::testing::HasSubstr;

constexpr std::int64_t kCount = 40000;  // enough for several threads

// exp, then erf, then exp of x. Chains are not fused across a value that is also an output.
struct Net {
  explicit Net(const LoadOptions& options = {}) {
    const std::vector<ir::Dim> dims{fixed(kCount)};
    ir::ValueId value = graph.input("x", DType::f32, dims);
    for (const char* op : {"aten.exp.default", "aten.erf.default", "aten.exp.default"}) {
      value = graph.node(op, {{"self", Arg::of_value(value)}}, DType::f32, dims);
      graph.output(value);
    }
    program = graph.build(options);
  }

  Plan plan(int threads) const {
    std::vector<InputDesc> inputs(1);
    inputs[0].desc = TensorDesc(DType::f32, {kCount});
    PlanOptions options;
    options.max_threads = threads;
    options.device = Internal::of(*program).plain.get();
    const auto methods = Internal::of(*program).graph(0);
    return make_plan(*methods, methods->methods[0], inputs, options);
  }

  GraphBuilder graph;
  std::shared_ptr<const Program> program;
};

// An executor with memory for all of its plan but the input.
struct Instance {
  Instance(Plan plan, int threads, std::vector<float>& x) {
    executor = make_executor(std::make_shared<const Plan>(std::move(plan)), threads, control);
    std::vector<std::byte*> bases;
    for (const Allocation& a : executor->plan().allocations) {
      if (a.memory == MemoryKind::input) {
        bases.push_back(reinterpret_cast<std::byte*>(x.data()));
        continue;
      }
      memory.emplace_back(static_cast<std::size_t>(a.bytes));
      bases.push_back(memory.back().data());
      if (a.memory == MemoryKind::output && a.index == 2) result = reinterpret_cast<const float*>(bases.back());
    }
    executor->bind(bases);
  }
  RunControl control;
  std::unique_ptr<Executor> executor;
  std::vector<AlignedMemory> memory;
  const float* result = nullptr;  // the last node's output
};

void expect_result(const float* result, const std::vector<float>& x) {
  for (std::size_t i = 0; i < x.size(); i += 997)
    ASSERT_NEAR(result[i], std::exp(std::erf(std::exp(x[i]))), 1e-5f) << i;
}

enum class Thrown { none, logic_error, bad_alloc, number };
std::atomic<Thrown> thrown;
const Kernel* original = nullptr;

// The wrapped kernel, except that one task throws.
const Kernel kThrow{"throw", [](const KernelContext& ctx) {
                      if (ctx.task == ctx.tasks - 1) {
                        if (thrown == Thrown::logic_error) throw std::logic_error("no such thing");
                        if (thrown == Thrown::bad_alloc) throw std::bad_alloc();
                        if (thrown == Thrown::number) throw 7;
                      }
                      original->run(ctx);
                    }};

TEST(Executor, WhatAKernelThrowsIsAnErrorOfTheRun) {
  const Net net;
  std::vector<float> x(kCount, 0.25f);
  for (const bool serial : {true, false})
    for (const int threads : {1, 2, 3}) {
      Plan plan = net.plan(threads);
      ASSERT_EQ(plan.launches.size(), 3u);
      original = plan.launches[1].kernel;
      plan.launches[1].kernel = &kThrow;
      plan.launches[1].serial = serial;
      const std::string node = plan.node_names[plan.launches[1].node];
      Instance instance(std::move(plan), threads, x);
      const auto message_of = [&](Thrown what) {
        thrown = what;
        EXPECT_FALSE(instance.executor->run());
        EXPECT_EQ(instance.executor->launches_finished(), 2u) << "nothing runs after the failure";
        std::string message(instance.control.error.message());
        instance.control.error.clear();
        return message;
      };
      EXPECT_EQ(message_of(Thrown::logic_error), node + ": no such thing");
      EXPECT_THAT(message_of(Thrown::bad_alloc), HasSubstr(std::bad_alloc().what()));
      EXPECT_THAT(message_of(Thrown::number), HasSubstr("no std::exception"));
      thrown = Thrown::none;
      EXPECT_TRUE(instance.executor->run()) << "the next run is right";
      expect_result(instance.result, x);
    }
}

// The plain lowering: ggml has exp, but not erf.
TEST(Executor, OpsOfGgmlAndKernelsTakeTurns) {
  LoadOptions options;
  options.fast_kernels = false;
  const Net net(options);
  for (const int threads : {1, 2, 3}) {
    Plan plan = net.plan(threads);
    ASSERT_EQ(plan.launches.size(), 3u);
    EXPECT_EQ(kernel_name(plan.launches[0]), "ggml UNARY");
    EXPECT_NE(plan.launches[1].kernel, nullptr);
    EXPECT_EQ(kernel_name(plan.launches[2]), "ggml UNARY");
    std::vector<float> x(kCount);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / kCount - 0.5f;
    Instance instance(std::move(plan), threads, x);
    ASSERT_TRUE(instance.executor->run());
    EXPECT_EQ(instance.executor->launches_finished(), 3u);
    expect_result(instance.result, x);

    std::vector<Clock::time_point> stamps{Clock::now()};
    ASSERT_TRUE(instance.executor->run(&stamps));
    ASSERT_EQ(stamps.size(), 4u) << "one more for each launch";
    EXPECT_TRUE(std::ranges::is_sorted(stamps));
  }
}

std::atomic<bool> cancel;
const Kernel kThenCancel{"then_cancel", [](const KernelContext& ctx) {
                           original->run(ctx);
                           cancel = true;
                         }};

TEST(Executor, ARunStopsBetweenStretches) {
  LoadOptions options;
  options.fast_kernels = false;
  const Net net(options);
  std::vector<float> x(kCount, 0.25f);
  Plan plan = net.plan(2);
  ASSERT_EQ(plan.launches.size(), 3u);
  original = plan.launches[1].kernel;
  plan.launches[1].kernel = &kThenCancel;
  Instance instance(std::move(plan), 2, x);
  instance.control.cancel = &cancel;
  cancel = false;
  EXPECT_FALSE(instance.executor->run());
  EXPECT_EQ(instance.executor->launches_finished(), 2u);
  cancel = true;  // before an op of ggml's, which still runs: the control is polled after launches
  EXPECT_FALSE(instance.executor->run());
  EXPECT_EQ(instance.executor->launches_finished(), 1u);
  instance.control.cancel = nullptr;
  EXPECT_TRUE(instance.executor->run());
  expect_result(instance.result, x);
}

TEST(Executor, OnlyWhatMovedIsRewritten) {
  for (const bool fast : {true, false}) {
    LoadOptions options;
    options.fast_kernels = fast;
    const Net net(options);
    std::vector<float> x(kCount, 0.25f), y(kCount, 0.5f);
    Instance instance(net.plan(2), 2, x);
    std::vector<std::byte*> bases(instance.executor->bases().begin(), instance.executor->bases().end());
    EXPECT_EQ(instance.executor->bind(bases), 0u);
    for (std::size_t id = 0; id < bases.size(); ++id)
      if (instance.executor->plan().allocations[id].memory == MemoryKind::input)
        bases[id] = reinterpret_cast<std::byte*>(y.data());
    EXPECT_EQ(instance.executor->bind(bases), 1u) << "the input is one operand";
    ASSERT_TRUE(instance.executor->run());
    expect_result(instance.result, y);
  }
}

}  // namespace
}  // namespace graft
