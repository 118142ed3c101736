#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "graft/graft.h"
#include "load/program_impl.h"
#include "session/block_pool.h"
#include "session/plan_runner.h"
#include "session/state_undo.h"

namespace graft {

// Runs of methods in segments (pass/graph/partition.h): one step after another, values in between by their ids.
class SegmentRunner {
 public:
  SegmentRunner(const ProgramImpl& program, PlanRunner& plans, StateStore& states, std::shared_ptr<BlockPool> blocks,
                Counters& counters);

  // Runs a prepared call, which it invalidates, since each segment is a call of its own. Outputs without memory get
  // some. `planned`: called with each segment, whose plan is there, before it runs.
  using Planned = std::function<void(const PreparedCall&)>;
  void run(const PreparedCall& call, std::span<Value> outputs, const RunOptions& options, const Planned& planned = {});
  // The outputs as known before a run: sizes that the program fixes or that an input has. Throws Unsupported for
  // others.
  static std::vector<Value> outputs(const PreparedCall& call);

 private:
  // Values by position, and those of them that are padded (Padding) in their padded size; the others have no memory
  // there.
  struct Values {
    explicit Values(std::size_t count) : cut(count), padded(count) {}
    std::vector<Value> cut, padded;
  };

  // Any method, in segments or not, as a step of one.
  void run_method(std::uint32_t method, const Values& inputs, Values& outputs, const RunOptions& options);
  void run_steps(const LoadedMethod& method, const Values& inputs, Values& outputs, const RunOptions& options);
  void run_host(const Step& step, std::span<const Value> slots, std::span<Value> outputs);
  void run_loop(const Step& step, Values values, Values& outputs, const RunOptions& options);
  void hand_out(Value result, std::span<const Value> inputs, std::span<Value> outputs, std::size_t o);
  // Gives a tensor output without memory some; checks the type of one with memory.
  void* place(Value& output, DType dtype, const Shape& shape);

  const ProgramImpl& program_;
  PlanRunner& plans_;
  std::shared_ptr<BlockPool> blocks_;
  Counters& counters_;
  StateUndo undo_;
  // Of the run:
  const Planned* planned_ = nullptr;
  std::optional<std::uint32_t> last_;  // the segment after which nothing can fail
  RunSizes sizes_;
};

}  // namespace graft
