#include "exec/kernel_executor.h"

#include <vector>

namespace graft {
namespace {

std::vector<const Launch*> pointers_to(const std::vector<Launch>& launches) {
  std::vector<const Launch*> pointers;
  for (const Launch& launch : launches) pointers.push_back(&launch);
  return pointers;
}

}  // namespace

KernelExecutor::KernelExecutor(std::shared_ptr<const Plan> plan, int threads, RunControl& control)
    : Executor(std::move(plan), control),
      threads_(threads),
      kernels_(this->plan(), pointers_to(this->plan().launches), threads, control, this->plan().groups) {}

std::size_t KernelExecutor::rewrite(std::uint32_t allocation, std::byte* base) {
  return kernels_.rewrite(allocation, base);
}

void KernelExecutor::run_launches(RunProgress& progress) {
  if (plan().launches.empty()) return;
  ThreadLease lease(threads_, control());
  if (!lease) {
    progress.stop();
    return;
  }
  kernels_.run(lease, progress);
}

std::size_t KernelExecutor::metadata_bytes() const { return Executor::metadata_bytes() + kernels_.metadata_bytes(); }

}  // namespace graft
