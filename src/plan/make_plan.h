#pragma once

#include <span>

#include "graft/graft.h"
#include "ir/program.h"
#include "lowering/lowering.h"
#include "plan/inputs.h"
#include "plan/plan.h"

namespace graft {

struct StoredPlan;

struct PlanOptions {
  int max_threads = 1;                 // threads that will run the launches; sizes the kernels' scratch
  const DeviceOps* device = nullptr;   // runs what it can; null: graft's kernels on the CPU run everything
  const StoredPlan* stored = nullptr;  // a stored plan for these inputs; used if it fits
  KvOptions kv;                        // for programs with a KV cache
  KvExtent kv_extent;                  // of a device
  PlanLimits limits;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
};

// Makes the plan of a method for these inputs: runs the shape rules forward, lowers every node, assigns the offsets of
// the arena's buffers. Pure: depends on the arguments alone. Throws InvalidArgument for shapes that cannot work,
// InvalidProgram if a shape rule contradicts the program's declaration or a stored plan that fits has an invalid
// layout, Unsupported beyond the limits.
Plan make_plan(const ir::Program& program, const ir::Method& method, std::span<const InputDesc> inputs,
               const PlanOptions& options);

}  // namespace graft
