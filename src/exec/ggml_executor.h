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

class ThreadPool;

// Of plans with ops of ggml's: on a device in stages, with transfers between them, on the CPU in stretches. A stretch
// is either ops of ggml's, which are a graph, or kernels of graft's. On the CPU ggml's own pool computes the graphs,
// and where there are some the kernels between them run on one thread: ggml's workers spin for milliseconds after a
// graph and would take the cores from other workers.
class GgmlExecutor final : public Executor {
 public:
  // `device`: null for a plan without stages.
  GgmlExecutor(std::shared_ptr<const Plan> plan, int threads, RunControl& control, SessionDevice* device);
  ~GgmlExecutor() override;

  std::size_t bind(std::span<std::byte* const> bases) override;
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
  void run_host_stage(const StageRun& stage, RunProgress& progress) const;
  void transfer(const Transfer& transfer, Side to, std::byte* gathered);
  void scatter(const Transfer& transfer, const std::byte* gathered);

  const int threads_;
  SessionDevice* device_;
  std::vector<StageRun> stages_;
  AlignedMemory gathered_;  // transfers of several parts pass through it, each at a place of its own
  bool weights_bound_ = false;
  std::uint64_t generation_ = 0;
};

}  // namespace graft
