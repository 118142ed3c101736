#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/run_control.h"
#include "plan/plan.h"

struct ggml_backend_buffer;

namespace graft {

class KernelSequence;
class SessionDevice;

// A plan instantiated for one session: its launches hold addresses, so sessions cannot share it. The constructor
// allocates everything; bind() and run() allocate nothing, except what ggml allocates itself.
class Executor {
 public:
  virtual ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Plan& plan() const { return *plan_; }

  // One base address per allocation id of the plan (null only if nothing in it is touched), and for those that a device
  // keeps, whose base is there, the buffer that it is in. Rewrites the addresses whose base changed since the last
  // call; returns how many.
  virtual std::size_t bind(std::span<std::byte* const> bases, std::span<ggml_backend_buffer* const> buffers = {});
  // The bases of the last call; null before the first.
  std::span<std::byte* const> bases() const { return bases_; }

  // Runs all launches, or until the control stops the run. On false every state is as before the run, and the control
  // tells the cause. With `stamps`, appends the time after each launch. Device failures throw ExecutionError and leave
  // states as before, too.
  bool run(std::vector<Clock::time_point>* stamps = nullptr);

  std::size_t launches_finished() const { return progress_.finished(); }  // by the last run
  virtual std::size_t metadata_bytes() const;                             // everything but the arena

 protected:
  Executor(std::shared_ptr<const Plan> plan, RunControl& control);

  RunControl& control() { return control_; }

 private:
  // Rewrites the addresses relative to this base; returns how many.
  virtual std::size_t rewrite(std::uint32_t allocation, std::byte* base) = 0;
  // Runs launches until the progress stops them.
  virtual void run_launches(RunProgress& progress) = 0;

  std::shared_ptr<const Plan> plan_;
  RunControl& control_;
  RunProgress progress_;
  std::vector<std::byte*> bases_;
  bool bound_ = false;
  std::unique_ptr<KernelSequence> undo_;  // Plan::undo; null if empty
};

// The executor that the plan needs. `control` must outlive it, and so must `device`, the one that the plan was made for
// (null for the CPU).
std::unique_ptr<Executor> make_executor(std::shared_ptr<const Plan> plan, int threads, RunControl& control,
                                        SessionDevice* device = nullptr);

}  // namespace graft
