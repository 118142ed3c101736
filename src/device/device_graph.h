#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "ggml-backend.h"
#include "plan/plan.h"

struct ggml_cgraph;
struct ggml_context;

namespace graft {

// Launches of a plan, all of them ggml ops, as a graph for a device (Stage::graphs), in its own ggml context, because
// backends tell graphs apart by the address of the first node. The constructor allocates everything.
class DeviceGraph {
 public:
  DeviceGraph(const Plan& plan, std::span<const std::uint32_t> launches);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // Rewrites the addresses of one allocation id, which is in `buffer`; returns how many. Throws SystemError if the
  // device refuses a tensor.
  std::size_t rewrite(std::uint32_t allocation, std::byte* base, ggml_backend_buffer_t buffer);

  ggml_cgraph* graph() const { return graph_; }
  int nodes() const;
  std::size_t metadata_bytes() const { return metadata_.size(); }

 private:
  struct Builder;
  struct RefreshEntry {
    ggml_tensor* tensor;
    std::int64_t offset;
  };

  AlignedMemory metadata_;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;            // with a new number whenever addresses change
  std::vector<RefreshEntry> entries_;       // grouped by allocation id, sources of views before the views
  std::vector<std::uint32_t> first_entry_;  // entries of id i: [first_entry_[i], first_entry_[i + 1])
};

}  // namespace graft
