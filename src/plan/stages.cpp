#include "plan/stages.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lowering/uses.h"
#include "pass/launch/passes.h"

namespace graft {
namespace {

// Parts up to this size that are adjacent on the device are gathered on the host and sent as one transfer: the extra
// copy costs less than another driver call.
constexpr std::int64_t kGatheredBytes = 64 * 1024;
// In the first transfer to the device, which has nothing of the run yet, parts may lie this far apart.
constexpr std::int64_t kGapBytes = 16 * 1024;

std::int64_t align_up(std::int64_t value, std::int64_t alignment) { return (value + alignment - 1) & -alignment; }

bool is_shared(MemoryKind kind) { return kind == MemoryKind::weight || kind == MemoryKind::constant; }

class Cutter {
 public:
  Cutter(Plan& plan, std::int64_t alignment) : plan_(plan), alignment_(alignment), valid_(plan.buffers.size()) {}

  void run() {
    for (BufferId id = 0; id < plan_.buffers.size(); ++id) {
      const MemoryKind kind = plan_.buffers[id].memory;
      const bool kept = plan_.buffers[id].kept_on_device;
      valid(id, Side::host) = !kept && kind != MemoryKind::arena && kind != MemoryKind::output;
      valid(id, Side::device) = kept || is_shared(kind);
    }
    for (std::uint32_t i = 0; i < plan_.launches.size(); ++i) place(i);
    open(Side::host, static_cast<std::uint32_t>(plan_.launches.size()));
    for (BufferId id = 0; id < plan_.buffers.size(); ++id)
      if (plan_.buffers[id].memory != MemoryKind::arena && !plan_.buffers[id].kept_on_device) need(id, Side::host);
    // Drop an empty last stage.
    if (moved_.back().empty() && plan_.stages.back().begin == plan_.stages.back().end && plan_.stages.size() > 1) {
      plan_.stages.pop_back();
      moved_.pop_back();
    }
    lay_out_device();
    bool fresh = true;  // nothing of the run is on the device
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const bool up = plan_.stages[s].side == Side::device;
      plan_.stages[s].transfers = transfers(moved_[s], up && fresh ? kGapBytes : 0);
      fresh = fresh && !up;
    }
  }

 private:
  static Side other(Side side) { return side == Side::host ? Side::device : Side::host; }
  bool& valid(BufferId id, Side side) { return valid_[id][static_cast<std::size_t>(side)]; }

  // Continues the last stage if it is on that side.
  void open(Side side, std::uint32_t launch) {
    if (plan_.stages.empty() || plan_.stages.back().side != side) {
      plan_.stages.push_back({side, launch, launch, {}});
      moved_.emplace_back();
    }
  }

  // Only this side writes the buffer during the stage, so its bytes on the other side are final when the stage begins,
  // and the transfer may come first. The arena reuses no memory of a live buffer.
  void need(BufferId id, Side side) {
    if (valid(id, side) || !valid(id, other(side))) return;
    moved_.back().push_back(id);
    valid(id, side) = true;
  }

  void place(std::uint32_t i) {
    const Launch& launch = plan_.launches[i];
    const Side side = launch.on_device ? Side::device : Side::host;
    open(side, i);
    GRAFT_ASSERT(launch.on_device ? i < plan_.commit_begin || touches_kept(plan_, launch)
                                  : !touches_kept(plan_, launch));
    for (const Tensor& t : launch.inputs)
      if (t.numel() > 0) need(t.buffer, side);
    for (const Tensor& t : launch.outputs) {
      if (t.numel() == 0) continue;
      if (writes_a_part(launch, t, plan_.buffers[t.buffer])) need(t.buffer, side);
      valid(t.buffer, side) = true;
      valid(t.buffer, other(side)) = false;
    }
    plan_.stages.back().end = i + 1;
  }

  // Allocates device memory for every allocation that the device touches.
  void lay_out_device() {
    const auto touch = [&](BufferId id) { plan_.allocations[plan_.buffers[id].allocation].on_device = true; };
    for (const Launch& launch : plan_.launches) {
      if (!launch.on_device) continue;
      for (const Tensor& t : launch.inputs) touch(t.buffer);
      for (const Tensor& t : launch.outputs) touch(t.buffer);
    }
    std::int64_t end = 0;
    for (Allocation& a : plan_.allocations) {
      if (!a.on_device || a.kept_on_device || is_shared(a.memory)) continue;
      a.device_offset = end;
      end = align_up(end + a.bytes, alignment_);
    }
    plan_.device_block_bytes = end;
  }

  std::vector<Transfer> transfers(const std::vector<BufferId>& buffers, std::int64_t gap) const {
    std::vector<Transfer> transfers;  // one buffer each, by device offset
    for (const BufferId id : buffers) {
      const Buffer& b = plan_.buffers[id];
      if (b.bytes == 0) continue;
      transfers.push_back(
          {plan_.allocations[b.allocation].device_offset + b.offset, b.bytes, {{b.allocation, b.offset, b.bytes, 0}}});
    }
    std::sort(transfers.begin(), transfers.end(),
              [](const Transfer& a, const Transfer& b) { return a.device_offset < b.device_offset; });
    std::vector<Transfer> out;
    for (Transfer& next : transfers) {
      if (out.empty() || !join(out.back(), next, gap)) out.push_back(std::move(next));
    }
    return out;
  }

  // Appends `next` if only padding lies between, bytes that belong to no buffer, or `gap` bytes.
  bool join(Transfer& last, const Transfer& next, std::int64_t gap) const {
    const std::int64_t end = last.device_offset + last.bytes;
    if (next.device_offset < end || next.device_offset > align_up(end, alignment_) + gap) return false;
    const Transfer::Part& part = next.parts[0];
    Transfer::Part& before = last.parts.back();
    const std::int64_t at = next.device_offset - last.device_offset;
    const bool neighbours_on_host =
        before.allocation == part.allocation && part.offset - before.offset == at - before.at;
    if (neighbours_on_host && last.parts.size() == 1) {
      before.bytes = part.offset + part.bytes - before.offset;
    } else {
      if (before.bytes > kGatheredBytes || part.bytes > kGatheredBytes) return false;
      last.parts.push_back({part.allocation, part.offset, part.bytes, at});
    }
    last.bytes = at + next.bytes;
    return true;
  }

  Plan& plan_;
  std::int64_t alignment_;
  std::vector<std::array<bool, 2>> valid_;    // by buffer and side
  std::vector<std::vector<BufferId>> moved_;  // by stage: buffers to transfer to its side
};

}  // namespace

void cut_stages(Plan& plan, std::int64_t alignment) {
  GRAFT_ASSERT(plan.stages.empty() && alignment > 0 && (alignment & (alignment - 1)) == 0);
  Cutter(plan, alignment).run();
}

Traffic traffic(const Plan& plan) {
  Traffic out;
  for (const Stage& stage : plan.stages) {
    const bool up = stage.side == Side::device;
    for (const Transfer& t : stage.transfers) {
      ++(up ? out.uploads : out.downloads);
      (up ? out.upload_bytes : out.download_bytes) += static_cast<std::uint64_t>(t.bytes);
    }
  }
  return out;
}

}  // namespace graft
