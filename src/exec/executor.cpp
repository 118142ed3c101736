#include "exec/executor.h"

#include <algorithm>

#include "base/check.h"
#include "exec/ggml_executor.h"
#include "exec/kernel_executor.h"
#include "exec/kernel_sequence.h"

namespace graft {

Executor::Executor(std::shared_ptr<const Plan> plan, RunControl& control)
    : plan_(std::move(plan)),
      control_(control),
      progress_(*plan_, control),
      bases_(plan_->allocations.size(), nullptr) {
  if (plan_->undo.empty()) return;
  std::vector<const Launch*> launches;
  for (const UndoLaunch& undo : plan_->undo) launches.push_back(&undo.launch);
  undo_ = std::make_unique<KernelSequence>(*plan_, launches, 1, control_);
}

Executor::~Executor() = default;

std::size_t Executor::bind(std::span<std::byte* const> bases, std::span<ggml_backend_buffer* const>) {
  GRAFT_ASSERT(bases.size() == bases_.size());
  std::size_t rewrites = 0;
  for (std::uint32_t id = 0; id < bases.size(); ++id) {
    if (bound_ && bases[id] == bases_[id]) continue;
    bases_[id] = bases[id];
    rewrites += rewrite(id, bases[id]);
    if (undo_) rewrites += undo_->rewrite(id, bases[id]);
  }
  bound_ = true;
  return rewrites;
}

bool Executor::run(std::vector<Clock::time_point>* stamps) {
  progress_.start(stamps);
  run_launches(progress_);
  if (progress_.succeeded()) return true;
  for (std::size_t i = plan_->undo.size(); i-- > 0;)
    if (plan_->undo[i].after <= progress_.finished()) undo_->run_alone(i);
  return false;
}

std::size_t Executor::metadata_bytes() const {
  return bases_.size() * sizeof(bases_[0]) + (undo_ ? undo_->metadata_bytes() : 0);
}

std::unique_ptr<Executor> make_executor(std::shared_ptr<const Plan> plan, int threads, RunControl& control,
                                        SessionDevice* device) {
  const bool only_kernels =
      std::ranges::all_of(plan->launches, [](const Launch& launch) { return launch.kernel != nullptr; });
  if (plan->stages.empty() && only_kernels) return std::make_unique<KernelExecutor>(std::move(plan), threads, control);
  return std::make_unique<GgmlExecutor>(std::move(plan), threads, control, device);
}

}  // namespace graft
