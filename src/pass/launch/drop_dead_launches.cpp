#include <utility>
#include <vector>

#include "pass/launch/passes.h"

namespace graft {

std::size_t drop_dead_launches(LaunchSequence& sequence) {
  std::vector<bool> needed(sequence.buffers.size(), false);
  std::vector<bool> live(sequence.launches.size(), false);
  for (const UndoLaunch& undo : sequence.undo)
    for (const Tensor& t : undo.launch.inputs) needed[t.buffer] = true;
  for (std::size_t i = sequence.launches.size(); i-- > 0;) {
    const Launch& launch = sequence.launches[i];
    for (const Tensor& t : launch.outputs)
      live[i] = live[i] || needed[t.buffer] || sequence.buffers[t.buffer].memory != MemoryKind::arena;
    if (!live[i]) continue;
    for (const Tensor& t : launch.inputs) needed[t.buffer] = true;
  }
  std::vector<std::uint32_t> position(sequence.launches.size() + 1);  // by old index: remaining launches before it
  std::uint32_t kept = 0;
  for (std::size_t i = 0; i < sequence.launches.size(); ++i) {
    position[i] = kept;
    if (!live[i]) continue;
    if (kept != i) sequence.launches[kept] = std::move(sequence.launches[i]);
    ++kept;
  }
  position.back() = kept;
  const std::size_t dropped = sequence.launches.size() - kept;
  sequence.launches.resize(kept);
  sequence.commit_begin = position[sequence.commit_begin];
  for (UndoLaunch& undo : sequence.undo) undo.after = position[undo.after];
  return dropped;
}

}  // namespace graft
