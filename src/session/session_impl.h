#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/aligned.h"
#include "base/check.h"
#include "device/session_device.h"
#include "exec/executable.h"
#include "graft/graft.h"
#include "load/program_impl.h"
#include "lowering/kv_shape.h"

namespace graft {

// Taken for the time of a call; throws Busy with `message` when it is taken already.
class BusyGuard {
 public:
  BusyGuard(std::atomic_flag& busy, const char* message) : busy_(busy) {
    GRAFT_CHECK(Busy, !busy_.test_and_set(std::memory_order_acquire), message);
  }
  ~BusyGuard() {
    busy_.clear(std::memory_order_release);
    busy_.notify_one();
  }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  std::atomic_flag& busy_;
};

inline constexpr const char* kSessionInUse = "the session is in use by another thread; make one session per thread";

inline bool is_aligned(const void* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % byte_size(dtype) == 0;
}

struct Arena::Impl {
  AlignedMemory memory;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
};

// Memory for what a run of a cut method hands from segment to segment, and for its results: blocks that come back when
// the last value in them is dropped, on whatever thread that is.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Never null.
  std::shared_ptr<void> take(std::size_t bytes);

 private:
  static constexpr std::size_t kMostFree = 64;
  void give(AlignedMemory memory) noexcept;

  std::mutex mutex_;
  std::vector<AlignedMemory> free_;
};

// Where a method has a dimension that is padded (SessionOptions::buckets).
struct PaddedDim {
  std::uint32_t method = 0;
  std::size_t buckets = 0;                          // index into SessionOptions::buckets
  std::vector<std::pair<std::size_t, int>> inputs;  // and dimension
  std::vector<std::pair<std::size_t, int>> outputs;
};

// A number of a plan as a caller's value.
Value from_scalar(const Scalar& scalar);

// What the caller gives for a method's outputs: throw InvalidArgument naming the output.
void check_output_count(const LoadedMethod& method, std::size_t given);
void check_output(const LoadedMethod& method, std::size_t i, const Value& output, const TensorDesc& wanted);
void check_output_alignment(const LoadedMethod& method, std::size_t i, const TensorView& given);

// Files: session.cpp (a call from entry to return), session_pieces.cpp (the same of cut methods), session_bind.cpp
// (addresses), session_state.cpp (states), session_queue.cpp (submit and close).
struct Session::Impl {
  Impl(std::shared_ptr<const Program> loaded_program, const SessionOptions& session_options);
  ~Impl();

  std::shared_ptr<const Program> program;
  SessionOptions options;
  int threads = 1;
  Counters counters;
  RunControl control;
  std::unique_ptr<SessionDevice> device;  // null for the CPU; the graphs use it
  std::shared_ptr<Arena> arena;
  std::vector<AlignedMemory> states;
  bool has_kv = false;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  bool closed = false;
  std::shared_ptr<BlockPool> blocks = std::make_shared<BlockPool>();
  bool in_segments = false;  // a run of a cut method is under way

  struct Graph {
    std::uint32_t method = 0;
    std::unique_ptr<Executable> executable;
    std::vector<std::byte*> bases;
    bool counts_as_miss = false;  // its plan was made for a run that has not happened yet
  };
  std::list<Graph> graphs;  // most recently used first

  // Reused from call to call, so that the steady state allocates nothing.
  std::vector<InputDesc> input_descs;
  std::vector<std::int64_t> key;
  std::vector<AlignedMemory> staging;
  std::vector<std::pair<std::uint32_t, std::byte*>>
      frozen;  // (method << 16 | input) and its address, null before a run

  const ProgramImpl& loaded() const { return Internal::of(*program); }
  void check_open() const;  // throws InvalidArgument

  // --- session.cpp ---
  void describe_inputs(const LoadedMethod& method, std::span<const Value> inputs);
  // The instantiated plan for the described inputs; it stands at the front of `graphs`.
  Graph& graph_for(std::uint32_t method);
  void append_key(const InputDesc& input);
  void run_into(std::string_view name, std::span<const Value> inputs, std::span<Value> outputs,
                const RunOptions& run_options);
  std::vector<Value> output_values(std::string_view name, std::span<const Value> inputs);
  void run_plan(std::uint32_t method, std::span<const Value> inputs, std::span<Value> outputs,
                const RunOptions& run_options);
  std::vector<Value> run(std::string_view name, std::span<const Value> inputs, const RunOptions& run_options);
  void compute(Graph& graph, const RunOptions& run_options, Clock::time_point begin);
  static bool profile(Graph& graph, std::vector<NodeTiming>& timings, Clock::time_point begin);

  // --- session_pieces.cpp ---
  // Outputs without memory get some.
  void run_segments(std::uint32_t method, std::span<const Value> inputs, std::span<Value> outputs,
                    const RunOptions& run_options);
  // Any method, cut or not, on the way of a cut one.
  void call(std::uint32_t method, std::span<const Value> inputs, std::span<Value> outputs,
            const RunOptions& run_options);
  void run_steps(const LoadedMethod& method, std::span<const Value> inputs, std::span<Value> outputs,
                 const RunOptions& run_options);
  void run_host(const Step& step, std::span<const Value> slots, std::span<Value> outputs);
  void run_loop(const Step& step, std::vector<Value> values, std::span<Value> outputs, const RunOptions& run_options);
  // Memory for a tensor output that has none; with memory, that it is of this type.
  void* place(Value& output, DType dtype, const Shape& shape);
  std::vector<Value> values_before_run(const LoadedMethod& method, std::span<const Value> inputs) const;

  // --- session_buckets.cpp ---
  void find_padded_dims();
  // The inputs padded; false when none has to be. `sizes`: by entry of `padded`, the size that came in, -1 for one that
  // is as it was.
  bool pad(std::uint32_t method, std::span<const Value> inputs, std::vector<Value>& padded_inputs,
           std::vector<std::int64_t>& sizes);
  // The shape of a result without padding.
  Shape cut_back(std::size_t output, Shape shape, std::span<const std::int64_t> sizes) const;
  void run_padded(std::uint32_t method, std::span<const Value> inputs, std::span<Value> outputs,
                  std::span<const std::int64_t> sizes, const RunOptions& run_options);
  std::vector<PaddedDim> padded;

  // --- session_bind.cpp ---
  void bind(Graph& graph, std::span<const Value> inputs, std::span<std::byte* const> output_data,
            const RunOptions& run_options);
  std::byte* input_base(const LoadedMethod& method, std::uint32_t method_index, std::uint32_t index,
                        std::span<const Value> inputs);
  std::byte* arena_base(std::int64_t bytes, const RunOptions& run_options);
  void check_overlaps(const Graph& graph) const;
  // Mutated inputs that were staged go back to the caller's memory.
  void return_staged(const Graph& graph, std::span<const Value> inputs);

  // --- session_state.cpp ---
  std::byte* state(std::uint32_t index);
  void reset_state(std::uint32_t index);
  TensorDesc desc_of(std::uint32_t index) const { return state_desc(loaded().states[index].state, options.kv); }
  // The bytes of a state that hold something: all, or of a cache of keys and values its tokens, row by row, head by
  // head and in the order of their positions.
  struct Range {
    std::size_t offset = 0, bytes = 0;
  };
  std::vector<Range> used_ranges(std::uint32_t index);

  // --- session_kv.cpp ---
  void check_kv(const KvOptions& kv) const;
  void check_kv_rows(std::span<const std::int64_t> rows) const;
  // Tokens of each row. Throws InvalidArgument when there is no cache.
  std::span<std::int64_t> lengths();
  // Tokens of each row that an encoder left; empty for a program without one.
  std::span<std::int64_t> source_lengths();
  // Keys and values of tokens.
  static bool is_tokens(ir::StateKind kind) { return kind == ir::StateKind::kv || kind == ir::StateKind::kv_source; }
  // The first positions that caches with windows still hold, [rows, kinds of windows]; empty when no layer has one.
  std::span<std::int64_t> firsts();
  // What a token sees in layers of each kind (ir::State::reaches).
  std::span<const std::int64_t> reaches() const;
  // The column of `firsts` that a cache of keys and values follows; none: it holds all tokens.
  std::optional<std::size_t> kind_of(const ir::State& state) const;
  // Slots of the rings of that kind; 0: they hold all tokens.
  std::int64_t slots_of(std::size_t kind) const;
  // The positions [first, second) that a cache holds of a row.
  std::pair<std::int64_t, std::int64_t> held(const ir::State& state, std::size_t row);
  // The smallest length above 0 that a row can have next: what the token after it sees is there.
  std::int64_t shortest(std::size_t row);
  // Throws InvalidArgument when the row cannot have that length: the next token would see tokens that are lost.
  void check_reach(std::size_t row, std::int64_t length);
  std::span<std::int64_t> numbers_of(ir::StateKind kind);

  // --- session_queue.cpp ---
  struct Job {
    std::string method;
    std::vector<Value> inputs;
    RunOptions options;
    std::promise<std::vector<Value>> result;
  };
  std::mutex queue_mutex;
  std::condition_variable queue_changed;
  std::deque<Job> queue;
  bool queue_closed = false;
  std::thread worker;
  std::future<std::vector<Value>> submit(Job job);
  void work();
  void drain();
};

}  // namespace graft
