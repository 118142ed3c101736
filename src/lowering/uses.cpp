#include "lowering/uses.h"

namespace graft {

std::vector<BufferUses> uses_of(const LaunchSequence& sequence) {
  std::vector<BufferUses> uses(sequence.buffers.size());
  for (std::size_t i = 0; i < sequence.launches.size(); ++i) {
    for (const Tensor& t : sequence.launches[i].inputs) {
      ++uses[t.buffer].reads;
      uses[t.buffer].reader = i;
    }
    for (const Tensor& t : sequence.launches[i].outputs) {
      ++uses[t.buffer].writes;
      uses[t.buffer].writer = i;
    }
  }
  for (const UndoLaunch& undo : sequence.undo)
    for (const Tensor& t : undo.launch.inputs) ++uses[t.buffer].reads;
  return uses;
}

}  // namespace graft
