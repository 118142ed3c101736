#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "kernel/kernel.h"

namespace graft {

class LaunchObserver;
struct Plan;

// How often a waiting run looks whether it was cancelled.
inline constexpr std::chrono::microseconds kCancelPoll{500};

// What can stop a run between two launches, and the error that it found.
struct RunControl {
  ErrorSlot error;
  const std::atomic<bool>* cancel = nullptr;
  bool has_deadline = false;
  Clock::time_point deadline;
  bool timed_out = false;
  int priority = 0;                   // among runs that wait for CPUs: the highest is next
  const RunControl* outer = nullptr;  // of the run whose kernel made this one
  LaunchObserver* observer = nullptr;
  RandomKey random;
  std::span<const std::int64_t> kv_rows;
  std::vector<const LowRank*> adapters;  // as KernelContext::adapters

  bool should_stop();  // polled after every launch by one thread
  // The same, from any thread; leaves the cause for should_stop().
  bool stop_requested() const;

  // The run whose kernel of the user's this thread is in; null outside of such kernels.
  static const RunControl*& around_this_thread();
};

// Progress of one run of a plan.
class RunProgress {
 public:
  // Both must outlive it.
  RunProgress(const Plan& plan, RunControl& control) : plan_(plan), control_(control) {}

  // With `stamps`, appends the time after each launch; without, the clock is not read.
  void start(std::vector<Clock::time_point>* stamps);

  // Call after every launch, from one thread at a time. False: the run stops here.
  bool after_launch();
  // After launches that ran as one, up to `end`; does not poll.
  void after_launches(std::size_t end);
  // Polls the control between launches, unless the run is_committing(). False: the run stops here.
  bool poll();

  // The control stopped the run while it waited between launches.
  void stop() { stopped_ = true; }

  bool timed() const { return stamps_ != nullptr; }
  bool stopped() const { return stopped_; }
  std::size_t finished() const { return finished_; }  // launches
  // A launch that cannot fail has written a state: the run goes on to its end.
  bool is_committing() const;
  bool succeeded() const;

 private:
  const Plan& plan_;
  RunControl& control_;
  std::vector<Clock::time_point>* stamps_ = nullptr;
  std::size_t finished_ = 0;
  bool stopped_ = false;
};

}  // namespace graft
