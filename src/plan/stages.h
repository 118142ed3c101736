#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace graft {

// Cuts the launches of a plan into stages that run on the CPU or on the plan's device, in the plan's order, and finds
// the transfers between them. Needs Launch::on_device, the allocations and the arena's layout; fills Plan::stages, the
// device fields of the allocations and Plan::device_block_bytes. A pure function over the plan.
//
// It tracks, per buffer, which side holds valid bytes. Before the run: weights and constants on both sides, inputs and
// states on the host. After it: outputs and written inputs and states on the host again. States that the device keeps
// (Buffer::kept_on_device) are there before and after. A buffer is transferred whole,
// once, before the stage that needs it. `alignment`: of the device's memory, a power of two.
void cut_stages(Plan& plan, std::int64_t alignment);

// Transfers of a plan in one direction, and their bytes, per run.
struct Traffic {
  std::uint64_t uploads = 0;
  std::uint64_t upload_bytes = 0;
  std::uint64_t downloads = 0;
  std::uint64_t download_bytes = 0;
};
Traffic traffic(const Plan& plan);

}  // namespace graft
