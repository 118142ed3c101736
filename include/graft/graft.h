#pragma once

// graft: runs torch.export programs on ggml. This header loads and runs programs; beside it, as needed: llm.h and
// tokenizer.h (language models), pipeline.h (a queue of runs over several sessions), op.h (operators of one's own),
// predicate.h (what an exporter has to know) and quantize.h (weights in block formats).
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
#include "graft/tensor.h"

namespace graft {

// An input or output of a method: a tensor, a number, a text or None.
struct Value {
  enum class Kind : std::uint8_t { none, tensor, integer, real, boolean, text };
  Kind kind = Kind::none;
  TensorView tensor;   // contiguous, element-aligned
  std::int64_t i = 0;  // integer, boolean
  double f = 0;        // real
  std::string text;
  std::shared_ptr<void> owner;  // keeps tensor.data alive when graft allocated it; empty for the caller's memory

  static Value of(const TensorView& t) { return {Kind::tensor, t, 0, 0, {}, {}}; }
  static Value of(std::int64_t v) { return {Kind::integer, {}, v, 0, {}, {}}; }
  static Value of(double v) { return {Kind::real, {}, 0, v, {}, {}}; }
  static Value of(bool v) { return {Kind::boolean, {}, v ? 1 : 0, 0, {}, {}}; }
};

// What a method takes or returns. Unknown maxima are the largest int64.
struct DimInfo {
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::string expr;  // symbolic expression of the exporter, for people
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
  // 1: every run is one plan. More: sizes depend on data or parts run on conditions, and so many steps make up a run;
  // what it returns is known after it alone.
  std::size_t segments = 1;
};

// Counts since the session was made. All are monotonic except the *_bytes marked "now".
struct Counters {
  std::uint64_t runs = 0;
  std::uint64_t plan_hits = 0;     // calls served by a plan that was there
  std::uint64_t plan_misses = 0;   // calls that made a plan
  std::uint64_t graphs_built = 0;  // ggml graphs instantiated from plans
  std::uint64_t rewrites = 0;      // tensor addresses rewritten because a buffer moved
  std::uint64_t kernels_launched = 0;
  std::uint64_t inputs_described = 0;  // inputs whose dtypes and sizes were read: once per call and per segment of it
  std::uint64_t inputs_padded = 0;     // inputs copied into memory of a listed size (SessionOptions::buckets)
  std::uint64_t io_copies = 0;         // inputs and outputs that could not be bound as they were
  std::uint64_t io_bytes_copied = 0;
  std::uint64_t arena_allocations = 0;
  std::uint64_t arena_bytes = 0;  // now
  std::uint64_t state_bytes = 0;  // now
  std::uint64_t state_bytes_written = 0;
  std::uint64_t staging_bytes = 0;  // now
  // Programs on a device other than the CPU. A stage is a part of a run on one side.
  std::uint64_t stages = 0;
  std::uint64_t uploads = 0;  // copies to the device, without those of weights
  std::uint64_t upload_bytes = 0;
  std::uint64_t downloads = 0;
  std::uint64_t download_bytes = 0;
  std::uint64_t device_bytes = 0;  // now; without weights
};

// How products of f32 matrices are computed, as torch.set_float32_matmul_precision names it. highest: in f32. medium:
// their elements may be rounded to bf16 where the CPU multiplies it (AVX-512 BF16), with sums in f32; products of at
// most 8 rows, as in decoding, are in f32 all the same.
enum class MatmulPrecision : std::uint8_t { highest, medium };

// "highest" or "medium"; "high", which lets PyTorch use what is more exact than bf16, is highest. Throws
// InvalidArgument for any other.
GRAFT_API MatmulPrecision matmul_precision_named(std::string_view name);

struct LoadOptions {
  // Files with weights that the package names but does not hold: .ptd, safetensors, the *.index.json of a sharded
  // safetensors checkpoint, or GGUF. A weight is looked up by its key, then by its fully qualified name. Without any,
  // and without `tensors`, the files that the package itself names (as export_llm writes with weights="external").
  std::vector<std::string> weights;
  // The same in memory of the caller, by key or fully qualified name: read where it lies, before any file is asked.
  // Of an f32 weight it may be f16 or bf16, as in files.
  // Throws InvalidArgument when dtype or sizes are not the weight's, when it is not aligned to its element, or when the
  // program has no such weight.
  std::map<std::string, TensorView, std::less<>> tensors;
  // Held as long as the program: owns the memory of `tensors` and of load_memory(). Null: the caller keeps it alive.
  std::shared_ptr<const void> keep_alive;
  std::string device;          // "" means GRAFT_DEVICE or "cpu"; an unknown name throws NotFound
  std::size_t max_plans = 64;  // plans kept per program, least recently used dropped first
  // For packages of strangers: a plan (constant folding at the load makes one too) that would need more throws
  // Unsupported. Bytes of one intermediate tensor or output, and of the arena as a whole; kernels to launch.
  std::int64_t max_plan_bytes = INT64_MAX;
  std::int64_t max_plan_launches = std::int64_t{1} << 20;
  // Pack weights for graft's kernels: those in block formats that it has a kernel for on this CPU, and those of linear
  // layers in f32 that are at most 512 MiB together, unless `tensors` holds weights: these may change. Without it
  // products read them as they are stored, those in blocks by ggml.
  bool pack_weights = true;
  // Without them the plain lowering: ggml's op wherever ggml has one that computes what PyTorch means, on ggml's own
  // threads, weights as they are stored; kernels of graft for the rest. For comparisons. No stored plan is used then.
  bool fast_kernels = true;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;  // of linear layers and matrix products, on the CPU
  bool stored_plans = true;                                     // use the plans that the package holds
  bool verify_hashes = false;                                   // check each weight's SHA-256 (reads every weight once)
  // A method with sizes that depend on data is cut into segments. What could run before a cut and is only needed behind
  // it runs behind it when it is at most so many nodes.
  std::size_t merge_segments = 4;
  // Called as each phase of the load begins, with its name (PhaseStats::name). What it throws ends the load and reaches
  // the caller as it is.
  std::function<void(std::string_view phase)> on_phase;
};

// One phase of a program's life. Those of the load come in this order and happen once: "parse" (containers and graphs
// decoded), "verify" (graphs checked, every node put to the predicate), "weights" (found and placed), "constants"
// (folded), "states" (matched across methods), "shrink" (what only loading needed is freed). An error of the load says
// its phase. "plans" and "launch sequence" follow, as often as sessions meet new sizes.
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
  std::uint64_t weight_count = 0;       // distinct ones: tied weights count once
  std::uint64_t weight_bytes = 0;       // of these; the same for any number of methods, plans and sessions
  std::uint64_t given_bytes = 0;        // of these, in memory of the caller
  std::uint64_t copied_count = 0;       // of these, copied because of their alignment in the file
  std::uint64_t copied_bytes = 0;       // the same in bytes
  std::uint64_t converted_count = 0;    // copies in the dtype of their values of weights stored in another type
  std::uint64_t converted_bytes = 0;    // the same in bytes
  std::uint64_t packed_count = 0;       // packed for graft's kernels; these take the place of what is in the file
  std::uint64_t packed_bytes = 0;       // the same in bytes
  std::uint64_t constant_bytes = 0;     // folded constants
  std::uint64_t released_bytes = 0;     // of the weights, those that only constants were made of: not read any more
  std::uint64_t graph_bytes = 0;        // now: what only planning needs; 0 after shrink()
  std::uint64_t graph_bytes_freed = 0;  // by shrink() so far
  std::uint64_t graphs_read_again = 0;  // for planning after shrink()
  std::uint64_t plans_made = 0;         // by the planner
  std::uint64_t plans_loaded = 0;       // taken from the package
  std::uint64_t plans_stale = 0;        // of the package, made by another version or for another machine: not used
};

// A loaded package: verified graph, weights mapped from the file, folded constants. Immutable; shared by any number of
// sessions and threads.
class GRAFT_API Program {
 public:
  // Reads a .pte. Throws NotFound, SystemError, InvalidProgram, Unsupported or InvalidArgument; the message names the
  // phase of the load.
  // Weights stay in the mapped files. Replacing one of these by rename() (as graft.export does) is safe at any time;
  // writing into one changes the weights of programs that have it mapped, and truncating one makes the next touch of a
  // lost page a SIGBUS. Nothing else that is read after the load can end like that: see shrink().
  static std::shared_ptr<const Program> load(const std::string& path, const LoadOptions& options = {});
  // The same of a .pte in memory, aligned to 16 bytes. LoadOptions::keep_alive, or the caller, keeps it alive as long
  // as the program.
  static std::shared_ptr<const Program> load_memory(std::span<const std::byte> package,
                                                    const LoadOptions& options = {});
  // A program from IR bytes (schema/graft.fbs), which it copies, and its weights by key, which must outlive it.
  // LoadOptions::weights and tensors are not for it: `weights` answers for all.
  using WeightLookup = std::function<std::span<const std::byte>(std::string_view key)>;
  static std::shared_ptr<const Program> from_ir(std::span<const std::byte> blob, const WeightLookup& weights,
                                                const LoadOptions& options = {});
  ~Program();

  std::vector<std::string> method_names() const;
  // Throws NotFound, listing the methods there are.
  const MethodInfo& method(std::string_view name) const;
  // What `graft inspect --json` prints, as JSON text.
  // With `whole_plans`, each plan lists its launches in order and the logical address of every tensor.
  std::string describe(bool whole_plans = false) const;
  ProgramStats stats() const;

  // Frees what only planning needs: the graphs. From then on they are read again from the package each time a plan is
  // made for sizes that are new, and freed after it; constants are not computed again. When the file changed on disk
  // since the load, that is an InvalidProgram, and runs of plans that are there stay right. From any thread, while
  // sessions run.
  void shrink() const;

 private:
  friend struct Internal;
  struct Impl;
  explicit Program(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Memory for the intermediate tensors of sessions that never run at the same time: as large as the largest of them
// needs. A session without one has its own.
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

// How the rows of a cache of keys and values are stored. q8_0: blocks of 32 elements, 8 bits each and a scale.
enum class KvType : std::uint8_t { computed, f32, f16, bf16, q8_0 };  // computed: as the model computes them

GRAFT_API std::string_view name(KvType type);
// Throws InvalidArgument, listing the names there are.
GRAFT_API KvType kv_type_named(std::string_view name);

// The cache of a program with graft::attention nodes. Its memory is reserved at once and touched as it fills.
struct KvOptions {
  std::int64_t rows = 1;       // sequences: the largest batch
  std::int64_t length = 4096;  // tokens of each
  KvType type = KvType::computed;
  // Layers that see a window of the last `w` tokens keep w - 1 + window_slack of them, in a ring, where that is less
  // than `length`: so many tokens may be taken back. A run of more tokens keeps a copy of its keys and values to its
  // end.
  std::int64_t window_slack = 512;
  std::int64_t encoder_length = 4096;  // of models with an encoder: the most tokens that it hands to the decoder
};

// Sizes that a dimension is padded up to, so that many sizes share few plans: inputs are padded at the end of the
// dimension, results are cut back to the size that came in. A size above the largest has a plan of its own. What a
// model makes of the padded part is the model's business: one that takes a mask gets zeros there, and results over the
// rest are those without padding as far as the model heeds its mask.
struct Buckets {
  std::string dimension;            // as the program calls it ("s77"), or an input and its dimension ("input_ids.1")
  std::vector<std::int64_t> sizes;  // ascending
  std::map<std::string, double, std::less<>> padding;  // by name of the input, what it is padded with: 0 unless named
};

struct SessionOptions {
  int threads = 0;                  // 0: GRAFT_THREADS, else the CPUs this process may use
  std::size_t max_graphs = 16;      // instantiated plans kept, least recently used dropped first
  bool strict_zero_copy = false;    // an input or output that would need a copy throws InvalidArgument instead
  std::shared_ptr<Arena> arena;     // shared with other sessions; two of them running at once: the second throws Busy
  std::size_t queue_capacity = 16;  // runs that may wait in submit()
  // Of the random numbers that the program draws. They follow from it and from how many runs the session has finished,
  // not from the number of threads; they are not those of PyTorch's generators.
  std::uint64_t seed = 0;
  // The constructor throws InvalidArgument for sizes that are no ascending list within the dimension's range, for a
  // dimension that no input has, and where padding cannot be undone: a method that writes states or inputs, that runs
  // in segments, or that has a result with a size made of the dimension's.
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

struct RunOptions {
  // When given: filled with one entry per launch. The run takes an instrumented loop; without it the clock is not read.
  std::vector<NodeTiming>* profile = nullptr;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  const CancelToken* cancel = nullptr;
  // Memory that the caller lends for the intermediate tensors of this run: at least PlanInfo::arena_bytes, aligned to
  // 64 bytes. Empty: the session's arena.
  std::span<std::byte> arena;
  // Row b of the batch is row kv_rows[b] of the cache of keys and values. Empty: row b. As many as the batch, no row
  // twice; else the run throws InvalidArgument or ExecutionError. No part of the plan's key: all rows share one.
  std::span<const std::int64_t> kv_rows;
};

// What a plan needs and where it keeps what; ids as `graft inspect --plan` lists them.
struct AllocationInfo {
  std::string_view segment;  // "weight", "constant", "state", "arena", "input" or "output"
  std::uint32_t index = 0;   // which weight, state, input, ...
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
  std::string name;   // fully qualified, as in the PyTorch module
  TensorView tensor;  // the session's own memory: valid as long as the session, changed by its runs
};

// One caller's use of a program: its states, its arena, its bindings. Not for two threads at once (throws Busy); make
// one session per thread. Calls on a closed session throw InvalidArgument.
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
  // Runs into memory that `place` gives: it is called once, with the outputs as `output_values` says, and sets the data
  // of each tensor. That is before the run, but for a method in segments after it: what it returns is then copied. The
  // session is in use meanwhile. What `place` throws ends the call and reaches the caller as it is.
  using PlaceOutputs = std::function<void(std::span<Value> outputs)>;
  std::vector<Value> run_into(std::string_view method, std::span<const Value> inputs, const PlaceOutputs& place,
                              const RunOptions& options = {});

  // The same in the background, in the order of submission; tensors of the inputs must stay valid until then. Throws
  // Busy when `queue_capacity` runs wait already. Errors of the run come out of the future.
  std::future<std::vector<Value>> submit(std::string method, std::vector<Value> inputs, RunOptions options = {});
  // Finishes the submitted runs and frees all memory. Called by the destructor.
  void close();

  // The plan for these inputs, made when there is none: what to lend, and where things are.
  PlanInfo plan(std::string_view method, std::span<const Value> inputs);
  // The same plan as bytes, for a package: LoadOptions::stored_plans.
  std::vector<std::byte> stored_plan(std::string_view method, std::span<const Value> inputs);

  // Promises that this tensor input has, from its next run on, one address: it is no longer compared. A debug build
  // throws InvalidArgument when it moved.
  void freeze_input(std::string_view method, std::size_t input);

  // All states, in the program's order.
  std::vector<StateView> states();
  // Every state as at load, and random numbers from their beginning.
  void reset();
  // A session of the same program and options with copies of the states; arena and plans' graphs are its own (a shared
  // arena stays shared).
  Session fork();
  // The cache of keys and values; InvalidArgument for a program without one. Tokens that each row holds:
  std::span<const std::int64_t> kv_lengths();
  // Keeps the first `length` tokens of every row that has more. The memory stays. Throws InvalidArgument when a layer
  // with a window no longer holds what the next token sees (KvOptions::window_slack); 0 always works.
  void kv_truncate(std::int64_t length);
  // The smallest length above 0 to which the row can be truncated.
  std::int64_t kv_shortest(std::int64_t row);
  // Row i becomes a copy of what row rows[i] was; rows beyond become empty. At most KvOptions::rows.
  void kv_select(std::span<const std::int64_t> rows);
  // Another size; what the cache holds stays, and its memory too when it has that size already. Throws InvalidArgument
  // when that would not fit.
  void kv_resize(std::int64_t rows, std::int64_t length);
  // Tokens of one row of a layer as f32: `keys` [Hkv, count, D] and `values` [Hkv, count, Dv], contiguous, are those
  // from token `first` on. kv_read throws InvalidArgument for tokens that the row does not hold. kv_write changes no
  // length: kv_set_lengths says afterwards, row by row, how many tokens there are. Layers with a window hold their last
  // tokens only (KvOptions::window_slack); kv_set_lengths throws InvalidArgument where kv_truncate does.
  void kv_read(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
               const TensorView& values);
  void kv_write(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
                const TensorView& values);
  void kv_set_lengths(std::span<const std::int64_t> lengths);

  // All states to and from a file. `restore` throws InvalidProgram for a file of another program or a damaged one, and
  // then changes nothing.
  void save(const std::string& path);
  void restore(const std::string& path);

  const Counters& counters() const;
  int threads() const;
  const Program& program() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Names of the devices that this build and machine offer ("cpu", ...), with a description each.
struct DeviceInfo {
  std::string name;
  std::string description;
  std::uint64_t memory_total = 0;
  std::uint64_t memory_free = 0;
};
GRAFT_API std::vector<DeviceInfo> devices();

// "0.1.0"
GRAFT_API std::string_view version();

// Messages of graft and ggml; silent unless GRAFT_LOG is set (to stderr) or a callback is given. Levels as syslog names
// them: "error", "warning", "info", "debug". The callback may be called from any thread.
using LogCallback = std::function<void(std::string_view level, std::string_view message)>;
GRAFT_API void set_log_callback(LogCallback callback);

}  // namespace graft
