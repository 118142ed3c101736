#include "exec/kernel_sequence.h"

#include <algorithm>
#include <exception>

#include "base/ceil_div.h"
#include "lowering/tasks.h"

namespace graft {

KernelSequence::KernelSequence(const Plan& plan, std::span<const Launch* const> launches, int threads,
                               RunControl& control)
    : threads_(threads),
      control_(control),
      addresses_(plan),
      steal_ranges_(static_cast<std::size_t>(ceil_div(threads, 2))) {
  std::size_t operands = 0;
  for (const Launch* launch : launches) operands += launch->inputs.size() + launch->outputs.size();
  // The refresh table points into both.
  operands_.reserve(operands);
  launches_.reserve(launches.size());
  for (const Launch* launch : launches) add(plan, *launch);
  addresses_.seal();
}

void KernelSequence::add(const Plan& plan, const Launch& launch) {
  BoundLaunch& bound = launches_.emplace_back();
  bound.launch = &launch;
  bound.tasks_per_thread = launch.serial || threads_ == 1 ? 0 : tasks_per_thread(launch);
  bound.node = plan.node_names[launch.node];
  bound.operands = operands_.data() + operands_.size();
  const auto add_operands = [&](const std::vector<Tensor>& tensors, std::vector<TensorDesc>& descs) {
    descs.reserve(tensors.size());
    for (const Tensor& t : tensors) {
      descs.push_back(t.desc);
      addresses_.add(t.buffer, &operands_.emplace_back(nullptr), t.offset);
    }
  };
  add_operands(launch.inputs, bound.inputs);
  add_operands(launch.outputs, bound.outputs);
  if (launch.scratch_bytes > 0) addresses_.add(launch.scratch, &bound.scratch, 0);

  if (launch.kernel->phases) {
    KernelContext context;
    context.tasks = std::max(1, threads_ * bound.tasks_per_thread);
    context.input_descs = bound.inputs;
    context.output_descs = bound.outputs;
    context.attr_bytes = launch.attrs.data();
    bound.phases = launch.kernel->phases(context);
  }
}

KernelContext KernelSequence::context_of(const BoundLaunch& launch, int phase, int task, int tasks) {
  KernelContext context;
  context.task = task;
  context.tasks = tasks;
  context.phase = phase;
  context.input_descs = launch.inputs;
  context.output_descs = launch.outputs;
  context.inputs = launch.operands;
  context.outputs = launch.operands + launch.inputs.size();
  context.attr_bytes = launch.launch->attrs.data();
  context.scratch_bytes = static_cast<std::byte*>(launch.scratch);
  context.error = &control_.error;
  context.random = control_.random;
  context.kv_rows = control_.kv_rows;
  context.node = launch.node;
  context.steal_ranges = tasks > 1 && launch.launch->kernel->steals_work ? steal_ranges_.data() : nullptr;
  return context;
}

void KernelSequence::observe(const BoundLaunch& launch, Observe seen) noexcept {
  if (control_.observer == nullptr || control_.error.failed()) return;
  const KernelContext context = context_of(launch, 0, 0, 1);
  try {
    (control_.observer->*seen)(*launch.launch, context);
  } catch (const std::exception& error) {
    context.fail(error.what());
  } catch (...) {
    context.fail("the observer threw something that is no std::exception");
  }
}

bool KernelSequence::end_launch(const BoundLaunch& launch) noexcept {
  observe(launch, &LaunchObserver::after);
  return progress_->after_launch();
}

void KernelSequence::run_task(const BoundLaunch& launch, int phase, int task, int tasks) noexcept {
  const KernelContext context = context_of(launch, phase, task, tasks);
  try {
    launch.launch->kernel->run(context);
  } catch (const std::exception& error) {
    context.fail(error.what());
  } catch (...) {
    context.fail("the kernel threw something that is no std::exception");
  }
}

void KernelSequence::run_alone(std::size_t launch) {
  for (int phase = 0; phase < launches_[launch].phases; ++phase) run_task(launches_[launch], phase, 0, 1);
}

void KernelSequence::run(ThreadLease& lease, RunProgress& progress) {
  progress_ = &progress;
  current_ = 0;
  running_ = false;
  if (threads_ == 1) {
    next();  // finds no launch with several tasks
  } else {
    lease.run(*this);
  }
}

int KernelSequence::begin_phase(const BoundLaunch& launch) noexcept {
  if (launch.launch->kernel->steals_work)
    for (TwoEndedRange& range : steal_ranges_) range.clear();
  return launch.tasks_per_thread;
}

// Ends the current phase, runs single-threaded launches, and stops at the next launch that all threads run.
int KernelSequence::next() noexcept {
  if (running_) {
    if (++phase_ < launches_[current_].phases) return begin_phase(launches_[current_]);
    running_ = false;
    const BoundLaunch& ended = launches_[current_++];
    if (!end_launch(ended)) return 0;
  }
  for (; current_ < launches_.size(); ++current_) {
    const BoundLaunch& launch = launches_[current_];
    observe(launch, &LaunchObserver::before);
    if (launch.tasks_per_thread > 0) {
      phase_ = 0;
      running_ = true;
      return begin_phase(launch);
    }
    for (int phase = 0; phase < launch.phases; ++phase) run_task(launch, phase, 0, 1);
    if (!end_launch(launch)) return 0;
  }
  return 0;
}

void KernelSequence::task(int task, int tasks) noexcept { run_task(launches_[current_], phase_, task, tasks); }

std::size_t KernelSequence::metadata_bytes() const {
  std::size_t bytes = sizeof(*this) + launches_.size() * sizeof(BoundLaunch) + operands_.size() * sizeof(void*) +
                      addresses_.bytes() + steal_ranges_.size() * sizeof(TwoEndedRange);
  for (const BoundLaunch& launch : launches_)
    bytes += (launch.inputs.size() + launch.outputs.size()) * sizeof(TensorDesc);
  return bytes;
}

}  // namespace graft
