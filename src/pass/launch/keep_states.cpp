#include <algorithm>
#include <vector>

#include "lowering/lowering.h"
#include "pass/launch/passes.h"

namespace graft {

bool touches_kept(const LaunchSequence& sequence, const Launch& launch) {
  const auto is_kept = [&](const Tensor& t) { return sequence.buffers[t.buffer].kept_on_device; };
  return std::ranges::any_of(launch.inputs, is_kept) || std::ranges::any_of(launch.outputs, is_kept);
}

std::size_t keep_states(LaunchSequence& sequence) {
  std::vector<bool> keeps(sequence.buffers.size()), touched(sequence.buffers.size(), false);
  for (BufferId id = 0; id < keeps.size(); ++id) keeps[id] = sequence.buffers[id].memory == MemoryKind::state;
  for (std::size_t i = 0; i < sequence.launches.size(); ++i) {
    const Launch& launch = sequence.launches[i];
    const auto is_state = [&](const Tensor& t) { return sequence.buffers[t.buffer].memory == MemoryKind::state; };
    // At the end of a run the device writes copies of values that no other launch there changes.
    const bool late = i >= sequence.commit_begin;
    const bool there = launch.on_device && (!late || (is_ggml_copy(launch) && !is_state(launch.inputs[0])));
    for (const std::vector<Tensor>* tensors : {&launch.inputs, &launch.outputs})
      for (const Tensor& t : *tensors) {
        touched[t.buffer] = true;
        keeps[t.buffer] = keeps[t.buffer] && there;
      }
  }
  std::size_t kept = 0;
  for (BufferId id = 0; id < keeps.size(); ++id) {
    if (!keeps[id] || !touched[id] || sequence.buffers[id].kept_on_device) continue;
    sequence.buffers[id].kept_on_device = true;
    ++kept;
  }
  // The device's finished values first: those of the host come with the results.
  std::stable_partition(sequence.launches.begin() + sequence.commit_begin, sequence.launches.end(),
                        [&](const Launch& launch) { return launch.on_device && touches_kept(sequence, launch); });
  return kept;
}

}  // namespace graft
