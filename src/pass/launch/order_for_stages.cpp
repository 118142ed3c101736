#include <array>
#include <set>
#include <vector>

#include "base/check.h"
#include "ggml.h"
#include "lowering/dependencies.h"
#include "pass/launch/passes.h"

namespace graft {

std::vector<bool> runs_on_device(const LaunchSequence& sequence, std::size_t count) {
  std::vector<bool> there(sequence.buffers.size());
  for (BufferId id = 0; id < there.size(); ++id) {
    const MemoryKind kind = sequence.buffers[id].memory;
    there[id] = kind == MemoryKind::weight || kind == MemoryKind::constant;
  }
  std::vector<bool> out;
  for (std::size_t i = 0; i < count; ++i) {
    const Launch& launch = sequence.launches[i];
    const bool copies = is_ggml_copy(launch) && !there[launch.inputs[0].buffer] && !there[launch.outputs[0].buffer];
    out.push_back(launch.on_device && !copies);
    for (const Tensor& t : launch.outputs) there[t.buffer] = out.back();
  }
  return out;
}

bool is_ggml_copy(const Launch& launch) {
  return !launch.kernel && (launch.ggml_op == GGML_OP_CPY || launch.ggml_op == GGML_OP_REPEAT);
}

std::size_t order_for_stages(LaunchSequence& sequence) {
  const std::size_t count = sequence.commit_begin;
  Dependencies dependencies(sequence, count);
  const std::vector<bool> on_device = runs_on_device(sequence, count);
  // Ready launches of the host and of the device, in the order of the sequence.
  std::array<std::set<std::uint32_t>, 2> ready;
  const auto make_ready = [&](std::uint32_t i) { ready[on_device[i] ? 1 : 0].insert(i); };
  for (std::uint32_t i = 0; i < count; ++i)
    if (dependencies.waits[i] == 0) make_ready(i);
  std::vector<std::uint32_t> order;
  order.reserve(count);
  std::size_t current = 0;
  while (order.size() < count) {
    if (ready[current].empty()) current = 1 - current;
    GRAFT_ASSERT(!ready[current].empty());
    const std::uint32_t i = *ready[current].begin();
    ready[current].erase(ready[current].begin());
    order.push_back(i);
    for (const std::uint32_t next : dependencies.after[i])
      if (--dependencies.waits[next] == 0) make_ready(next);
  }
  return reorder(sequence, order);
}

}  // namespace graft
