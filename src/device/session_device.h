#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/program_device.h"
#include "graft/graft.h"

struct ggml_cgraph;

namespace graft {

// One session's use of a device: its own ggml backend (its stream), and one block of memory with the arena, inputs,
// outputs and states of the running plan, as large as the largest of them.
class SessionDevice {
 public:
  // `program` must outlive it. Throws SystemError naming the device if it cannot be started.
  explicit SessionDevice(const ProgramDevice& program);
  ~SessionDevice();
  SessionDevice(const SessionDevice&) = delete;
  SessionDevice& operator=(const SessionDevice&) = delete;

  const ProgramDevice& program() const { return program_; }

  // Grows the block to at least this size. `generation` changes whenever the block moves.
  void reserve(std::int64_t bytes);
  std::uint64_t generation() const { return generation_; }
  const DeviceMemory& block() const { return block_; }

  // Sets the members that describe the device.
  void write_counters(Counters& counters) const;
  void count_stage() { ++counters_.stages; }

  // Queued on the device in this order; complete after `synchronize`, until when the host's bytes must stay valid.
  // Addresses are offsets in the block. Throws ExecutionError naming the device.
  void upload(std::int64_t device_offset, const std::byte* from, std::int64_t bytes);
  void download(std::int64_t device_offset, std::byte* to, std::int64_t bytes);
  void compute(ggml_cgraph* graph);
  void synchronize();

 private:
  const ProgramDevice& program_;
  ggml_backend_t backend_ = nullptr;
  DeviceMemory block_;
  std::uint64_t generation_ = 0;
  Counters counters_;
};

}  // namespace graft
