#include "lowering/uses.h"

namespace graft {

std::vector<BufferUses> uses_of(const Plan& plan) {
  std::vector<BufferUses> uses(plan.buffers.size());
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    for (const Tensor& t : plan.launches[i].inputs) {
      ++uses[t.buffer].reads;
      uses[t.buffer].reader = i;
    }
    for (const Tensor& t : plan.launches[i].outputs) {
      ++uses[t.buffer].writes;
      uses[t.buffer].writer = i;
    }
  }
  for (const UndoLaunch& undo : plan.undo)
    for (const Tensor& t : undo.launch.inputs) ++uses[t.buffer].reads;
  return uses;
}

}  // namespace graft
