#include "exec/ggml_executor.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/device_graph.h"
#include "device/session_device.h"
#include "exec/cpu_graph.h"
#include "exec/kernel_sequence.h"
#include "exec/thread_pool.h"

namespace graft {
namespace {

bool is_shared(MemoryKind segment) { return segment == MemoryKind::weight || segment == MemoryKind::constant; }

bool is_gathered(const Transfer& transfer) { return transfer.parts.size() > 1; }

std::size_t gathered_bytes(const Transfer& transfer) {
  return is_gathered(transfer) ? (static_cast<std::size_t>(transfer.bytes) + 63) / 64 * 64 : 0;
}

}  // namespace

// Exactly one is set.
struct GgmlExecutor::Stretch {
  std::unique_ptr<KernelSequence> kernels;
  std::unique_ptr<CpuGraph> graph;
};

// A CPU stage has stretches, a device stage graphs (Stage::graphs); a stage without launches has neither.
struct GgmlExecutor::StageRun {
  std::vector<Stretch> stretches;
  std::vector<std::unique_ptr<DeviceGraph>> graphs;
};

GgmlExecutor::GgmlExecutor(std::shared_ptr<const Plan> p, int threads, RunControl& control, SessionDevice* device)
    : Executor(std::move(p), control),
      threads_(threads),
      device_(device),
      buffers_(plan().allocations.size(), nullptr) {
  if (plan().stages.empty()) {
    add_host_stage(stages_.emplace_back(), 0, static_cast<std::uint32_t>(plan().launches.size()));
    return;
  }
  GRAFT_ASSERT(device_ && plan().undo.empty());
  std::size_t gathered = 0;
  for (const Stage& stage : plan().stages) {
    StageRun& run = stages_.emplace_back();
    if (stage.side == Side::device) {
      for (const std::vector<std::uint32_t>& launches : stage.graphs)
        run.graphs.push_back(std::make_unique<DeviceGraph>(plan(), launches));
      device_->provide(stage.streams, stage.events);
    } else {
      add_host_stage(run, stage.begin, stage.end);
    }
    for (const Transfer& t : stage.transfers) gathered += gathered_bytes(t);
  }
  gathered_ = AlignedMemory(gathered);
  std::memset(gathered_.data(), 0, gathered);  // the padding between parts is copied too
}

GgmlExecutor::~GgmlExecutor() = default;

void GgmlExecutor::add_host_stage(StageRun& run, std::uint32_t begin, std::uint32_t end) {
  const std::span<const Launch> launches(plan().launches.data() + begin, end - begin);
  const bool only_kernels = std::ranges::all_of(launches, [](const Launch& l) { return l.kernel != nullptr; });
  const int kernel_threads = only_kernels ? threads_ : 1;
  for (std::size_t first = 0; first < launches.size();) {
    const bool is_kernel = launches[first].kernel != nullptr;
    std::size_t last = first;
    std::vector<const Launch*> stretch;
    for (; last < launches.size() && (launches[last].kernel != nullptr) == is_kernel; ++last)
      stretch.push_back(&launches[last]);
    if (is_kernel) {
      run.stretches.push_back({std::make_unique<KernelSequence>(plan(), stretch, kernel_threads, control()), nullptr});
    } else {
      run.stretches.push_back(
          {nullptr, std::make_unique<CpuGraph>(plan(), launches.subspan(first, last - first), threads_)});
    }
    first = last;
  }
}

std::size_t GgmlExecutor::bind(std::span<std::byte* const> bases, std::span<ggml_backend_buffer* const> buffers) {
  std::size_t rewrites = 0;
  // Some of ggml's backends give all buffers the same address.
  for (std::uint32_t id = 0; id < buffers.size(); ++id) {
    if (!buffers[id] || (bases[id] == this->bases()[id] && buffers[id] == buffers_[id])) continue;
    rewrites += rewrite_on_device(id, bases[id], buffers[id]);
    buffers_[id] = buffers[id];
  }
  rewrites += Executor::bind(bases, buffers);
  if (!device_) return rewrites;
  if (!weights_bound_) rewrites += bind_weights();
  // The device's other addresses change only if the session's block there was reallocated.
  device_->reserve(plan().device_block_bytes);
  if (generation_ == device_->generation()) return rewrites;
  const DeviceMemory& block = device_->block();
  for (std::uint32_t id = 0; id < bases.size(); ++id) {
    const Allocation& a = plan().allocations[id];
    if (a.on_device && !a.kept_on_device && !is_shared(a.memory))
      rewrites += rewrite_on_device(id, block.base() + a.device_offset, block.buffer());
  }
  generation_ = device_->generation();
  return rewrites;
}

std::size_t GgmlExecutor::rewrite(std::uint32_t allocation, std::byte* base) {
  std::size_t rewrites = 0;
  for (const StageRun& stage : stages_)
    for (const Stretch& s : stage.stretches)
      rewrites += s.kernels ? s.kernels->rewrite(allocation, base) : s.graph->rewrite(allocation, base);
  return rewrites;
}

std::size_t GgmlExecutor::rewrite_on_device(std::uint32_t allocation, std::byte* base, ggml_backend_buffer_t buffer) {
  std::size_t rewrites = 0;
  for (const StageRun& stage : stages_)
    for (const auto& graph : stage.graphs) rewrites += graph->rewrite(allocation, base, buffer);
  return rewrites;
}

// Addresses of weights and constants never change.
std::size_t GgmlExecutor::bind_weights() {
  std::vector<std::uint32_t> ids;
  std::vector<ProgramDevice::HostBytes> weights;
  for (std::uint32_t id = 0; id < bases().size(); ++id) {
    const Allocation& a = plan().allocations[id];
    if (!a.on_device || !is_shared(a.memory)) continue;
    ids.push_back(id);
    weights.push_back({bases()[id], static_cast<std::size_t>(a.bytes)});
  }
  const std::vector<ProgramDevice::Resident> there = device_->resident(weights);
  std::size_t rewrites = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) rewrites += rewrite_on_device(ids[i], there[i].base, there[i].buffer);
  weights_bound_ = true;
  return rewrites;
}

void GgmlExecutor::run_launches(RunProgress& progress) {
  if (!device_) return run_host_stage(stages_.front(), progress);
  try {
    run_stages(progress);
  } catch (...) {
    // Nothing of this run may still read or write the caller's memory. A lost device does not.
    if (!device_->program().is_lost()) device_->synchronize();
    throw;
  }
}

void GgmlExecutor::run_host_stage(const StageRun& stage, RunProgress& progress) {
  if (stage.stretches.empty()) return;
  const bool has_graph = std::ranges::any_of(stage.stretches, [](const Stretch& s) { return s.graph != nullptr; });
  // One thread waits for nothing, and so cannot be stopped while it does.
  const int threads = progress.is_committing() ? 1 : threads_;
  ThreadLease lease(threads, control(), has_graph ? ThreadLease::Use::ggml : ThreadLease::Use::kernels);
  if (!lease) {
    progress.stop();
    return;
  }
  for (const Stretch& stretch : stage.stretches) {
    if (stretch.kernels) {
      stretch.kernels->run(lease, progress);
    } else {
      stretch.graph->run(lease, progress);
    }
    if (progress.stopped()) return;
  }
}

// The last stages write states and mutated inputs: a run may stop before any stage until then.
void GgmlExecutor::run_stages(RunProgress& progress) {
  std::byte* gathered = gathered_.data();
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = plan().stages[s];
    const std::byte* arrived = gathered;
    for (const Transfer& t : stage.transfers) {
      transfer(t, stage.side, gathered);
      gathered += gathered_bytes(t);
    }
    device_->count_stage();
    if (stage.side == Side::device) {
      queue(stage, stages_[s]);
      if (progress.timed()) device_->synchronize();
      progress.after_launches(stage.end);
      continue;
    }
    // The device is idle from here on: it has run its stage and read what was uploaded for it.
    if (s > 0) device_->synchronize();
    if (s > 0 && stage.begin < stage.end && !progress.poll()) return;
    for (const Transfer& t : stage.transfers) {
      scatter(t, arrived);
      arrived += gathered_bytes(t);
    }
    run_host_stage(stages_[s], progress);
    if (progress.stopped()) return;
  }
  if (plan().stages.back().side == Side::device) device_->synchronize();
}

void GgmlExecutor::queue(const Stage& stage, const StageRun& run) {
  for (const QueueStep& step : stage.queue) switch (step.kind) {
      case QueueStep::Kind::graph:
        device_->compute(step.stream, run.graphs[step.index]->graph());
        break;
      case QueueStep::Kind::record:
        device_->record(step.stream, step.index);
        break;
      case QueueStep::Kind::wait:
        device_->wait(step.stream, step.index);
        break;
    }
}

// Uploads of several parts are gathered in `gathered`; downloads stay there until `scatter`.
void GgmlExecutor::transfer(const Transfer& t, Side to, std::byte* gathered) {
  const auto on_host = [&](const Transfer::Part& part) { return bases()[part.allocation] + part.offset; };
  if (to == Side::host) {
    device_->download(t.device_offset, is_gathered(t) ? gathered : on_host(t.parts[0]), t.bytes);
    return;
  }
  if (is_gathered(t))
    for (const Transfer::Part& part : t.parts)
      std::memcpy(gathered + part.at, on_host(part), static_cast<std::size_t>(part.bytes));
  device_->upload(t.device_offset, is_gathered(t) ? gathered : on_host(t.parts[0]), t.bytes);
}

void GgmlExecutor::scatter(const Transfer& t, const std::byte* gathered) {
  if (!is_gathered(t)) return;
  for (const Transfer::Part& part : t.parts)
    std::memcpy(bases()[part.allocation] + part.offset, gathered + part.at, static_cast<std::size_t>(part.bytes));
}

std::size_t GgmlExecutor::metadata_bytes() const {
  std::size_t bytes = Executor::metadata_bytes() + gathered_.size();
  for (const StageRun& stage : stages_) {
    for (const Stretch& s : stage.stretches)
      bytes += sizeof(s) + (s.kernels ? s.kernels->metadata_bytes() : s.graph->metadata_bytes());
    for (const auto& graph : stage.graphs) bytes += graph->metadata_bytes();
  }
  return bytes;
}

}  // namespace graft
