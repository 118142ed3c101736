#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graft/graft.h"

namespace graft {

// An input or output of a function. `type`: kind, dtype and ranges of sizes that its values must have; unset: any.
struct FlowPort {
  std::string name;
  std::optional<ValueInfo> type = std::nullopt;
};

// One call of a function: what it got and what it gives.
class GRAFT_API FlowCall {
 public:
  virtual ~FlowCall() = default;

  // Input i, which other stages may read at the same time: not to be written. Throws InvalidArgument for a list.
  virtual const Value& input(std::size_t i) const = 0;
  // Whether input i is a list: all items of the run, of which a fan-in gets them.
  virtual bool is_list(std::size_t i) const = 0;
  // The list, in the order of the items; otherwise the one value.
  virtual std::span<const Value> items(std::size_t i) const = 0;

  // A tensor for output o in the memory of the flow, for the function to fill: not initialized, aligned to 64 bytes,
  // valid until the function returns (or emits).
  virtual TensorView make(std::size_t o, DType dtype, const Shape& shape) = 0;
  // Any value for output o, without a copy: a number, an input or a part of one (with its owner), or a tensor whose
  // owner keeps its memory alive.
  virtual void set(std::size_t o, Value value) = 0;
  // Of a fan-out: the outputs made so far are an item; the next may be made. Waits while as many items as
  // FlowOptions::items are ready to be processed. Throws Cancelled when the run has ended meanwhile, InvalidArgument
  // for an output that was not set.
  virtual void emit() = 0;

  // The run was cancelled, met its deadline or failed in another stage: the function may return at once, without
  // outputs.
  virtual bool stopped() const = 0;
};

// A part of a flow: a method, or a function.
struct FlowStage {
  std::string name;  // not empty, without '.'

  // A method. Each session is a worker; they are of one program, and in use by this stage alone.
  std::vector<std::shared_ptr<Session>> sessions = {};
  std::string method = "forward";

  // A function, called by `workers` threads. What it throws ends the run. With `fan_out` it emits any number of items;
  // with `fan_in` it is called once per run, when all items are there.
  std::function<void(FlowCall&)> function = nullptr;
  std::vector<FlowPort> inputs = {};
  std::vector<FlowPort> outputs = {};
  int workers = 1;
  bool fan_out = false;
  bool fan_in = false;
};

// Stages and what connects them. A value is named "input" (of the flow) or "stage.output", an input of a stage
// "stage.input"; inputs and outputs of stages go by name or number ("detect.0").
struct FlowGraph {
  std::vector<std::string> inputs = {};  // names without '.'
  std::vector<FlowStage> stages = {};
  // Where each input of each stage comes from: {"crop.boxes", "detect.boxes"}.
  std::map<std::string, std::string, std::less<>> connections = {};
  std::vector<std::string> outputs = {};  // values
};

struct FlowOptions {
  std::size_t runs = 8;    // in flight: begun and not finished
  std::size_t items = 16;  // of a fan-out, ready to be processed (FlowCall::emit)
};

struct FlowStageCounters {
  std::string name;
  std::uint64_t calls = 0;       // that ended
  std::size_t waiting = 0;       // calls that could begin; now
  std::size_t most_waiting = 0;  // at a time
};

// Counts since the flow was made. submitted = running + finished.
struct FlowCounters {
  std::uint64_t submitted = 0;
  std::uint64_t finished = 0;  // those that failed too
  std::uint64_t failed = 0;    // those that were cancelled too
  std::size_t running = 0;     // now
  std::size_t most_running = 0;
  // Memory for outputs of stages that was allocated because none could be used again. Runs of the same sizes come to
  // allocate none. (Methods in segments use memory of their sessions, which is not counted.)
  std::uint64_t buffers = 0;
  std::uint64_t buffer_bytes = 0;
  // Inputs and outputs that sessions copied because they could not be bound in place (Counters::io_copies and
  // inputs_padded). Between stages there are no other copies.
  std::uint64_t copies = 0;
  std::vector<FlowStageCounters> stages;
};

// By output of the flow: its value, or those of all items in their order.
using FlowOutputs = std::vector<std::vector<Value>>;

// Models and functions connected by data, each stage with threads of its own, so that the stages of several runs
// overlap. Outputs of a stage are inputs of the next in the same memory, which is used again when the last stage has
// read it.
//
// A stage with one worker takes the runs in the order of submission, and items in theirs; with several it takes what is
// there, older runs first. A method with states or random numbers has one session.
//
// A fan-out emits items of each run; a stage that gets items runs once for each, with the run's other inputs, and a
// fan-in gets all of them. Items have no items of their own: a fan-in comes first.
//
// A failed run affects no other; its error has the type of the stage's and names the stage (what the stage threw is
// nested in it). Every accepted run completes. All functions may be called from any thread.
class GRAFT_API Flow {
 public:
  // Throws InvalidArgument, naming stage, input or output, expected and found: for names that are unknown, missing or
  // there twice, inputs that are not connected, cycles, kinds, dtypes, ranks and ranges of sizes that never fit,
  // methods that write their inputs, several sessions for a method with states. NotFound for a method that the program
  // has not; SystemError when a thread cannot be started.
  explicit Flow(FlowGraph graph, const FlowOptions& options = {});
  ~Flow();  // shutdown()
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  // Begins a run; tensors without an owner must stay valid until it is done. Waits while as many runs as
  // FlowOptions::runs are in flight. Deadline, cancel, priority and check hold for all stages of the run; other options
  // throw InvalidArgument, as inputs do that do not fit, and any call once shutdown() has begun. The token need not
  // outlive the call. Throws Cancelled when deadline or cancel end the wait; Busy when called by a stage of this flow
  // and it would have to wait.
  std::future<FlowOutputs> submit(std::vector<Value> inputs, const RunOptions& options = {});
  // As submit(), but waits no longer than `wait`: empty when there is no room then.
  std::optional<std::future<FlowOutputs>> try_submit(std::vector<Value> inputs, const RunOptions& options = {},
                                                     std::chrono::milliseconds wait = std::chrono::milliseconds(0));

  // Waits until no run is in flight, including those that others submit meanwhile.
  void drain();
  // As drain(), but no longer than `wait`: false when runs are in flight then.
  bool drain_for(std::chrono::milliseconds wait);
  // Takes no more runs, finishes those that were accepted and ends the threads.
  void shutdown();

  // Whether output o of the flow is the list of a run's items.
  bool is_list(std::size_t o) const;
  FlowCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace graft
