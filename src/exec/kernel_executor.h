#pragma once

#include <memory>

#include "exec/executor.h"
#include "exec/kernel_sequence.h"

namespace graft {

// For CPU plans that have only graft's kernels: the process's pool lends the threads that run them.
class KernelExecutor final : public Executor {
 public:
  KernelExecutor(std::shared_ptr<const Plan> plan, int threads, RunControl& control);

  std::size_t metadata_bytes() const override;

 private:
  std::size_t rewrite(std::uint32_t allocation, std::byte* base) override;
  void run_launches(RunProgress& progress) override;

  const int threads_;
  KernelSequence kernels_;
};

}  // namespace graft
