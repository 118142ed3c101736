#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned.h"
#include "exec/refresh_table.h"
#include "exec/run_control.h"
#include "exec/thread_pool.h"
#include "plan/plan.h"

struct ggml_cgraph;
struct ggml_context;

namespace graft {

// Launches of ggml's ops as a graph for ggml's CPU backend, with the addresses of one session.
class CpuGraph {
 public:
  // The plan must outlive the graph. Throws SystemError.
  CpuGraph(const Plan& plan, std::span<const Launch> launches, int threads);
  ~CpuGraph();
  CpuGraph(const CpuGraph&) = delete;
  CpuGraph& operator=(const CpuGraph&) = delete;

  std::size_t rewrite(std::uint32_t allocation, std::byte* base) const { return addresses_.rewrite(allocation, base); }

  // Runs all ops on ggml's threads of the pool, until the progress stops them.
  void run(ThreadLease& lease, RunProgress& progress);

  std::size_t metadata_bytes() const;

 private:
  struct Builder;

  const int threads_;
  AlignedMemory metadata_;
  AlignedMemory work_;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  RefreshTable addresses_;
};

}  // namespace graft
