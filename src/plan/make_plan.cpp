#include "plan/make_plan.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ggml.h"
#include "pass/pipeline.h"
#include "plan/binding.h"
#include "plan/memory.h"
#include "plan/stages.h"
#include "plan/streams.h"

namespace graft {
namespace {

constexpr std::int64_t kArenaAlignment = 64;

// Drops the results that fusions left in no memory, and those in states and inputs, which several nodes may write.
void keep_written_results(Plan& plan) {
  std::vector<bool> written(plan.buffers.size(), false);
  for (const Launch& launch : plan.launches) {
    written[launch.written] = true;
    for (std::size_t o = 1; o < launch.outputs.size(); ++o) written[launch.outputs[o].buffer] = true;
  }
  std::erase_if(plan.results, [&](const NodeResult& result) {
    const MemoryKind memory = plan.buffers[result.tensor.buffer].memory;
    return !written[result.tensor.buffer] || (memory != MemoryKind::arena && memory != MemoryKind::output);
  });
  plan.results.shrink_to_fit();
}

// ggml's backends make one kernel of a norm, its factor and a rotary position that follow each other, if the last one
// does not write where the first one reads.
void keep_operands_of_fused(Plan& plan) {
  const auto is = [&](std::size_t i, ggml_op op) {
    return plan.launches[i].on_device && !plan.launches[i].kernel && plan.launches[i].ggml_op == op;
  };
  for (std::size_t i = 0; i + 2 < plan.launches.size(); ++i) {
    if (!is(i, GGML_OP_RMS_NORM) || !is(i + 1, GGML_OP_MUL) || !is(i + 2, GGML_OP_ROPE)) continue;
    Buffer& operand = plan.buffers[plan.launches[i].inputs[0].buffer];
    operand.last_use = std::max(operand.last_use, static_cast<std::int32_t>(i + 2));
  }
}

}  // namespace

Plan make_plan(const ir::Program& program, const ir::Method& method, std::span<const InputDesc> inputs,
               const PlanOptions& options) {
  check_inputs(method, inputs);
  const DeviceOps* device = options.device && !options.device->is_cpu() ? options.device : nullptr;
  Plan plan;
  lower_method(program, method, inputs, options, plan);
  PassOptions pass_options;
  pass_options.on_device = device != nullptr;
  pass_options.streams = device != nullptr ? device->streams() : 1;
  pass_options.plain = options.device && options.device->is_cpu();
  pass_options.threads = options.max_threads;
  plan.passes = run_launch_passes(plan, pass_options);
  keep_written_results(plan);
  if (device) keep_operands_of_fused(plan);
  place_arena(plan, options.stored, device ? std::max(kArenaAlignment, device->alignment()) : kArenaAlignment);
  GRAFT_CHECK(Unsupported, plan.arena_bytes <= options.limits.bytes, "method '", method.name,
              "': its intermediate tensors take ", plan.arena_bytes, " bytes together, at most ", options.limits.bytes,
              " are allowed (max_plan_bytes)");
  list_allocations(plan);
  list_aliases(plan);
  if (device) {
    cut_stages(plan, device->alignment());
    queue_graphs(plan);
  }
  append_plan_key(inputs, plan.key);
  if (has_kv_cache(program.states)) append_kv_key(options.kv, options.kv_extent, plan.key);
  return plan;
}

}  // namespace graft
