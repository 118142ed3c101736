#include "exec/kernel_sequence.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/ceil_div.h"
#include "graft/error.h"
#include "lowering/tasks.h"

namespace graft {

KernelSequence::KernelSequence(const Plan& plan, std::span<const Launch* const> launches, int threads,
                               RunControl& control, std::span<const LaunchGroup> groups)
    : threads_(threads), control_(control), addresses_(plan) {
  std::size_t operands = 0;
  for (const Launch* launch : launches) operands += launch->inputs.size() + launch->outputs.size();
  // The refresh table points into both.
  operands_.reserve(operands);
  launches_.reserve(launches.size());
  for (const Launch* launch : launches) add(plan, *launch);
  addresses_.seal();
  steal_ranges_ = std::vector<TwoEndedRange>(static_cast<std::size_t>(ceil_div(threads_, 2)));
  if (threads_ > 1)
    for (const LaunchGroup& group : groups) add_group(group);
}

int KernelSequence::phases_of(const BoundLaunch& launch, int tasks) const {
  if (launch.launch->kernel->phases == nullptr) return 1;
  KernelContext context;
  context.tasks = tasks;
  context.input_descs = launch.inputs;
  context.output_descs = launch.outputs;
  context.attr_bytes = launch.launch->attrs.data();
  return launch.launch->kernel->phases(context);
}

// Branches come by falling work: each task goes to the thread with the least work so far that has a task left.
void KernelSequence::add_group(const LaunchGroup& group) {
  BoundGroup& bound = groups_.emplace_back();
  bound.group = &group;
  int tasks = 0, ranges = 0;
  for (const Branch& branch : group.branches) {
    const BoundLaunch& first = launches_[branch.begin];
    tasks += branch.tasks;
    bound.phases.push_back(branch.tasks > 1 ? phases_of(first, branch.tasks) : 1);
    bound.most_phases = std::max(bound.most_phases, bound.phases.back());
    bound.steal_from.push_back(ranges);
    if (branch.tasks > 1 && first.launch->kernel->steals_work) ranges += static_cast<int>(ceil_div(branch.tasks, 2));
  }
  if (static_cast<std::size_t>(ranges) > steal_ranges_.size())
    steal_ranges_ = std::vector<TwoEndedRange>(static_cast<std::size_t>(ranges));
  bound.tasks_per_thread = static_cast<int>(ceil_div(tasks, threads_));
  bound.tasks.resize(static_cast<std::size_t>(threads_ * bound.tasks_per_thread));
  std::vector<double> work(static_cast<std::size_t>(threads_), 0);
  std::vector<int> taken(work.size(), 0);
  for (std::size_t branch = 0; branch < group.branches.size(); ++branch) {
    for (int i = 0; i < group.branches[branch].tasks; ++i) {
      std::size_t best = work.size();
      for (std::size_t t = 0; t < work.size(); ++t)
        if (taken[t] < bound.tasks_per_thread && (best == work.size() || work[t] < work[best])) best = t;
      const std::size_t slot =
          best * static_cast<std::size_t>(bound.tasks_per_thread) + static_cast<std::size_t>(taken[best]++);
      bound.tasks[slot] = {static_cast<int>(branch), i};
      work[best] += group.branches[branch].work / group.branches[branch].tasks;
    }
  }
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

  bound.phases = phases_of(bound, std::max(1, threads_ * bound.tasks_per_thread));
}

KernelContext KernelSequence::context_of(const BoundLaunch& launch, int phase, int task, int tasks, int steal_from) {
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
  context.adapters = control_.adapters;
  context.node = launch.node;
  context.steal_ranges = tasks > 1 && launch.launch->kernel->steals_work ? steal_ranges_.data() + steal_from : nullptr;
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

void KernelSequence::run_task(const BoundLaunch& launch, int phase, int task, int tasks, int steal_from) noexcept {
  const KernelContext context = context_of(launch, phase, task, tasks, steal_from);
  const bool of_user = launch.launch->kernel->of_user;
  const RunControl* const around = of_user ? std::exchange(RunControl::around_this_thread(), &control_) : nullptr;
  try {
    launch.launch->kernel->run(context);
  } catch (const Cancelled& error) {
    // A run within the kernel that ended with this one is no failure of the kernel.
    if (!control_.stop_requested()) context.fail(error.what());
  } catch (const std::exception& error) {
    context.fail(error.what());
  } catch (...) {
    context.fail("the kernel threw something that is no std::exception");
  }
  if (of_user) RunControl::around_this_thread() = around;
}

void KernelSequence::run_alone(std::size_t launch) {
  for (int phase = 0; phase < launches_[launch].phases; ++phase) run_task(launches_[launch], phase, 0, 1);
}

void KernelSequence::run(ThreadLease& lease, RunProgress& progress) {
  progress_ = &progress;
  current_ = 0;
  next_group_ = 0;
  running_group_ = nullptr;
  running_ = false;
  if (threads_ == 1) {
    next();  // finds no launch with several tasks
  } else {
    lease.run(*this);
  }
}

void KernelSequence::clear_steal_ranges() noexcept {
  for (TwoEndedRange& range : steal_ranges_) range.clear();
}

int KernelSequence::begin_phase(const BoundLaunch& launch) noexcept {
  if (launch.launch->kernel->steals_work) clear_steal_ranges();
  return launch.tasks_per_thread;
}

int KernelSequence::begin_group_phase(const BoundGroup& group) noexcept {
  clear_steal_ranges();
  return group.tasks_per_thread;
}

void KernelSequence::run_branch(const Branch& branch) noexcept {
  for (std::uint32_t i = branch.begin; i < branch.end; ++i) {
    if (i > branch.begin && control_.stop_requested()) return branch_stopped_.store(true, std::memory_order_relaxed);
    run_alone(i);
  }
}

bool KernelSequence::end_group(const BoundGroup& group) noexcept {
  if (branch_stopped_.load(std::memory_order_relaxed)) {
    progress_->poll();
    progress_->stop();
    return false;
  }
  progress_->after_launches(group.group->end());
  return group.group->end() == launches_.size() || progress_->poll();
}

// Ends the current phase, runs single-threaded launches, and stops at the next launch that all threads run.
int KernelSequence::next() noexcept {
  if (running_group_ != nullptr) {
    const BoundGroup& group = *running_group_;
    if (++phase_ < group.most_phases) return begin_group_phase(group);
    running_group_ = nullptr;
    current_ = group.group->end();
    if (!end_group(group)) return 0;
  }
  if (running_) {
    if (++phase_ < launches_[current_].phases) return begin_phase(launches_[current_]);
    running_ = false;
    const BoundLaunch& ended = launches_[current_++];
    if (!end_launch(ended)) return 0;
  }
  for (; current_ < launches_.size(); ++current_) {
    if (next_group_ < groups_.size() && groups_[next_group_].group->begin() == current_) {
      const BoundGroup& group = groups_[next_group_++];
      // Who looks at single launches, or times them, sees them one by one.
      if (control_.observer == nullptr && !progress_->timed()) {
        phase_ = 0;
        running_group_ = &group;
        branch_stopped_.store(false, std::memory_order_relaxed);
        return begin_group_phase(group);
      }
    }
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

void KernelSequence::task(int task, int tasks) noexcept {
  if (running_group_ == nullptr) return run_task(launches_[current_], phase_, task, tasks);
  const auto [index, part] = running_group_->tasks[static_cast<std::size_t>(task)];
  if (index < 0) return;
  const Branch& branch = running_group_->group->branches[static_cast<std::size_t>(index)];
  if (branch.tasks == 1) {
    if (phase_ == 0) run_branch(branch);
  } else if (phase_ < running_group_->phases[static_cast<std::size_t>(index)]) {
    run_task(launches_[branch.begin], phase_, part, branch.tasks,
             running_group_->steal_from[static_cast<std::size_t>(index)]);
  }
}

std::size_t KernelSequence::metadata_bytes() const {
  std::size_t bytes = sizeof(*this) + launches_.size() * sizeof(BoundLaunch) + operands_.size() * sizeof(void*) +
                      addresses_.bytes() + steal_ranges_.size() * sizeof(TwoEndedRange);
  for (const BoundGroup& group : groups_)
    bytes += sizeof(group) + group.tasks.size() * sizeof(BoundGroup::Task) +
             (group.phases.size() + group.steal_from.size()) * sizeof(int);
  for (const BoundLaunch& launch : launches_)
    bytes += (launch.inputs.size() + launch.outputs.size()) * sizeof(TensorDesc);
  return bytes;
}

}  // namespace graft
