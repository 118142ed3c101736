#include "plan/memory.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lowering/uses.h"
#include "plan/arena.h"
#include "plan/arena_check.h"
#include "plan/stored_plan.h"

namespace graft {
namespace {

// Bytes written to an output: a scatter writes one element per value, into a window whose elements overlap.
std::int64_t written_bytes(const Launch& launch, const Tensor& out) {
  const bool by_input = launch.kernel != nullptr && launch.kernel->writes_by_input;
  const std::int64_t elements = by_input ? launch.inputs[0].numel() : out.numel();
  return elements * static_cast<std::int64_t>(byte_size(out.dtype()));
}

}  // namespace

void place_arena(Plan& plan, const StoredPlan* stored, std::int64_t alignment) {
  std::vector<BufferId> ids;
  std::vector<Lifetime> lifetimes;
  for (BufferId id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& b = plan.buffers[id];
    if (b.memory != MemoryKind::arena || b.first_use < 0) continue;
    ids.push_back(id);
    lifetimes.push_back({b.bytes, b.first_use, b.last_use});
  }
  if (stored != nullptr && fits(*stored, lifetimes)) {
    check_layout(*stored, alignment);
    for (std::size_t i = 0; i < ids.size(); ++i) plan.buffers[ids[i]].offset = stored->offsets[i];
    plan.arena_bytes = stored->arena_bytes;
    plan.layout_was_stored = true;
    return;
  }
  const ArenaLayout layout = plan_arena(lifetimes, alignment);
  for (std::size_t i = 0; i < ids.size(); ++i) plan.buffers[ids[i]].offset = layout.offsets[i];
  plan.arena_bytes = layout.bytes;
#ifndef NDEBUG
  const std::optional<std::string> overlap = find_overlap(lifetimes, layout.offsets, alignment);
  GRAFT_ASSERT(!overlap.has_value());
#endif
}

void list_allocations(Plan& plan) {
  std::map<std::pair<MemoryKind, std::uint32_t>, std::uint32_t> ids;
  for (Buffer& b : plan.buffers) {
    const std::uint32_t index = b.memory == MemoryKind::arena ? 0 : b.index;
    const auto [it, fresh] = ids.try_emplace({b.memory, index}, static_cast<std::uint32_t>(plan.allocations.size()));
    if (fresh)
      plan.allocations.push_back({b.memory, index, b.memory == MemoryKind::arena ? plan.arena_bytes : b.bytes});
    b.allocation = it->second;
    if (b.kept_on_device) plan.allocations[b.allocation].kept_on_device = true;
  }
  for (Launch& launch : plan.launches)
    for_each_buffer(launch, [&](BufferId id) { ++plan.allocations[plan.buffers[id].allocation].hits; });
  for (UndoLaunch& undo : plan.undo)
    for_each_buffer(undo.launch, [&](BufferId id) { ++plan.allocations[plan.buffers[id].allocation].hits; });
  for (const Launch& launch : plan.launches)
    for (const Tensor& t : launch.outputs)
      if (plan.buffers[t.buffer].memory == MemoryKind::state) plan.state_bytes_written += written_bytes(launch, t);
}

}  // namespace graft
