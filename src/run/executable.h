#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "plan/plan.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace graft {

// What stops a run between two nodes, and what it found.
struct RunControl {
  ErrorSlot error;
  const std::atomic<bool>* cancel = nullptr;
  bool has_deadline = false;
  std::chrono::steady_clock::time_point deadline;
  bool timed_out = false;

  bool should_stop();  // polled after every node by one thread
};

// A plan instantiated as a ggml graph, for one session: ggml tensors keep addresses, so they cannot be shared.
// Everything is allocated here once; bind() and compute() allocate nothing.
class Executable {
 public:
  // `control` must outlive the executable.
  Executable(std::shared_ptr<const Plan> plan, int threads, RunControl* control);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  const Plan& plan() const { return *plan_; }

  // `bases`: one address per allocation id of the plan (null only where nothing of it is touched). Rewrites the tensors
  // of those ids whose base changed since the last call; returns how many addresses were rewritten.
  std::size_t bind(std::span<std::byte* const> bases);
  RefreshLevel last_level() const { return last_level_; }

  // Runs the graph with the process's thread pool. Errors are left in the control's slot. With `stamps`, the time after
  // each launch is appended (an instrumented loop; without it the clock is not read).
  using Clock = std::chrono::steady_clock;
  void compute(std::vector<Clock::time_point>* stamps = nullptr);

  int graph_nodes() const;
  std::size_t metadata_bytes() const { return metadata_.size() + work_.size(); }

 private:
  struct KernelLaunch;
  struct Builder;
  struct RefreshEntry {
    void** slot;
    std::int64_t offset;
  };
  static void run_kernel(ggml_tensor* dst, int thread, int threads, void* user);

  std::shared_ptr<const Plan> plan_;
  int threads_;
  RunControl* control_;
  AlignedMemory metadata_;
  AlignedMemory work_;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  std::vector<std::unique_ptr<KernelLaunch>> kernels_;
  std::vector<RefreshEntry> entries_;       // grouped by allocation id
  std::vector<std::uint32_t> first_entry_;  // entries of id i: [first_entry_[i], first_entry_[i + 1])
  std::vector<std::byte*> last_bases_;
  bool bound_ = false;
  RefreshLevel last_level_ = RefreshLevel::none;
};

}  // namespace graft
