#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/run_control.h"
#include "plan/plan.h"

namespace graft {

class KernelSequence;
class SessionDevice;

// A plan instantiated for one session: what runs its launches keeps addresses, so sessions cannot share it.
// Everything is allocated by the constructor; bind() and run() allocate nothing, but for what ggml allocates itself.
class Executor {
 public:
  virtual ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Plan& plan() const { return *plan_; }

  // One address per allocation id of the plan (null only where nothing of it is touched). Rewrites the addresses that
  // follow from a base that changed since the last call; returns how many were rewritten.
  virtual std::size_t bind(std::span<std::byte* const> bases);
  // Those of the last call; null before the first.
  std::span<std::byte* const> bases() const { return bases_; }

  // Runs all launches, or until the control stops the run; false when it did not succeed: then every state is as it was
  // before, and the control says why. With `stamps`, the time after each launch is appended. What fails on a device
  // throws ExecutionError; states are as before then.
  bool run(std::vector<Clock::time_point>* stamps = nullptr);

  std::size_t launches_finished() const { return progress_.finished(); }  // by the last run
  virtual std::size_t metadata_bytes() const;                             // all that it holds but the arena

 protected:
  Executor(std::shared_ptr<const Plan> plan, RunControl& control);

  RunControl& control() { return control_; }

 private:
  // Writes the addresses that follow from this base; returns how many there are.
  virtual std::size_t rewrite(std::uint32_t allocation, std::byte* base) = 0;
  // Runs launches until the progress says to stop.
  virtual void run_launches(RunProgress& progress) = 0;

  std::shared_ptr<const Plan> plan_;
  RunControl& control_;
  RunProgress progress_;
  std::vector<std::byte*> bases_;
  bool bound_ = false;
  std::unique_ptr<KernelSequence> undo_;  // Plan::undo; null where there is none
};

// The executor that the plan needs. `control` must outlive it, and so must `device`: the one that the plan was made
// for, null for the CPU.
std::unique_ptr<Executor> make_executor(std::shared_ptr<const Plan> plan, int threads, RunControl& control,
                                        SessionDevice* device = nullptr);

}  // namespace graft
