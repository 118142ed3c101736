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
#include "graft/graft.h"
#include "plan/kv_shape.h"
#include "run/executable.h"
#include "run/program_impl.h"
#include "run/session_device.h"

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

// Files: session.cpp (a call from entry to return), session_bind.cpp (addresses), session_state.cpp (states),
// session_queue.cpp (submit and close).
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

  const Program::Impl& loaded() const { return program->impl(); }
  void check_open() const;  // throws InvalidArgument

  // --- session.cpp ---
  void describe_inputs(const LoadedMethod& method, std::span<const Value> inputs);
  // The instantiated plan for the described inputs; it stands at the front of `graphs`.
  Graph& graph_for(std::uint32_t method);
  void append_key(const InputDesc& input);
  void run_into(std::string_view name, std::span<const Value> inputs, std::span<Value> outputs,
                const RunOptions& run_options);
  std::vector<Value> output_values(std::string_view name, std::span<const Value> inputs);
  std::vector<Value> run(std::string_view name, std::span<const Value> inputs, const RunOptions& run_options);
  void compute(Graph& graph, const RunOptions& run_options, Executable::Clock::time_point begin);
  static bool profile(Graph& graph, std::vector<NodeTiming>& timings, Executable::Clock::time_point begin);

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
