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
  const StoredPlan* stored = nullptr;  // made before for these inputs; used where it fits
  KvOptions kv;                        // of programs with a cache of keys and values
  PlanLimits limits;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
};

// Makes the plan of a method for these inputs: runs the shape rules forward, lowers every node, places the arena's
// buffers. Pure: depends on the arguments alone. Throws InvalidArgument where the shapes cannot work, InvalidProgram
// where a shape rule contradicts what the program declares, or when the stored plan fits and its layout is wrong,
// Unsupported beyond the limits.
Plan make_plan(const ir::Program& program, const ir::Method& method, std::span<const InputDesc> inputs,
               const PlanOptions& options);

}  // namespace graft
