#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"
#include "ir/scalar.h"
#include "lowering/launch.h"
#include "pass/pipeline.h"

namespace graft {

// A row of the allocation table: everything with this id moves together when its base address changes.
struct Allocation {
  MemoryKind memory = MemoryKind::arena;
  std::uint32_t index = 0;
  std::int64_t bytes = 0;
  std::uint32_t hits = 0;  // operands of launches in this allocation
  bool mutated = false;    // an input that the run writes
  // Plans of a device other than the CPU. Weights and constants have their own memory there, shared by all sessions;
  // everything else but the states that stay there is in the session's block on the device, at this offset.
  bool on_device = false;
  std::int64_t device_offset = 0;
  bool kept_on_device = false;  // a state with memory of its own there, as Buffer::kept_on_device
};

// An output that may share memory with an input: its first write comes after the last read of the input.
struct Alias {
  std::uint32_t output = 0;  // allocation ids
  std::uint32_t input = 0;
  bool exact = false;  // only the very same memory range: the last reader is the first writer
};

enum class Side : std::uint8_t { host, device };

// Bytes copied between host and device in one call. On the device they are one range of the session's block; on the
// host they may be spread over several allocations.
struct Transfer {
  struct Part {
    std::uint32_t allocation = 0;
    std::int64_t offset = 0;  // bytes, in the allocation
    std::int64_t bytes = 0;
    std::int64_t at = 0;  // bytes, in the transfer
  };
  std::int64_t device_offset = 0;
  std::int64_t bytes = 0;
  std::vector<Part> parts;
};

// What is queued on a stream of the device: a graph, or an event that the stream records or waits for.
struct QueueStep {
  enum class Kind : std::uint8_t { graph, record, wait };
  Kind kind = Kind::graph;
  std::uint8_t stream = 0;
  std::uint32_t index = 0;  // of the graph, or of the event

  bool operator==(const QueueStep&) const = default;
};

// Launches [begin, end) on one side, run after `transfers` to that side. The last stage may have no launches.
struct Stage {
  Side side = Side::host;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::vector<Transfer> transfers;
  // On a device: the launches by graph, and what is queued, in order. Transfers are queued on stream 0: those to the
  // device before, those from it after all of these.
  std::vector<std::vector<std::uint32_t>> graphs = {};
  std::vector<QueueStep> queue = {};
  std::uint32_t events = 0;
  std::uint32_t streams = 0;
};

struct PlanOutput {
  ir::OutputKind kind = ir::OutputKind::user;
  std::uint32_t index = 0;
  bool is_tensor = false;
  TensorDesc desc;      // tensors
  BufferId buffer = 0;  // tensors: buffer of output, state or input memory
  bool is_none = false;
  bool is_text = false;
  Scalar scalar;  // numbers
  std::string text;
};

// Everything needed to run one method at one set of input sizes; immutable, shared by all sessions.
struct Plan : LaunchSequence {
  std::vector<std::int64_t> key;
  std::vector<Allocation> allocations;
  std::vector<Alias> aliases;
  std::vector<PlanOutput> outputs;
  std::int64_t arena_bytes = 0;
  bool layout_was_stored = false;        // taken from a stored plan; the arena planner did not run
  std::int64_t state_bytes_written = 0;  // by one run
  std::vector<Stage> stages;             // empty: all launches run on the CPU
  std::int64_t device_block_bytes = 0;   // of the session's block on the device
  std::vector<PassReport> passes;        // over the plan's launches
};

}  // namespace graft
