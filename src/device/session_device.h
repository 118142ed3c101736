#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/program_device.h"
#include "graft/graft.h"

struct ggml_cgraph;

namespace graft {

// One session's use of a device: its streams, each a ggml backend of its own, events between them, and one block of
// memory with the arena, inputs, outputs and states of the running plan, as large as the largest of them.
class SessionDevice {
 public:
  // `program` must outlive it. Throws SystemError naming the device if it cannot be started.
  explicit SessionDevice(const ProgramDevice& program);
  ~SessionDevice();
  SessionDevice(const SessionDevice&) = delete;
  SessionDevice& operator=(const SessionDevice&) = delete;

  const ProgramDevice& program() const { return program_; }

  // False once the device was lost, or had too little memory: the session goes on on the CPU.
  bool is_usable() const { return !full_ && !program_.is_lost(); }
  // It had too little memory.
  void leave() { full_ = true; }

  // ProgramDevice::resident() for this session.
  std::vector<ProgramDevice::Resident> resident(std::span<const ProgramDevice::HostBytes> weights);
  // Grows the block to at least this size. `generation` changes whenever the block moves.
  void reserve(std::int64_t bytes);
  std::uint64_t generation() const { return generation_; }
  const DeviceMemory& block() const { return block_; }

  // Makes as many streams and events as a plan needs. Throws SystemError naming the device.
  void provide(std::size_t streams, std::size_t events);

  // Sets the members that describe the device.
  void write_counters(Counters& counters) const;
  void count_stage() { ++counters_.stages; }

  // Transfers are queued on stream 0. Streams run what is queued on them in this order; all is complete after
  // `synchronize`, until when the host's bytes must stay valid. Addresses are offsets in the block. Throws
  // ExecutionError or, when the device is lost, Unavailable, naming the device.
  void upload(std::int64_t device_offset, const std::byte* from, std::int64_t bytes);
  void download(std::int64_t device_offset, std::byte* to, std::int64_t bytes);
  void compute(std::size_t stream, ggml_cgraph* graph);
  // What is queued on the stream after `wait` begins when the last `record` of the event before has been reached.
  void record(std::size_t stream, std::size_t event);
  void wait(std::size_t stream, std::size_t event);
  void synchronize();

 private:
  const ProgramDevice& program_;
  std::vector<ggml_backend_t> streams_;  // at least one
  std::vector<ggml_backend_event_t> events_;
  DeviceMemory block_;
  std::vector<DeviceMemory> old_;  // smaller blocks of before, for ProgramDevice::reads_old_descriptors()
  std::uint64_t generation_ = 0;
  bool full_ = false;
  Counters counters_;
};

}  // namespace graft
