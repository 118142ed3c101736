#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/kernel.h"
#include "lowering/tensor.h"

namespace graft {

// The kind of memory of a buffer. See docs/design.md, "One table for memory".
enum class MemoryKind : std::uint8_t { weight, constant, state, arena, input, output };
std::string_view name(MemoryKind kind);

// One contiguous range of memory that tensors of a plan are windows of.
struct Buffer {
  MemoryKind memory = MemoryKind::arena;
  std::uint32_t index = 0;       // index among weights, constants, states, inputs or outputs. arena: 0
  std::uint32_t allocation = 0;  // id in Plan::allocations (set by the planner)
  std::int64_t offset = 0;       // bytes from the base of that allocation (arena: set by the planner)
  std::int64_t bytes = 0;
  // A state that the device keeps between runs: only launches there touch it.
  bool kept_on_device = false;
  std::int32_t first_use = -1;  // launch that writes it first (arena), -1 when it exists before the run
  std::int32_t last_use = -1;   // last launch that touches it
};

// One kernel launch: a ggml op or one of graft's kernels. Pure data.
struct Launch {
  std::int32_t ggml_op = 0;               // enum ggml_op; GGML_OP_CUSTOM when `kernel` is set
  const Kernel* kernel = nullptr;         // static storage: code, not state
  std::array<std::int32_t, 16> params{};  // ggml op_params
  std::vector<std::byte> attrs;           // the POD attributes of one of graft's kernels
  std::vector<Tensor> inputs;             // ggml ops: rank at most 4
  std::vector<Tensor> outputs;            // ggml ops: exactly one
  std::int64_t scratch_bytes = 0;
  BufferId scratch = 0;       // valid when scratch_bytes > 0
  std::uint32_t inplace = 0;  // inputs (bit mask) whose memory output 0 may take over
  BufferId written = 0;       // of output 0, before it took over that of an input (merge_inplace)
  std::uint32_t node = 0;     // index into LaunchSequence::node_names
  bool serial = false;        // one of graft's kernels, on one thread: too little work for a second
  bool on_device = false;     // runs on the plan's device, not on the CPU
  bool on_host_too = false;   // of a device: ggml's CPU backend has the op as well
  bool leaves_graph = false;  // of a device: later launches of other graphs, or of the host, use the result
  // What ggml lacks, when one of graft's kernels runs instead of a ggml op. Static storage.
  std::string_view refused;
};

// A kernel context of a launch before memory is bound: descriptors and attributes only. Refers to the launch.
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

// What the launch's kernel declares to passes; null for ggml's ops and for kernels that declare nothing.
inline const Fusion* fusion_of(const Launch& launch) {
  return launch.kernel != nullptr && !launch.on_device ? launch.kernel->fusion : nullptr;
}

// Which code runs a launch: "ggml MUL_MAT" or "graft layer_norm".
std::string kernel_name(const Launch& launch);
// Why that code: the layout of a weight, the instruction set, what ggml refused. For `graft inspect`.
std::string explain_kernel(const Launch& launch);

// Launches [begin, end) of a group. Several run on one thread, in order; one may be divided into several tasks.
struct Branch {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  int tasks = 1;    // of each phase; 1 with several launches
  double work = 0;  // as relative_work(), of all launches
};

// Branches that run side by side, since none depends on another and each has too little work for all threads. Their
// launches follow each other in the sequence, which is also an order that they can run in one by one.
struct LaunchGroup {
  std::vector<Branch> branches;  // at least two, by falling work

  std::uint32_t begin() const { return branches.front().begin; }
  std::uint32_t end() const { return branches.back().end; }
};

// Streams of a device at most.
inline constexpr std::size_t kMaxStreams = 4;

// Where and when a launch of a StreamSection runs. A stream runs its launches in the order of the sequence.
struct StreamPlace {
  std::uint8_t stream = 0;
  std::uint32_t position = 0;                     // among the section's launches in that stream
  std::vector<std::uint32_t> waits;               // launches of other streams that end before it begins
  std::array<std::uint32_t, kMaxStreams> done{};  // by stream: how many of the section's launches end before it begins
};

// Launches that a device runs in several streams, side by side as far as nothing waits. All launches before the section
// end before it begins, and all of it ends before what comes after begins. The sequence is also an order in which its
// launches can run one by one.
struct StreamSection {
  std::uint32_t begin = 0;
  std::vector<StreamPlace> places;  // of launches begin, begin + 1, ...

  std::uint32_t end() const { return begin + static_cast<std::uint32_t>(places.size()); }
  const StreamPlace& place(std::size_t launch) const { return places[launch - begin]; }
  // Whether the first of two launches of the section ends before the other one begins.
  bool in_order(std::size_t first, std::size_t second) const {
    const StreamPlace& earlier = place(first);
    return place(second).done[earlier.stream] > earlier.position;
  }
};

// Restores what a launch overwrote in a state, from a copy made before.
struct UndoLaunch {
  Launch launch;
  std::uint32_t after = 0;  // number of launches after which the copy exists
};

// What a node computes, or the view that it is of that. A fused launch writes the result of its last node, under the
// name of its first or last one.
struct NodeResult {
  std::uint32_t node = 0;   // index into LaunchSequence::node_names
  std::uint32_t index = 0;  // which of the node's results
  Tensor tensor;
};

// The launches of a method at one set of input sizes, in execution order, and the buffers that their tensors are
// windows of. Operators lower to it, the passes over launches rewrite it (pass/pipeline.h), and the planner makes a
// Plan of it.
struct LaunchSequence {
  std::vector<Buffer> buffers;
  std::vector<Launch> launches;
  // From here on launches write states and mutated inputs with finished values: once the first of them runs, all run to
  // the end, so that a cancelled run leaves everything as it was.
  std::uint32_t commit_begin = 0;
  std::vector<LaunchGroup> groups;      // in order, before commit_begin
  std::vector<StreamSection> sections;  // of a device; in order, before commit_begin
  std::vector<UndoLaunch> undo;         // of states written before; run in reverse when the run does not complete
  std::vector<std::string> node_names;
  std::vector<NodeResult> results;  // in program order; of a plan those that launches write to the arena or to outputs
};

}  // namespace graft
