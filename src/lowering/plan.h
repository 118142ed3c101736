#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "kernel/kernel.h"
#include "lowering/tensor.h"
#include "op/operator.h"

namespace graft {

// Where a buffer lives. See docs/design.md, "One table for memory".
enum class Segment : std::uint8_t { weight, constant, state, arena, input, output };
std::string_view name(Segment segment);

// One contiguous piece of memory that tensors of a plan are windows of.
struct Buffer {
  Segment segment = Segment::arena;
  std::uint32_t index = 0;       // weight, constant, state, input, output: which one. arena: 0
  std::uint32_t allocation = 0;  // id in Plan::allocations
  std::int64_t offset = 0;       // bytes from the base of that allocation (arena: set by the planner)
  std::int64_t bytes = 0;
  std::int32_t first_use = -1;  // launch that writes it first (arena), -1 when it exists before the run
  std::int32_t last_use = -1;   // last launch that touches it
};

// A row of the table of memory: everything with this id moves together when its base address changes.
struct Allocation {
  Segment segment = Segment::arena;
  std::uint32_t index = 0;
  std::int64_t bytes = 0;
  std::uint32_t hits = 0;  // operands of launches that lie in it
  bool mutated = false;    // an input that the run writes
  // Plans of a device other than the CPU. Weights and constants have memory of their own there, shared by all sessions;
  // everything else lies in the session's block on the device, at this offset.
  bool on_device = false;
  std::int64_t device_offset = 0;
};

// An output that may share memory with an input: it is first written when the input has been read for the last time.
struct Alias {
  std::uint32_t output = 0;  // allocation ids
  std::uint32_t input = 0;
  bool exact = false;  // only as the very same bytes: the last reader is the first writer
};

// How much a changed base costs to rewrite, cheapest first.
enum class RefreshLevel : std::uint8_t { none, io, arena_and_io, all };
RefreshLevel refresh_level(Segment segment);
std::string_view name(RefreshLevel level);

// One kernel launch: a ggml op or a kernel of ours. Pure data.
struct Launch {
  std::int32_t ggml_op = 0;               // enum ggml_op; GGML_OP_CUSTOM when `kernel` is set
  const Kernel* kernel = nullptr;         // static storage: code, not state
  std::array<std::int32_t, 16> params{};  // ggml op_params
  std::vector<std::byte> attrs;           // the POD of a kernel of ours
  std::vector<Tensor> inputs;             // ggml ops: rank at most 4
  std::vector<Tensor> outputs;            // ggml ops: exactly one
  std::int64_t scratch_bytes = 0;
  BufferId scratch = 0;       // valid when scratch_bytes > 0
  std::uint32_t inplace = 0;  // inputs (by bit) whose memory output 0 may take over
  std::uint32_t node = 0;     // index into Plan::node_names
  bool serial = false;        // a kernel of ours that runs on one thread: it has too little work for more
  bool on_device = false;     // runs on the plan's device, not on the CPU
  // A kernel of ours where ggml's op was wanted: what ggml lacks. Static storage.
  std::string_view refused;
};

// The POD of a kernel of ours as it is, or its first part where it begins with an Attrs.
template <typename Attrs>
Attrs attrs_of(const Launch& launch) {
  GRAFT_ASSERT(launch.attrs.size() >= sizeof(Attrs));
  Attrs attrs;
  std::memcpy(&attrs, launch.attrs.data(), sizeof(attrs));
  return attrs;
}
template <typename Attrs>
void set_attrs(Launch& launch, const Attrs& attrs) {
  GRAFT_ASSERT(launch.attrs.size() >= sizeof(Attrs));
  std::memcpy(launch.attrs.data(), &attrs, sizeof(attrs));
}

// What a kernel of ours can tell of a launch before memory is bound: its context with descriptors and attributes alone.
// Refers to the launch.
class DescribedLaunch {
 public:
  explicit DescribedLaunch(const Launch& launch) {
    for (const Tensor& t : launch.inputs) inputs_.push_back(t.desc);
    for (const Tensor& t : launch.outputs) outputs_.push_back(t.desc);
    context_.input_descs = inputs_;
    context_.output_descs = outputs_;
    context_.attr_bytes = launch.attrs.data();
  }
  DescribedLaunch(const DescribedLaunch&) = delete;
  DescribedLaunch& operator=(const DescribedLaunch&) = delete;
  const KernelContext& context() const { return context_; }

 private:
  std::vector<TensorDesc> inputs_, outputs_;
  KernelContext context_;
};

enum class Side : std::uint8_t { host, device };

// Bytes that go from one side to the other in one copy. The device's bytes are one range of the session's block; on the
// host they may lie in several allocations.
struct Transfer {
  struct Piece {
    std::uint32_t allocation = 0;
    std::int64_t offset = 0;  // bytes, in the allocation
    std::int64_t bytes = 0;
    std::int64_t at = 0;  // bytes, in the transfer
  };
  std::int64_t device_offset = 0;
  std::int64_t bytes = 0;
  std::vector<Piece> pieces;
};

// Launches [begin, end) on one side, after `transfers` to that side. The last stage of a plan may have no launches.
struct Stage {
  Side side = Side::host;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::vector<Transfer> transfers;
};

// Which code runs a launch: "ggml MUL_MAT" or "graft layer_norm".
std::string kernel_name(const Launch& launch);
// Why that code and not another: the layout of a weight, the inner loops, what ggml refused. For `graft inspect`.
std::string explain_kernel(const Launch& launch);

// Puts back what a launch overwrote in a state, from a copy made before.
struct UndoLaunch {
  Launch launch;
  std::uint32_t after = 0;  // how many launches must have finished for the copy to be there
};

struct PlanOutput {
  ir::OutputKind kind = ir::OutputKind::user;
  std::uint32_t index = 0;
  bool is_tensor = false;
  TensorDesc desc;      // tensors
  BufferId buffer = 0;  // tensors: buffer of segment output, state or input
  bool is_none = false;
  bool is_text = false;
  Scalar scalar;  // numbers
  std::string text;
};

// Everything a run of one method at one set of input shapes needs; immutable, shared by all sessions.
struct Plan {
  std::vector<std::int64_t> key;
  std::vector<Allocation> allocations;
  std::vector<Alias> aliases;
  std::vector<Buffer> buffers;
  std::vector<Launch> launches;
  // From here on launches write states and mutated inputs with values that are ready: they run to the end once the
  // first of them runs, so that a run that is stopped leaves all as it was.
  std::uint32_t commit_begin = 0;
  std::vector<UndoLaunch> undo;  // of states written before; run last to first when the run does not reach its end
  std::vector<PlanOutput> outputs;
  std::vector<std::string> node_names;
  std::int64_t arena_bytes = 0;
  bool layout_was_stored = false;        // the planner had nothing to do
  std::int64_t state_bytes_written = 0;  // by one run
  std::vector<Stage> stages;             // empty: all launches run on the CPU
  std::int64_t device_block_bytes = 0;   // of the session's block on the device
};

}  // namespace graft
