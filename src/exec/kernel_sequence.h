#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "exec/launch_observer.h"
#include "exec/refresh_table.h"
#include "exec/run_control.h"
#include "exec/thread_pool.h"
#include "plan/plan.h"

namespace graft {

// A sequence of graft's kernels with the addresses of one session. An exception from a kernel becomes an error of the
// run.
class KernelSequence final : private PoolWork {
 public:
  // Launches are divided into tasks for `threads` threads. Groups: of these launches, run side by side. Plan, launches,
  // groups and control must outlive the sequence.
  KernelSequence(const Plan& plan, std::span<const Launch* const> launches, int threads, RunControl& control,
                 std::span<const LaunchGroup> groups = {});
  KernelSequence(const KernelSequence&) = delete;
  KernelSequence& operator=(const KernelSequence&) = delete;

  std::size_t rewrite(std::uint32_t allocation, std::byte* base) const { return addresses_.rewrite(allocation, base); }

  // Runs all launches, until the progress stops them.
  void run(ThreadLease& lease, RunProgress& progress);
  // Runs one launch on this thread.
  void run_alone(std::size_t launch);

  std::size_t metadata_bytes() const;

 private:
  struct BoundLaunch {
    const Launch* launch = nullptr;
    std::string_view node;
    std::vector<TensorDesc> inputs;
    std::vector<TensorDesc> outputs;
    void** operands = nullptr;  // inputs, then outputs: data pointers of element [0, 0, ...]
    void* scratch = nullptr;
    int tasks_per_thread = 0;  // per phase; 0: one thread runs the launch alone
    int phases = 1;
  };
  // A group as tasks of one step. Several launches of a branch run within one task.
  struct BoundGroup {
    const LaunchGroup* group = nullptr;
    struct Task {
      int branch = -1;  // -1: none, since every thread has the same number of tasks
      int index = 0;
    };
    std::vector<Task> tasks;
    std::vector<int> phases;      // by branch
    std::vector<int> steal_from;  // by branch: its first steal range
    int tasks_per_thread = 1;
    int most_phases = 1;
  };
  void add(const Plan& plan, const Launch& launch);
  void add_group(const LaunchGroup& group);
  int phases_of(const BoundLaunch& launch, int tasks) const;
  KernelContext context_of(const BoundLaunch& launch, int phase, int task, int tasks, int steal_from = 0);
  void run_task(const BoundLaunch& launch, int phase, int task, int tasks, int steal_from = 0) noexcept;
  void run_branch(const Branch& branch) noexcept;
  using Observe = void (LaunchObserver::*)(const Launch&, const KernelContext&);
  void observe(const BoundLaunch& launch, Observe seen) noexcept;
  bool end_launch(const BoundLaunch& launch) noexcept;
  bool end_group(const BoundGroup& group) noexcept;
  void clear_steal_ranges() noexcept;
  int begin_phase(const BoundLaunch& launch) noexcept;
  int begin_group_phase(const BoundGroup& group) noexcept;
  int next() noexcept override;
  void task(int task, int tasks) noexcept override;

  const int threads_;
  RunControl& control_;
  std::vector<BoundLaunch> launches_;
  std::vector<BoundGroup> groups_;
  std::vector<void*> operands_;  // of all launches
  RefreshTable addresses_;
  std::vector<TwoEndedRange> steal_ranges_;  // of the current phase

  // Of the current run: the launch or the group that all threads run, and its phase.
  RunProgress* progress_ = nullptr;
  std::size_t current_ = 0;
  std::size_t next_group_ = 0;
  const BoundGroup* running_group_ = nullptr;
  int phase_ = 0;
  bool running_ = false;
  std::atomic<bool> branch_stopped_{false};
};

}  // namespace graft
