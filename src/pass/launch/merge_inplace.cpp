#include <algorithm>
#include <vector>

#include "lowering/lowering.h"
#include "lowering/uses.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

// Whether one of the launches [begin, end) other than launch i touches the buffer, given which buffers were merged. Of
// a section of streams, launches before i that end before it begins do not count.
bool others_touch(LaunchSequence& sequence, std::size_t begin, std::size_t end, std::size_t i, BufferId buffer,
                  const std::vector<BufferId>& merged) {
  const StreamSection* section = section_of(sequence, i);
  bool found = false;
  for (std::size_t other = begin; other < end; ++other)
    if (other != i && !(section != nullptr && other < i && section->in_order(other, i)))
      for_each_buffer(sequence.launches[other], [&](BufferId id) { found = found || merged[id] == buffer; });
  return found;
}

// Whether a launch after i and before `end` that may run beside it touches the buffer.
bool others_touch_beside(LaunchSequence& sequence, std::size_t i, std::size_t end, BufferId buffer,
                         const std::vector<BufferId>& merged) {
  const StreamSection* section = section_of(sequence, i);
  bool found = false;
  for (std::size_t other = i + 1; other < end; ++other)
    if (!section->in_order(i, other))
      for_each_buffer(sequence.launches[other], [&](BufferId id) { found = found || merged[id] == buffer; });
  return found;
}

}  // namespace

std::size_t merge_inplace(LaunchSequence& sequence) {
  find_lifetimes(sequence);
  std::size_t count = 0;
  std::vector<BufferId> merged(sequence.buffers.size());
  for (BufferId id = 0; id < merged.size(); ++id) merged[id] = id;
  for (std::size_t i = 0; i < sequence.launches.size(); ++i) {
    Launch& launch = sequence.launches[i];
    launch.written = launch.outputs[0].buffer;
    // Map a merged buffer to the one that it was merged into: chains stay one step deep because launches are visited in
    // order.
    for_each_buffer(launch, [&](BufferId& id) { id = merged[id]; });
    if (launch.inplace == 0) continue;
    const auto [begin, end] = range_of(sequence, i);
    const Tensor out = launch.outputs[0];
    Buffer& out_buffer = sequence.buffers[out.buffer];
    // Launches beside it in other streams may write windows of the output before this one has read its input.
    const bool in_section = section_of(sequence, i) != nullptr;
    if (out_buffer.memory != MemoryKind::arena ||
        out_buffer.first_use != static_cast<std::int32_t>(in_section ? i : begin) ||
        others_touch(sequence, begin, i, i, out.buffer, merged) ||
        (in_section && others_touch_beside(sequence, i, end, out.buffer, merged)))
      continue;
    for (std::size_t k = 0; k < launch.inputs.size(); ++k) {
      if (!((launch.inplace >> k) & 1u)) continue;
      const Tensor& in = launch.inputs[k];
      Buffer& in_buffer = sequence.buffers[in.buffer];
      const bool same_place = in_buffer.memory == MemoryKind::arena && in_buffer.bytes == out_buffer.bytes &&
                              in.offset == out.offset && in.shape() == out.shape() &&
                              byte_size(in.dtype()) == byte_size(out.dtype()) && is_dense(out.desc) &&
                              in.desc.strides == out.desc.strides;
      // Another operand that reads the same buffer at other positions would see half-written data.
      const auto uses = std::count_if(launch.inputs.begin(), launch.inputs.end(),
                                      [&](const Tensor& t) { return t.buffer == in.buffer; });
      if (!same_place || uses != 1 || in_buffer.last_use != static_cast<std::int32_t>(end) - 1 ||
          others_touch(sequence, begin, end, i, in.buffer, merged))
        continue;
      in_buffer.last_use = out_buffer.last_use;
      merged[out.buffer] = in.buffer;
      out_buffer.first_use = out_buffer.last_use = -1;
      launch.outputs[0].buffer = in.buffer;
      ++count;
      break;
    }
  }
  for (UndoLaunch& undo : sequence.undo) for_each_buffer(undo.launch, [&](BufferId& id) { id = merged[id]; });
  return count;
}

}  // namespace graft
