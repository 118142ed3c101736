#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "exec/executor.h"
#include "ggml-backend.h"

namespace graft {

// For plans with ggml ops: on a device in stages with transfers between them, on the CPU in stretches. A stretch is
// either ggml ops, which form a graph, or graft's kernels. On the CPU, ggml's own pool runs the graphs; if there are
// any, the kernels between them run on one thread, because ggml's workers spin for milliseconds after a graph and would
// take the cores from graft's.
class GgmlExecutor final : public Executor {
 public:
  // `device`: null for a plan without stages.
  GgmlExecutor(std::shared_ptr<const Plan> plan, int threads, RunControl& control, SessionDevice* device);
  ~GgmlExecutor() override;

  std::size_t bind(std::span<std::byte* const> bases, std::span<ggml_backend_buffer* const> buffers) override;
  std::size_t metadata_bytes() const override;

 private:
  struct Stretch;
  struct StageRun;

  void add_host_stage(StageRun& run, std::uint32_t begin, std::uint32_t end);
  std::size_t rewrite(std::uint32_t allocation, std::byte* base) override;
  std::size_t rewrite_on_device(std::uint32_t allocation, std::byte* base, ggml_backend_buffer_t buffer);
  std::size_t bind_weights();

  void run_launches(RunProgress& progress) override;
  void run_stages(RunProgress& progress);
  void queue(const Stage& stage, const StageRun& run);
  void run_host_stage(const StageRun& stage, RunProgress& progress);
  void transfer(const Transfer& transfer, Side to, std::byte* gathered);
  void scatter(const Transfer& transfer, const std::byte* gathered);

  const int threads_;
  SessionDevice* device_;
  std::vector<StageRun> stages_;
  std::vector<ggml_backend_buffer*> buffers_;  // of states that the device keeps, by allocation
  AlignedMemory gathered_;                     // staging buffer for transfers of several parts; each has its own range
  bool weights_bound_ = false;
  std::uint64_t generation_ = 0;
};

}  // namespace graft
