#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "plan/plan.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace graft {

class DeviceRun;
class SessionDevice;
class ThreadPool;

// What stops a run between two launches, and what it found.
struct RunControl {
  ErrorSlot error;
  const std::atomic<bool>* cancel = nullptr;
  bool has_deadline = false;
  Clock::time_point deadline;
  bool timed_out = false;
  RandomKey random;
  std::span<const std::int64_t> kv_rows;

  bool should_stop();  // polled after every launch by one thread
};

// A plan instantiated for one session: launch records and ggml tensors keep addresses, so they cannot be shared.
// Consecutive launches of kernels of ours are one node of the ggml graph, a custom op, and a ggml op is a node of its
// own. ggml computes the graph on the calling thread, and a group brings in the process's thread pool: a node of ggml's
// costs a barrier that waits for every thread however busy its core is, and ggml's workers spin for milliseconds after
// a run (docs/performance.md). A graph that has ggml ops too is computed by ggml's own pool, its groups by one thread.
// Everything is allocated here once; bind() and compute() allocate nothing.
class Executable {
 public:
  // `control` must outlive the executable, and so must `device`: the one that the plan was made for, null for the CPU.
  Executable(std::shared_ptr<const Plan> plan, int threads, RunControl* control, SessionDevice* device = nullptr);
  // Launches [begin, end) alone, on the CPU, of a plan with stages.
  Executable(std::shared_ptr<const Plan> plan, std::uint32_t begin, std::uint32_t end, int threads,
             RunControl* control);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  const Plan& plan() const { return *plan_; }

  // `bases`: one address per allocation id of the plan (null only where nothing of it is touched). Rewrites the entries
  // of those ids whose base changed since the last call; returns how many addresses were rewritten.
  std::size_t bind(std::span<std::byte* const> bases);
  RefreshLevel last_level() const { return last_level_; }

  // Runs the graph to its end, or until the control stops it; false when it did not reach the end: then every state is
  // as it was before, and the control says why. With `stamps`, the time after each launch is appended (an instrumented
  // loop; without it the clock is not read). What fails on a device throws ExecutionError; states are as before then.
  bool compute(std::vector<Clock::time_point>* stamps = nullptr);

  std::size_t launches_finished() const;  // by the last run
  int graph_nodes() const;
  std::size_t metadata_bytes() const;  // everything an instantiated plan holds but its arena

 private:
  struct KernelLaunch;
  struct Group;
  struct TimedGroup;
  struct Builder;
  struct RefreshEntry {
    void** slot;
    std::int64_t offset;
  };
  // The loop is there twice: `timed` takes the time after each launch.
  template <bool timed>
  static void compute_group(ggml_tensor* dst, int thread, int threads, void* user);
  template <bool timed>
  static bool after_node(void* user);
  template <bool timed>
  void use_loop();
  void run_task(const KernelLaunch& launch, int phase, int task, int tasks);
  template <bool timed>
  bool after_launch();
  void undo();

  std::shared_ptr<const Plan> plan_;
  std::uint32_t begin_;                    // launches_ are those of the plan from here on
  std::span<const Launch> launches_;       // what runs here
  std::unique_ptr<DeviceRun> device_run_;  // of a plan with stages: runs them, and there are no launches here
  int threads_;
  RunControl* control_;
  std::vector<TwoEndedRange> steal_ranges_;  // of the step under way
  AlignedMemory metadata_;
  AlignedMemory work_;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  std::vector<bool> is_ggml_op_;  // by node
  bool has_ggml_ops_ = false;
  std::vector<KernelLaunch> kernels_;
  std::size_t first_undo_ = 0;  // kernels_ from here on are those of Plan::undo
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<void*> operands_;             // addresses of all kernels' operands
  std::vector<RefreshEntry> entries_;       // grouped by allocation id
  std::vector<std::uint32_t> first_entry_;  // entries of id i: [first_entry_[i], first_entry_[i + 1])
  std::vector<std::byte*> last_bases_;
  bool bound_ = false;
  RefreshLevel last_level_ = RefreshLevel::none;

  // Of the run under way.
  bool stop_ = false;
  std::size_t finished_ = 0;  // launches
  ThreadPool* pool_ = nullptr;
  std::size_t next_node_ = 0;
  std::vector<Clock::time_point>* stamps_ = nullptr;  // of the instrumented loop
};

}  // namespace graft
