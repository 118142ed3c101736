#include "lowering/uses.h"
#include "plan/memory.h"

namespace graft {
namespace {

// Whether the launch may overwrite the input: it reads each element only for the output at the same position.
bool writes_in_place(const Plan& plan, const Launch& launch, const Buffer& out, const Buffer& in) {
  const Tensor& to = launch.outputs[0];
  if (&plan.buffers[to.buffer] != &out || !to.desc.contiguous() || to.offset != 0) return false;
  int uses = 0;
  bool same = false;
  for (std::size_t k = 0; k < launch.inputs.size(); ++k) {
    const Tensor& from = launch.inputs[k];
    if (&plan.buffers[from.buffer] != &in) continue;
    ++uses;
    same = ((launch.inplace >> k) & 1u) && from.shape() == to.shape() && from.offset == 0 && from.desc.contiguous() &&
           byte_size(from.dtype()) == byte_size(to.dtype()) && in.bytes == out.bytes;
  }
  return uses == 1 && same;
}

}  // namespace

void list_aliases(Plan& plan) {
  for (const PlanOutput& out : plan.outputs)
    if (out.kind == ir::OutputKind::input_mutation && out.is_tensor)
      plan.allocations[plan.buffers[out.buffer].allocation].mutated = true;
  find_lifetimes(plan);
  for (const Buffer& out : plan.buffers) {
    if (out.memory != MemoryKind::output || out.first_use < 0) continue;
    for (const Buffer& in : plan.buffers) {
      if (in.memory != MemoryKind::input || plan.allocations[in.allocation].mutated) continue;
      const bool exact = in.last_use == out.first_use;
      if (in.last_use < out.first_use ||
          (exact && writes_in_place(plan, plan.launches[static_cast<std::size_t>(in.last_use)], out, in)))
        plan.aliases.push_back({out.allocation, in.allocation, exact});
    }
  }
}

}  // namespace graft
