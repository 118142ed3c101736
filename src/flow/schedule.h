#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <string>
#include <vector>

#include "flow/graph.h"
#include "graft/flow.h"
#include "session/wait_limit.h"

namespace graft {

// A call of a stage: for a run, or for an item of it.
struct FlowTask {
  std::uint64_t sequence = 0;  // of the run: when it was submitted
  std::size_t run = 0;         // its slot
  std::size_t item = 0;
  bool operator<(const FlowTask& other) const {
    return sequence != other.sequence ? sequence < other.sequence : item < other.item;
  }
};

// A run that is done, and how.
struct FlowEnd {
  std::size_t run = 0;  // its slot
  std::promise<FlowOutputs> result;
  FlowOutputs outputs;
  std::exception_ptr error;

  // Fulfils the promise; without the lock.
  void report();
};

// The runs in flight of a flow, their values, and which calls may begin: all bookkeeping, without threads. The caller
// locks. Values that are not needed any more are moved to `dropped`, for the caller to free without the lock, since
// owners may be anything.
class FlowSchedule {
 public:
  using Dropped = std::vector<Value>;

  // `flow` must outlive it.
  FlowSchedule(const CheckedFlow& flow, const FlowOptions& options);

  bool has_room() const { return active_.size() < runs_.size(); }
  // Begins a run; there must be room.
  std::future<FlowOutputs> begin(std::vector<Value> inputs, const RunOptions& options, Dropped& dropped);

  bool has_tasks(std::size_t stage) const { return !stages_[stage].ready.empty(); }
  // Takes the stage's next call, if one may begin. `inputs` gets its values, those of input i from ends[i - 1] to
  // ends[i].
  bool take(std::size_t stage, FlowTask& task, std::vector<Value>& inputs, std::vector<std::size_t>& ends);
  // A fan-out's call has made an item.
  void emit(std::size_t stage, const FlowTask& task, std::vector<Value>& outputs, Dropped& dropped);
  // Whether it may make the next.
  bool may_emit(std::size_t stage, const FlowTask& task) const;
  // A call has ended. A fan-out has no `outputs` left.
  void end(std::size_t stage, const FlowTask& task, std::vector<Value>& outputs, Dropped& dropped);
  // A call has thrown.
  void fail(std::size_t stage, const FlowTask& task, const std::exception_ptr& error);
  // No call of the run begins any more.
  void stop(std::size_t run, const std::exception_ptr& error);
  // Its thread holds no values of the run any more. True if the run is done: `ended` and `dropped` get what it leaves.
  bool leave(const FlowTask& task, FlowEnd& ended, Dropped& dropped);
  // What it left is freed: there is room for another run.
  void retire(const FlowEnd& ended);

  bool stopped(std::size_t run) const { return runs_[run].error != nullptr; }
  const RunOptions& options(std::size_t run) const { return runs_[run].options; }
  // Stops runs by their deadline and cancel token. Returns when to look again: `now` when it stopped one.
  Clock::time_point stop_by_limits(Clock::time_point now, std::vector<FlowEnd>& ended, Dropped& dropped);

  FlowCounters counters;  // of runs, and of stages but for `waiting`
  std::size_t waiting(std::size_t stage) const { return stages_[stage].ready.size(); }

 private:
  // Of a source in one run.
  struct Values {
    std::vector<Value> values;         // by item; one if it has no items
    std::vector<std::size_t> readers;  // of each, that still need it
    std::size_t stored = 0;
    bool complete = false;  // all items are there
  };
  // Of a stage in one run.
  struct Progress {
    std::size_t missing = 0;           // inputs that all its calls need and that are not there
    std::vector<std::size_t> arrived;  // by item: inputs of the item that are there
    std::size_t taken = 0, done = 0;   // calls
    std::size_t emitted = 0;           // items, of a fan-out
    bool all_emitted = false;
    bool complete = false;  // no call will follow
  };
  struct Run {
    std::uint64_t sequence = 0;
    RunOptions options;
    CancelToken cancel;  // that of the options, where they have one
    std::promise<FlowOutputs> result;
    std::vector<Values> sources;
    std::vector<Progress> stages;
    std::size_t incomplete = 0;  // stages
    std::size_t running = 0;     // calls whose threads have not left
    std::exception_ptr error;
    bool ended = false;
    // Its calls need not be waited for.
    bool is_over() const { return error != nullptr || ended; }
  };
  struct Stage {
    std::vector<FlowTask> ready;            // a heap: the oldest run's first item in front
    std::size_t each = 0;                   // inputs of which a call reads one item
    std::vector<std::size_t> item_stages;   // of a fan-out: those that run for its items
    std::vector<std::size_t> item_sources;  // and the sources that have its items
  };

  bool is_next(std::size_t stage, const FlowTask& task) const;
  void push(std::size_t stage, std::size_t slot, std::size_t item);
  void store(std::size_t slot, std::size_t source, std::size_t item, Value value, Dropped& dropped);
  void count_input(std::size_t slot, std::size_t stage);
  void check_complete(std::size_t slot, std::size_t source);
  void complete(std::size_t slot, std::size_t stage, Dropped& dropped);
  void release(std::size_t slot, std::size_t source, std::size_t item, Dropped& dropped);
  void finish(std::size_t slot, FlowEnd& ended, Dropped& dropped);
  std::string place(std::size_t slot) const;

  const CheckedFlow& flow_;
  const std::size_t items_;
  std::vector<Run> runs_;
  std::vector<std::size_t> active_;  // slots, the oldest first
  std::vector<std::size_t> free_;
  std::vector<Stage> stages_;
  std::uint64_t next_ = 0;
};

}  // namespace graft
