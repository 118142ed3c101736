#pragma once

// graft: runs torch.export programs on ggml. This header loads and runs programs; beside it, as needed: llm.h and
// tokenizer.h (language models), adapter.h (LoRA), pipeline.h (runs of several sessions), flow.h (sessions connected by
// data), registry.h (which models a process has loaded), op.h (custom operators), predicate.h (which nodes graft runs,
// for exporters) and quantize.h (weights in block formats).
//
//   auto program = graft::Program::load("model.pte");
//   graft::Session session(program);
//   std::vector<graft::Value> outputs = session.run("forward", inputs);

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/dtype.h"
#include "graft/error.h"
#include "graft/export.h"
#include "graft/limits.h"
#include "graft/tensor.h"

namespace graft {

class Adapter;  // adapter.h

// An input or output of a method: a tensor, a number, a string or None.
struct Value {
  enum class Kind : std::uint8_t { none, tensor, integer, real, boolean, text };
  Kind kind = Kind::none;
  TensorView tensor;   // contiguous, aligned to its element
  std::int64_t i = 0;  // integer, boolean
  double f = 0;        // real
  std::string text;
  std::shared_ptr<void> owner;  // keeps tensor.data alive when graft allocated it; null for the caller's memory

  static Value of(const TensorView& t) { return {Kind::tensor, t, 0, 0, {}, {}}; }
  static Value of(std::int64_t v) { return {Kind::integer, {}, v, 0, {}, {}}; }
  static Value of(double v) { return {Kind::real, {}, 0, v, {}, {}}; }
  static Value of(bool v) { return {Kind::boolean, {}, v ? 1 : 0, 0, {}, {}}; }
};

// The types and sizes that a method takes and returns. Unknown maxima are the largest int64.
struct DimInfo {
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::string expr;  // the exporter's symbolic expression, for display
};
struct ValueInfo {
  std::string name;
  Value::Kind kind = Value::Kind::tensor;
  DType dtype = DType::f32;
  std::vector<DimInfo> dims;
};
struct MethodInfo {
  std::string name;
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  std::string in_spec;  // pytree specs as torch.utils._pytree writes them; empty when unknown
  std::string out_spec;
  // 1: a run executes one plan. More: sizes depend on data or parts are conditional; a run takes this many steps, and
  // the sizes of its outputs may be known only after it.
  std::size_t segments = 1;
  // Whether all inputs and outputs have the same dynamic size first, and each of these rows is known to be computed
  // from that row alone: several calls may be one, on their rows one after the other.
  bool independent_rows = false;
};

// Counts since the session was made. All are monotonic except the *_bytes marked "now".
struct Counters {
  std::uint64_t runs = 0;
  std::uint64_t plan_hits = 0;     // calls served by a cached plan
  std::uint64_t plan_misses = 0;   // calls that made a plan
  std::uint64_t graphs_built = 0;  // plans instantiated: each session does it for each plan that it runs
  std::uint64_t rewrites = 0;      // tensor addresses rewritten because a buffer moved
  std::uint64_t kernels_launched = 0;
  std::uint64_t inputs_described = 0;  // inputs whose dtypes and sizes were read: once per call and per segment of it
  std::uint64_t inputs_padded = 0;     // inputs copied into padded memory (SessionOptions::buckets)
  std::uint64_t io_copies = 0;         // inputs and outputs copied because they could not be bound in place
  std::uint64_t io_bytes_copied = 0;
  std::uint64_t arena_allocations = 0;
  std::uint64_t arena_bytes = 0;  // now
  std::uint64_t state_bytes = 0;  // now; of shared states, those that this session was the first to use
  std::uint64_t state_bytes_written = 0;
  std::uint64_t staging_bytes = 0;  // now
  // Programs on a device other than the CPU. A stage is a part of a run on one device.
  std::uint64_t stages = 0;
  std::uint64_t uploads = 0;  // copies to the device; weights not counted
  std::uint64_t upload_bytes = 0;
  std::uint64_t downloads = 0;
  std::uint64_t download_bytes = 0;
  // Copies of states that the device keeps between runs: none but for calls on their bytes here.
  std::uint64_t state_uploads = 0;
  std::uint64_t state_downloads = 0;
  std::uint64_t device_bytes = 0;    // now; weights and states that it keeps not counted
  std::uint64_t device_streams = 0;  // now
  std::uint64_t device_graphs = 0;   // queued on streams
  std::uint64_t device_events = 0;   // recorded by streams, for others to wait for
  std::uint64_t device_losses = 0;   // 1: the device was lost or had no memory, and runs are on the CPU since then
};

// Precision of f32 matrix products, with the names of torch.set_float32_matmul_precision. highest: f32. medium:
// operands may be rounded to bf16 where the CPU has bf16 dot products (AVX-512 BF16), accumulated in f32; products of
// at most 8 rows, as in decoding, stay in f32.
enum class MatmulPrecision : std::uint8_t { highest, medium };

// "highest" or "medium"; "high", which lets PyTorch use formats more exact than bf16, means highest. Throws
// InvalidArgument for any other name.
GRAFT_API MatmulPrecision matmul_precision_named(std::string_view name);

struct LoadOptions {
  // Files with weights that the package names but does not hold: .ptd, safetensors, the *.index.json of a sharded
  // safetensors checkpoint, or GGUF. A weight is looked up by its key, then by its fully qualified name. When this and
  // `tensors` are empty: the files that the package itself names (as export_llm writes with weights="external").
  std::vector<std::string> weights;
  // Weights in the caller's memory, by key or fully qualified name. They are read in place and take precedence over
  // files. For an f32 weight f16 and bf16 are accepted too, as in files. Throws InvalidArgument when dtype or sizes are
  // not the weight's, when it is not aligned to its element, or when the program has no such weight.
  std::map<std::string, TensorView, std::less<>> tensors;
  // Held as long as the program: owns the memory of `tensors` and of load_memory(). Null: the caller keeps it alive.
  std::shared_ptr<const void> keep_alive;
  // Methods to load; empty: all. Throws NotFound for one that the package does not have. Loading a method costs time
  // and the memory of its graph. Ignored by from_ir().
  std::vector<std::string> methods;
  std::string device;  // "" means GRAFT_DEVICE or "cpu"; an unknown name throws NotFound
  // Plans kept, least recently used dropped first. Programs of the same files and options share them on the CPU.
  std::size_t max_plans = 64;
  // Limits for untrusted packages: a load beyond them, or a plan (constant folding at load makes one too), throws
  // Unsupported naming the limit. The command line sets those of bytes to the memory of the machine.
  std::int64_t max_file_bytes = INT64_MAX;         // of the package, and of each file of weights
  std::int64_t max_nodes = std::int64_t{1} << 20;  // of all methods and sub-graphs
  std::int64_t max_graph_calls = 4096;             // of a method: it and the sub-graphs that it calls, each time
  std::int64_t max_state_bytes = INT64_MAX;        // of a session's mutable buffers, but for a KV cache
  std::int64_t max_plan_bytes = INT64_MAX;         // of one intermediate tensor or output, and of the arena
  std::int64_t max_plan_launches = std::int64_t{1} << 20;  // of a plan
  TextLimits text;                                         // of LanguageModel::load()
  // Map files, so that processes share their pages and only what is used is read. A mapped file that somebody truncates
  // ends the process by SIGBUS when a page that is gone is touched. False: files are read into memory by the load,
  // which fails when one becomes shorter meanwhile; nothing is shared, and packed_files does not apply.
  bool map = true;
  // Pack weights for graft's kernels: those in block formats with a kernel for this CPU, and f32 weights of linear
  // layers that are at most 512 MiB together, unless `tensors` holds weights, since these may change. Otherwise
  // products read weights as stored, block formats through ggml.
  bool pack_weights = true;
  // False selects the plain lowering, for comparisons: ggml's op wherever ggml has one that computes what PyTorch
  // means, on ggml's own threads, weights as stored; graft's kernels for the rest. Stored plans are not used then.
  bool fast_kernels = true;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;  // of linear layers and matrix products, on the CPU
  bool stored_plans = true;                                     // use the plans that the package holds
  bool verify_hashes = false;                                   // check each weight's SHA-256 (reads every weight once)
  // Look for packed weights and folded constants that pack() wrote beside the package, and for those of the folder.
  // They are mapped, so that processes share their pages. A file for another build, instruction set or
  // matmul_precision, and a damaged one, is not used: ProgramStats::packed_refusal. With verify_hashes their bytes are
  // compared, too.
  bool packed_files = true;
  // Where loads write what they make of weights, 64 KiB and more each, for later loads of any process; "" means
  // GRAFT_PACKED_FOLDER, or nowhere. It is made if it is not there. Who can write there can change results.
  std::string packed_folder;
  // Runs may choose adapters (graft/adapter.h) of at most this rank, each row of a batch its own. 0: they may not, and
  // plans are those of a program without adapters.
  std::int64_t max_adapter_rank = 0;
  // A method with data-dependent sizes is cut into segments. Nodes that could run before a cut but are needed only
  // after it move behind it when there are at most this many.
  std::size_t merge_segments = 4;
  // Of from_ir(), for delegates: names the package that the delegate comes from, with equal names for loads of one
  // package. They share what is made of weights where keys and bytes of these are equal, which is compared, and plans.
  std::string delegate_of;
  // Called as each phase of the load begins, with its name (PhaseStats::name). An exception from it ends the load and
  // propagates unchanged.
  std::function<void(std::string_view phase)> on_phase;
};

// One phase of a program's life. Those of the load come in this order and happen once: "parse" (containers and graphs
// decoded), "verify" (graphs checked, every node checked by the predicate), "weights" (found and placed), "constants"
// (folded), "states" (matched across methods), "shrink" (what only loading needed is freed). An error of the load says
// its phase. "plans" and "launch sequence" follow, whenever sessions run new sizes.
struct PhaseStats {
  std::string name;
  std::uint64_t times = 0;
  double milliseconds = 0;  // of all times together
  // parse: host memory of the graphs. verify: none. weights, constants: of their tensors. states: of one session's.
  // shrink: freed. plans: of the plans. launch sequence: of graphs and launch records. All times together.
  std::uint64_t bytes = 0;
};

// What a program holds. Bytes are bytes of memory, mapped or allocated; those marked "now" may go down.
struct ProgramStats {
  std::vector<PhaseStats> phases;
  std::uint64_t weight_count = 0;     // distinct ones: tied weights count once
  std::uint64_t weight_bytes = 0;     // of these; the same for any number of methods, plans and sessions
  std::uint64_t given_bytes = 0;      // of these, in memory of the caller
  std::uint64_t copied_count = 0;     // of these, copied because of their alignment in the file
  std::uint64_t copied_bytes = 0;     // the same in bytes
  std::uint64_t converted_count = 0;  // copies in the dtype of their values of weights stored in another type
  std::uint64_t converted_bytes = 0;  // the same in bytes
  std::uint64_t packed_count = 0;     // packed for graft's kernels; used instead of the bytes in the file
  std::uint64_t packed_bytes = 0;     // the same in bytes
  std::uint64_t constant_bytes = 0;   // folded constants
  // Of copies, conversions, packed weights and constants, those that a program with the same weights had made before.
  std::uint64_t shared_bytes = 0;
  // Of packed weights and constants, those that are mapped from files (LoadOptions::packed_files, packed_folder).
  std::uint64_t packed_file_bytes = 0;
  std::uint64_t packed_files_written = 0;  // to the folder
  std::uint64_t packed_files_refused = 0;  // not used, or not written
  std::string packed_refusal;              // what was wrong with the last of these
  std::uint64_t released_bytes = 0;        // of the weights, those used only by constant folding: not read any more
  std::uint64_t graph_bytes = 0;           // now: what only planning needs; 0 after shrink()
  std::uint64_t graph_bytes_freed = 0;     // by shrink() so far
  std::uint64_t graphs_read_again = 0;     // for planning after shrink()
  std::uint64_t plans_made = 0;            // by the planner
  std::uint64_t plans_loaded = 0;          // taken from the package
  std::uint64_t plans_stale = 0;           // of the package, made by another version or for another machine: not used
};

// A loaded package: verified graphs, weights mapped from the file, folded constants. Immutable; any number of sessions
// and threads may share it. Programs of the same files, by path, inode, size and time, share the mappings, what is made
// of the weights, and plans; the last of them frees it (graft/registry.h).
class GRAFT_API Program {
 public:
  // Reads a .pte. Throws NotFound, SystemError, InvalidProgram, Unsupported or InvalidArgument; the message names the
  // phase of the load.
  // Weights stay in the mapped files. Replacing one of these by rename() (as graft.export does) is safe at any time;
  // writing into one changes the weights of programs that have it mapped, and truncating one makes the next touch of a
  // lost page a SIGBUS (but see LoadOptions::map). All other reads after the load fail with an error instead: see
  // shrink().
  static std::shared_ptr<const Program> load(const std::string& path, const LoadOptions& options = {});
  // As load(), for a .pte in memory, aligned to 16 bytes. LoadOptions::keep_alive, or the caller, keeps it alive as
  // long as the program.
  static std::shared_ptr<const Program> load_memory(std::span<const std::byte> package,
                                                    const LoadOptions& options = {});
  // A program from IR bytes (schema/graft.fbs), which it copies, and its weights by key, which must outlive it.
  // LoadOptions::weights and tensors do not apply: `weights` supplies all.
  // LoadOptions::keep_alive may own their memory. Programs share only as LoadOptions::delegate_of says.
  using WeightLookup = std::function<std::span<const std::byte>(std::string_view key)>;
  static std::shared_ptr<const Program> from_ir(std::span<const std::byte> blob, const WeightLookup& weights,
                                                const LoadOptions& options = {});
  ~Program();

  std::vector<std::string> method_names() const;
  // Throws NotFound, listing the methods.
  const MethodInfo& method(std::string_view name) const;
  // What `graft inspect --json` prints, as JSON text.
  // With `whole_plans`, each plan lists its launches in order and the logical address of every tensor.
  std::string describe(bool whole_plans = false) const;
  ProgramStats stats() const;

  // Frees the graphs, which only planning needs. From then on a plan for new sizes reads them from the package again
  // and frees them afterwards; constants are not computed again. If the file has changed on disk since the load,
  // planning throws InvalidProgram, and cached plans still run. May be called from any thread while sessions run.
  void shrink() const;

 private:
  friend struct Internal;
  struct Impl;
  explicit Program(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes what loads of a package make of its weights (packed, converted, copied; folded constants) to a file that later
// loads map: by default beside the package, under its name and ".packed". Options as of those loads. The file holds
// what this CPU uses, under LoadOptions::matmul_precision. Each weight's SHA-256 is compared with the package's;
// weights in other files are known by file, size and time. Throws what Program::load throws, InvalidProgram for a
// weight that is not what the package states, Unsupported for a device, SystemError if it cannot be written. Replaces a
// file by rename(); a program without packed weights has none.
struct PackedInfo {
  std::string path;
  std::size_t entries = 0;  // 0: nothing was written
  std::uint64_t bytes = 0;
};
GRAFT_API PackedInfo pack(const std::string& package, const std::string& output = "", const LoadOptions& options = {});

// Memory for the intermediate tensors of sessions that never run at the same time, as large as the largest plan needs.
// A session without one has its own.
class GRAFT_API Arena {
 public:
  Arena();
  ~Arena();
  std::size_t bytes() const;  // now; grows with the plans that run in it

 private:
  friend struct Internal;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// How the rows of a KV cache are stored. computed: as the model computes them. q8_0 and q4_0: ggml's blocks of 32
// elements, 8 or 4 bits each and a scale in f16.
enum class KvType : std::uint8_t { computed, f32, f16, bf16, q8_0, q4_0 };

GRAFT_API std::string_view name(KvType type);
// Throws InvalidArgument, listing the names.
GRAFT_API KvType kv_type_named(std::string_view name);

// The KV cache of a program with graft::attention nodes. Its memory is reserved at once and touched as it fills.
struct KvOptions {
  std::int64_t rows = 1;       // sequences: the largest batch
  std::int64_t length = 4096;  // tokens of each
  KvType type = KvType::computed;
  // Layers with a window of the last `w` tokens keep w - 1 + window_slack of them in a ring buffer, where that is less
  // than `length`: window_slack tokens may be taken back. A run of more tokens keeps a copy of its keys and values
  // until it ends.
  std::int64_t window_slack = 512;
  std::int64_t encoder_length = 4096;  // of models with an encoder: most tokens of the encoder output

  bool operator==(const KvOptions&) const = default;
};

// Memory for the mutable buffers of sessions that share them by name: methods that come as programs of their own and
// belong to one model, such as the delegates of one ExecuTorch program. A session without one has its own.
class GRAFT_API States {
 public:
  States();
  ~States();

 private:
  friend struct Internal;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Sizes that a dimension is padded up to, so that many sizes share few plans: inputs are padded at the end of the
// dimension, outputs are cut back to the given size. In a method with a cache of keys and values it must be the
// tokens', which are padded on their left, with -1 as their positions in the cache; inputs of indices into the
// dimension follow. A size above the largest bucket has a plan of its own. Masking the padding is up to the model: a
// mask input is padded with zeros, and the other positions get the results without padding as far as the model applies
// its mask.
struct Buckets {
  std::string dimension;            // as the program calls it ("s77"), or an input and its dimension ("input_ids.1")
  std::vector<std::int64_t> sizes;  // ascending
  std::map<std::string, double, std::less<>> padding;  // padding value by input name; default 0
};

struct SessionOptions {
  int threads = 0;                // 0: GRAFT_THREADS, else the CPUs this process may use
  std::size_t max_graphs = 16;    // instantiated plans kept, least recently used dropped first
  bool strict_zero_copy = false;  // an input or output that would need a copy throws InvalidArgument instead
  std::shared_ptr<Arena> arena;   // shared with other sessions; two of them running at once: the second throws Busy
  // Shared with other sessions; two of them in a call at once: the second throws Busy. The constructor throws
  // InvalidArgument where a buffer of the same name has another dtype or other sizes, or the cache other KvOptions;
  // kv_resize() throws InvalidArgument. A buffer starts with the value that the program of the first session to use it
  // gives it.
  std::shared_ptr<States> states;
  std::size_t queue_capacity = 16;  // runs that may wait in submit()
  // Seed of the random numbers that the program draws. They depend on it and on how many runs the session has finished,
  // not on the number of threads; they differ from those of PyTorch's generators.
  std::uint64_t seed = 0;
  // The constructor throws InvalidArgument for sizes that are not ascending or outside the dimension's range, for a
  // dimension that no input has, and where padding cannot be undone: a method that writes inputs or states other than a
  // cache of keys and values; one that has an output with a size computed from the dimension's, or hands such a tensor
  // to an operator between its segments; where every method that has the dimension computes the tokens' positions in
  // the cache itself. Where only some do, these run at the sizes that they are given.
  std::vector<Buckets> buckets;
  KvOptions kv;
};

// May be called from any thread to stop the run in progress at its next node.
class GRAFT_API CancelToken {
 public:
  CancelToken();
  void cancel() const;
  void reset() const;
  bool cancelled() const;
  const std::atomic<bool>* flag() const { return flag_.get(); }

 private:
  std::shared_ptr<std::atomic<bool>> flag_;
};

// One launch of a profiled run. Times are in nanoseconds from the start of the call; before the first launch its memory
// is bound.
struct NodeTiming {
  std::string node;    // name of the PyTorch node
  std::string kernel;  // "ggml MUL_MAT", "graft layer_norm"
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

// What a run looks for in the floating-point tensors of each launch.
enum class Check : std::uint8_t { none, nan, finite };  // nan: NaN; finite: NaN and infinities

// A result of a PyTorch node that has memory of its own, or is a view of such a one. Results that fusions left in no
// memory are never seen, nor are those that are written to states and inputs in place.
struct ObservedResult {
  std::string_view node;
  std::size_t index = 0;  // which of the node's results
  TensorView value;       // a contiguous copy, valid during the call
};

// A launch that has ended.
struct ObservedLaunch {
  std::string_view node;  // name of a PyTorch node: of several that were fused, the first or the last
  std::string kernel;
  std::span<const TensorView> outputs;      // contiguous copies, valid during the call
  std::span<const ObservedResult> results;  // those of all nodes that are complete with this launch
};

struct RunOptions {
  // When given: filled with one entry per launch. The run takes an instrumented loop; without it the clock is not read.
  std::vector<NodeTiming>* profile = nullptr;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  const CancelToken* cancel = nullptr;
  // Among runs that wait for CPUs, which happens while as many runs of several threads compute as there are CPUs, the
  // highest is next; equal ones in the order of their calls.
  int priority = 0;
  // Stops the run at the first launch that makes what is looked for out of inputs that have none of it: ExecutionError
  // names node, element and the inputs' ranges, and states are as before. Reads every tensor twice: for finding faults.
  // A mask of -inf that the program makes is found by `finite`. Throws Unsupported, as `observe` does, where other
  // kernels than graft's run: on devices, and for nodes that only ggml computes.
  Check check = Check::none;
  // Called after each launch, in order, on any thread, one at a time. What it throws ends the run with ExecutionError.
  std::function<void(const ObservedLaunch&)> observe;
  // Memory that the caller lends for the intermediate tensors of this run: at least PlanInfo::arena_bytes, aligned to
  // 64 bytes. Empty: the session's arena.
  std::span<std::byte> arena;
  // Row b of the batch uses row kv_rows[b] of the KV cache; empty: row b. One entry per row of the batch, no row twice;
  // else the run throws InvalidArgument or ExecutionError. Not part of the plan's key: any choice of rows shares one
  // plan.
  std::span<const std::int64_t> kv_rows;
  // Adapters that take part: one for all rows, or adapters[b] for row b of the batch; null: none. They must stay alive
  // until the run ends. Not part of the plan's key. Throws InvalidArgument for an adapter of another program, and
  // ExecutionError where the batch has another size or a layer's rows are not those of the batch.
  std::span<const Adapter* const> adapters;
};

// A plan's memory, by allocation; ids as `graft inspect --plan` lists them.
struct AllocationInfo {
  std::string_view memory;  // "weight", "constant", "state", "arena", "input" or "output"
  std::uint32_t index = 0;  // which weight, state, input, ...
  std::int64_t bytes = 0;
  std::uint32_t entries = 0;   // addresses that are rewritten when it moves
  const void* base = nullptr;  // its address in the last run; null before the first
};
struct PlanInfo {
  std::int64_t arena_bytes = 0;
  std::size_t metadata_bytes = 0;  // of the instantiated plan: ggml graph and launch records
  std::size_t launches = 0;
  std::vector<AllocationInfo> allocations;  // by allocation id
};

// A mutable buffer of the program as one session holds it.
struct StateView {
  std::string name;  // fully qualified, as in the PyTorch module
  // The session's own memory: valid as long as the session, changed by its runs. Of a state that a device keeps, its
  // bytes at this call: to read or write them after a run, ask again.
  TensorView tensor;
};

// One caller's use of a program: states, arena, bound addresses. Concurrent calls throw Busy: make one session per
// thread. Calls on a closed session throw InvalidArgument.
class GRAFT_API Session {
 public:
  explicit Session(std::shared_ptr<const Program> program, const SessionOptions& options = {});
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Runs a method; tensor outputs are freshly allocated and owned by the returned values.
  std::vector<Value> run(std::string_view method, std::span<const Value> inputs, const RunOptions& options = {});

  // Dtypes and shapes of the outputs for these inputs (data pointers are not read); makes the plan when there is none.
  // Tensor data pointers in the result are null; numbers computed from shapes are filled in.
  std::vector<Value> output_values(std::string_view method, std::span<const Value> inputs);
  // Runs into memory of the caller: each tensor output must have data, dtype and shape as `output_values` says.
  void run_into(std::string_view method, std::span<const Value> inputs, std::span<Value> outputs,
                const RunOptions& options = {});
  // Runs into memory that `place` provides: it is called once, with the outputs as `output_values` describes them, and
  // sets the data pointer of each tensor. It is called before the run, but for a method in segments after it, and the
  // outputs are then copied (with `strict_zero_copy`, InvalidArgument is thrown instead, before the run). The session
  // is in use meanwhile. An exception from `place` ends the call and propagates unchanged.
  using PlaceOutputs = std::function<void(std::span<Value> outputs)>;
  std::vector<Value> run_into(std::string_view method, std::span<const Value> inputs, const PlaceOutputs& place,
                              const RunOptions& options = {});

  // As run(), in the background, in the order of submission; tensors of the inputs must stay valid until the run ends.
  // Throws Busy when `queue_capacity` runs wait already. The future throws the errors of the run.
  std::future<std::vector<Value>> submit(std::string method, std::vector<Value> inputs, RunOptions options = {});
  // Finishes the submitted runs and frees all memory. Called by the destructor.
  void close();

  // The plan for these inputs, made when there is none: how large a lent arena must be, and its allocations.
  PlanInfo plan(std::string_view method, std::span<const Value> inputs);
  // The same plan as bytes, for a package: LoadOptions::stored_plans.
  std::vector<std::byte> stored_plan(std::string_view method, std::span<const Value> inputs);
  // The same for any method. One in segments has several, whose sizes may depend on data: it is run, once, as a call
  // runs it, states included, and the plans are those of the segments that ran.
  std::vector<std::vector<std::byte>> stored_plans(std::string_view method, std::span<const Value> inputs);

  // Promises that this tensor input keeps the address of its next run, whose alignment is then no longer checked. A run
  // that is given another address throws InvalidArgument.
  void freeze_input(std::string_view method, std::size_t input);

  // All states, in the program's order.
  std::vector<StateView> states();
  // Sets every state to its value at load, and restarts the random numbers.
  void reset();
  // A session of the same program and options with copies of the states, which it does not share; arena and plans'
  // graphs are its own (a shared arena stays shared).
  Session fork();
  // The KV cache; these functions throw InvalidArgument for a program without one. Number of tokens in each row:
  std::span<const std::int64_t> kv_lengths();
  // Keeps the first `length` tokens of every row that has more. The memory stays. Throws InvalidArgument when a layer
  // with a window no longer holds what the next token sees (KvOptions::window_slack); 0 always works.
  void kv_truncate(std::int64_t length);
  // The smallest length above 0 to which the row can be truncated.
  std::int64_t kv_shortest(std::int64_t row);
  // Row i becomes a copy of what row rows[i] was; rows beyond become empty. At most KvOptions::rows.
  void kv_select(std::span<const std::int64_t> rows);
  // Resizes the cache; its tokens stay, and so does its memory when it has that size already. Throws InvalidArgument
  // when the tokens would not fit.
  void kv_resize(std::int64_t rows, std::int64_t length);
  // Tokens of one row of a layer as f32: `keys` [Hkv, count, D] and `values` [Hkv, count, Dv], contiguous, are those
  // from token `first` on. kv_read throws InvalidArgument for tokens that the row does not hold. kv_write does not
  // change lengths: call kv_set_lengths afterwards, with the number of tokens of each row. Layers with a window hold
  // their last tokens only (KvOptions::window_slack); kv_set_lengths throws InvalidArgument where kv_truncate does.
  void kv_read(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
               const TensorView& values);
  void kv_write(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
                const TensorView& values);
  void kv_set_lengths(std::span<const std::int64_t> lengths);
  // The tokens [first, first + count) of one row of all layers, as the cache stores them: count * kv_token_bytes()
  // bytes, good for sessions of the same program and KvOptions::type. kv_copy_out gives false where a layer does not
  // hold all of them: it has a smaller window, or runs have skipped it. kv_copy_in truncates the row to `first` tokens
  // and appends these; it throws InvalidArgument where kv_truncate does, and for a row of fewer tokens. Keys and values
  // of an encoder do not count.
  std::size_t kv_token_bytes();
  bool kv_copy_out(std::int64_t row, std::int64_t first, std::int64_t count, std::span<std::byte> bytes);
  void kv_copy_in(std::int64_t row, std::int64_t first, std::int64_t count, std::span<const std::byte> bytes);

  // Writes all states to a file and reads them back. `restore` throws InvalidProgram for a file of another program or a
  // damaged one, and then changes nothing.
  void save(const std::string& path);
  void restore(const std::string& path);

  const Counters& counters() const;
  int threads() const;
  const Program& program() const;

 private:
  friend struct Internal;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A device that this build and machine offer: its name as LoadOptions::device takes it ("cpu", ...), its memory in
// bytes, and what it can do.
struct DeviceInfo {
  std::string name;
  std::string description;
  std::uint64_t memory_total = 0;
  std::uint64_t memory_free = 0;
  std::vector<std::string> features;  // what kind of device it is, and what it can do
};
GRAFT_API std::vector<DeviceInfo> devices();

// "major.minor.patch"
GRAFT_API std::string_view version();

// Messages of graft and ggml; silent unless GRAFT_LOG is set (to stderr) or a callback is given. Levels as syslog names
// them: "error", "warning", "info", "debug". The callback may be called from any thread.
using LogCallback = std::function<void(std::string_view level, std::string_view message)>;
GRAFT_API void set_log_callback(LogCallback callback);

}  // namespace graft
