#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernel/kernel.h"

// Runs a kernel directly, as the executor does, on the test's own threads.
namespace graft {

// Runs all tasks of each phase concurrently.
template <typename Run>
void run_phases(int phases, const KernelContext& ctx, Run run) {
  for (int phase = 0; phase < phases; ++phase) {
    std::vector<std::thread> pool;
    std::vector<TwoEndedRange> steal_ranges(static_cast<std::size_t>(ctx.tasks));
    for (int t = 0; t < ctx.tasks; ++t)
      pool.emplace_back([=, &run, &steal_ranges] {
        KernelContext mine = ctx;
        mine.task = t;
        mine.phase = phase;
        if (ctx.tasks > 1) mine.steal_ranges = steal_ranges.data();
        run(mine);
      });
    for (std::thread& t : pool) t.join();
  }
}

// Runs the tasks of a phase one after another, the last first: of two that steal from each other, the one at the back
// does all the work.
template <typename Run>
std::function<void(const KernelContext&)> last_first(Run run) {
  auto next = std::make_shared<std::atomic<int>>(-1);
  return [=](const KernelContext& ctx) {
    const int turn = ctx.phase * ctx.tasks + ctx.tasks - 1 - ctx.task;
    while (next->load() != turn - 1) std::this_thread::yield();
    run(ctx);
    next->store(turn);
  };
}

struct TestOperand {
  TensorDesc desc;
  const void* data;
};
struct TestOutput {
  TensorDesc desc;
  void* data;
};
struct NoAttrs {};

// The error message of the run, empty when it succeeded.
template <typename Attrs = NoAttrs>
std::string run_kernel(const Kernel& kernel, const std::vector<TestOperand>& inputs, const TestOutput& output,
                       int threads = 1, const Attrs& attrs = {}, std::byte* scratch = nullptr) {
  std::vector<TensorDesc> input_descs;
  std::vector<const void*> input_data;
  for (const TestOperand& o : inputs) {
    input_descs.push_back(o.desc);
    input_data.push_back(o.data);
  }
  ErrorSlot error;
  KernelContext ctx;
  ctx.tasks = threads;
  ctx.input_descs = input_descs;
  ctx.output_descs = {&output.desc, 1};
  ctx.inputs = input_data.data();
  ctx.outputs = &output.data;
  ctx.attr_bytes = reinterpret_cast<const std::byte*>(&attrs);
  ctx.scratch_bytes = scratch;
  ctx.error = &error;
  ctx.node = "node";
  run_phases(kernel.phases ? kernel.phases(ctx) : 1, ctx, kernel.run);
  return error.failed() ? std::string(error.message()) : std::string();
}

}  // namespace graft
