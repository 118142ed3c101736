#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "exec/executable.h"
#include "ggml-backend.h"

namespace graft {

class DeviceGraph;
class SessionDevice;

// The stages of a plan made for a device, for one session: an executable per stage on the CPU, a graph per stage on the
// device, and the transfers between them. Used by Executable, whose interface it follows.
class DeviceRun {
 public:
  // All but the plan must outlive the run.
  DeviceRun(std::shared_ptr<const Plan> plan, int threads, RunControl* control, SessionDevice* device);
  ~DeviceRun();
  DeviceRun(const DeviceRun&) = delete;
  DeviceRun& operator=(const DeviceRun&) = delete;

  std::size_t bind(std::span<std::byte* const> bases);
  bool compute(std::vector<Clock::time_point>* stamps);
  std::size_t launches_finished() const { return finished_; }

  int graph_nodes() const;
  std::size_t metadata_bytes() const;

 private:
  struct StageRun;
  std::size_t rewrite(std::uint32_t allocation, std::byte* base, ggml_backend_buffer_t buffer);
  std::size_t bind_weights(std::span<std::byte* const> bases);
  bool run_stages(std::vector<Clock::time_point>* stamps);
  void transfer(const Transfer& transfer, Side to, std::byte* gathered);
  void scatter(const Transfer& transfer, const std::byte* gathered);

  std::shared_ptr<const Plan> plan_;
  RunControl* control_;
  SessionDevice* device_;
  std::vector<StageRun> stages_;
  AlignedMemory gathered_;  // transfers of several parts pass through it, each at a place of its own
  std::vector<std::byte*> bases_;
  bool weights_bound_ = false;
  std::uint64_t generation_ = 0;
  std::size_t finished_ = 0;
};

}  // namespace graft
