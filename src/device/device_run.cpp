#include "device/device_run.h"

#include <cstring>

#include "base/check.h"
#include "device/device_graph.h"
#include "device/session_device.h"

namespace graft {
namespace {

bool is_shared(Segment segment) { return segment == Segment::weight || segment == Segment::constant; }

bool is_gathered(const Transfer& transfer) { return transfer.parts.size() > 1; }

std::size_t gathered_bytes(const Transfer& transfer) {
  return is_gathered(transfer) ? (static_cast<std::size_t>(transfer.bytes) + 63) / 64 * 64 : 0;
}

}  // namespace

// One of the two; neither for a stage without launches.
struct DeviceRun::StageRun {
  std::unique_ptr<Executable> host;
  std::unique_ptr<DeviceGraph> device;
};

DeviceRun::DeviceRun(std::shared_ptr<const Plan> plan, int threads, RunControl* control, SessionDevice* device)
    : plan_(std::move(plan)), control_(control), device_(device), bases_(plan_->allocations.size(), nullptr) {
  GRAFT_ASSERT(device_);
  std::size_t gathered = 0;
  for (const Stage& stage : plan_->stages) {
    StageRun& run = stages_.emplace_back();
    if (stage.side == Side::device) {
      run.device = std::make_unique<DeviceGraph>(*plan_, stage.begin, stage.end);
    } else if (stage.begin < stage.end) {
      run.host = std::make_unique<Executable>(plan_, stage.begin, stage.end, threads, control);
    }
    for (const Transfer& t : stage.transfers) gathered += gathered_bytes(t);
  }
  gathered_ = AlignedMemory(gathered);
  std::memset(gathered_.data(), 0, gathered);  // the padding between parts is copied too
}

DeviceRun::~DeviceRun() = default;

std::size_t DeviceRun::bind(std::span<std::byte* const> bases) {
  GRAFT_ASSERT(bases.size() == bases_.size());
  std::size_t rewrites = 0;
  for (const StageRun& stage : stages_)
    if (stage.host) rewrites += stage.host->bind(bases);
  std::copy(bases.begin(), bases.end(), bases_.begin());
  if (!weights_bound_) rewrites += bind_weights(bases);
  // The device's other addresses change only when the session's block there moved.
  device_->reserve(plan_->device_block_bytes);
  if (generation_ == device_->generation()) return rewrites;
  const DeviceMemory& block = device_->block();
  for (std::uint32_t id = 0; id < bases.size(); ++id) {
    const Allocation& a = plan_->allocations[id];
    if (a.on_device && !is_shared(a.segment)) rewrites += rewrite(id, block.base() + a.device_offset, block.buffer());
  }
  generation_ = device_->generation();
  return rewrites;
}

std::size_t DeviceRun::rewrite(std::uint32_t allocation, std::byte* base, ggml_backend_buffer_t buffer) {
  std::size_t rewrites = 0;
  for (const StageRun& stage : stages_)
    if (stage.device) rewrites += stage.device->rewrite(allocation, base, buffer);
  return rewrites;
}

// Weights and constants stay where they are for life.
std::size_t DeviceRun::bind_weights(std::span<std::byte* const> bases) {
  std::vector<std::uint32_t> ids;
  std::vector<ProgramDevice::HostBytes> weights;
  for (std::uint32_t id = 0; id < bases.size(); ++id) {
    const Allocation& a = plan_->allocations[id];
    if (!a.on_device || !is_shared(a.segment)) continue;
    ids.push_back(id);
    weights.push_back({bases[id], static_cast<std::size_t>(a.bytes)});
  }
  const std::vector<ProgramDevice::Resident> there = device_->program().resident(weights);
  std::size_t rewrites = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) rewrites += rewrite(ids[i], there[i].base, there[i].buffer);
  weights_bound_ = true;
  return rewrites;
}

bool DeviceRun::compute(std::vector<Clock::time_point>* stamps) {
  finished_ = 0;
  if (stamps) stamps->reserve(plan_->launches.size());
  try {
    return run_stages(stamps);
  } catch (...) {
    device_->synchronize();  // nothing of this run may go on to read or write the caller's memory
    throw;
  }
}

// States and mutated inputs are written by the last stage alone, so a run may stop before any stage.
bool DeviceRun::run_stages(std::vector<Clock::time_point>* stamps) {
  std::byte* gathered = gathered_.data();
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = plan_->stages[s];
    const std::byte* arrived = gathered;
    for (const Transfer& t : stage.transfers) {
      transfer(t, stage.side, gathered);
      gathered += gathered_bytes(t);
    }
    device_->count_stage();
    if (stage.side == Side::device) {
      device_->compute(stages_[s].device->graph());
      finished_ = stage.end;
      if (!stamps) continue;
      device_->synchronize();
      stamps->resize(stage.end, Clock::now());
      continue;
    }
    // From here on the device is idle: it has run its stage and read what was uploaded for it.
    if (s > 0) device_->synchronize();
    if (s > 0 && stage.begin < stage.end && control_->should_stop()) return false;
    for (const Transfer& t : stage.transfers) {
      scatter(t, arrived);
      arrived += gathered_bytes(t);
    }
    if (!stages_[s].host) continue;
    const bool done = stages_[s].host->compute(stamps);
    finished_ = stage.begin + stages_[s].host->launches_finished();
    if (!done) return false;
  }
  if (plan_->stages.back().side == Side::device) device_->synchronize();
  return true;
}

// Several parts go to the device through `gathered`; those that come back are left there for `scatter`.
void DeviceRun::transfer(const Transfer& t, Side to, std::byte* gathered) {
  const auto on_host = [&](const Transfer::Part& part) { return bases_[part.allocation] + part.offset; };
  if (to == Side::host) {
    device_->download(t.device_offset, is_gathered(t) ? gathered : on_host(t.parts[0]), t.bytes);
    return;
  }
  if (is_gathered(t))
    for (const Transfer::Part& part : t.parts)
      std::memcpy(gathered + part.at, on_host(part), static_cast<std::size_t>(part.bytes));
  device_->upload(t.device_offset, is_gathered(t) ? gathered : on_host(t.parts[0]), t.bytes);
}

void DeviceRun::scatter(const Transfer& t, const std::byte* gathered) {
  if (!is_gathered(t)) return;
  for (const Transfer::Part& part : t.parts)
    std::memcpy(bases_[part.allocation] + part.offset, gathered + part.at, static_cast<std::size_t>(part.bytes));
}

int DeviceRun::graph_nodes() const {
  int nodes = 0;
  for (const StageRun& stage : stages_)
    nodes += stage.host ? stage.host->graph_nodes() : stage.device ? stage.device->nodes() : 0;
  return nodes;
}

std::size_t DeviceRun::metadata_bytes() const {
  std::size_t bytes = gathered_.size();
  for (const StageRun& stage : stages_)
    bytes += stage.host ? stage.host->metadata_bytes() : stage.device ? stage.device->metadata_bytes() : 0;
  return bytes;
}

}  // namespace graft
