#pragma once

#include <cstddef>

#include "kernel/kernel.h"

namespace graft {

struct Launch;

// Sees the tensors of each launch of a run, on the thread that begins or has ended it: one at a time, in order. Made
// for looking for faults, so it may allocate; what it throws is an error of the run.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  // The context is that of a launch of one task.
  virtual void before(const Launch& launch, const KernelContext& context) = 0;
  virtual void after(const Launch& launch, const KernelContext& context) = 0;
};

}  // namespace graft
