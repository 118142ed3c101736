#pragma once

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
  // Launches are divided into tasks for `threads` threads. Plan, launches and control must outlive the sequence.
  KernelSequence(const Plan& plan, std::span<const Launch* const> launches, int threads, RunControl& control);
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
  void add(const Plan& plan, const Launch& launch);
  KernelContext context_of(const BoundLaunch& launch, int phase, int task, int tasks);
  void run_task(const BoundLaunch& launch, int phase, int task, int tasks) noexcept;
  using Observe = void (LaunchObserver::*)(const Launch&, const KernelContext&);
  void observe(const BoundLaunch& launch, Observe seen) noexcept;
  bool end_launch(const BoundLaunch& launch) noexcept;
  int begin_phase(const BoundLaunch& launch) noexcept;
  int next() noexcept override;
  void task(int task, int tasks) noexcept override;

  const int threads_;
  RunControl& control_;
  std::vector<BoundLaunch> launches_;
  std::vector<void*> operands_;  // of all launches
  RefreshTable addresses_;
  std::vector<TwoEndedRange> steal_ranges_;  // of the current phase

  // Of the current run: the launch that all threads run, and its phase.
  RunProgress* progress_ = nullptr;
  std::size_t current_ = 0;
  int phase_ = 0;
  bool running_ = false;
};

}  // namespace graft
