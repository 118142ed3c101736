#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/session_device.h"
#include "exec/executor.h"
#include "graft/graft.h"
#include "load/program_impl.h"
#include "session/binder.h"
#include "session/block_pool.h"
#include "session/executor_cache.h"
#include "session/kv_cache.h"
#include "session/padding.h"
#include "session/prepared_call.h"
#include "session/session_arena.h"

namespace graft {

// Runs calls that one plan serves: each is prepared, then run once its outputs have memory.
class PlanRunner {
 public:
  PlanRunner(const ProgramImpl& program, const SessionOptions& options, int threads, KvCache& kv,
             std::shared_ptr<BlockPool> blocks, Counters& counters);

  // Resolves a call: describes its inputs and finds or makes its plan. For a method in segments, where each segment has
  // a plan, it only checks the inputs. Input data are not read. The result is
  // valid until the next call of this function. Throws InvalidArgument naming the input that is wrong, and what
  // planning throws.
  // `run`: of a segment, see run_sizes().
  PreparedCall& prepare(std::uint32_t method, std::span<const Value> inputs, const RunOptions& options = {},
                        const RunSizes* run = nullptr);
  // What the call returns, tensors without data.
  std::vector<Value> outputs(const PreparedCall& call) const;

  enum class Part : std::uint8_t { whole, segment };  // of a run: one in segments counts once, and errors name the part
  // Of a call of a segment that is padded (Padding), by position: inputs that other segments padded already, and the
  // outputs before they were cut. What is not padded has no memory here.
  struct Padded {
    std::span<const Value> inputs;
    std::vector<Value> outputs;
  };
  // Throws InvalidArgument for outputs that have other dtypes or sizes, ExecutionError, Cancelled or Busy.
  void run(PreparedCall& call, std::span<Value> outputs, const RunOptions& options, Part part = Part::whole,
           Padded* padded = nullptr);
  // The inputs of a call in segments, padded.
  std::vector<Value> pad(const PreparedCall& call) const { return padding_.pad(call); }
  // Of a call in segments that is padded: for the calls of its segments.
  RunSizes run_sizes(const PreparedCall& call) const { return padding_.run_sizes(call); }
  // What an output, a tensor, is for the caller.
  TensorDesc output_desc(const PreparedCall& call, std::size_t i) const {
    return {call.output(i).desc.dtype, padding_.cut_shape(call, i)};
  }

  // Takes the states back from a device that is lost or has too little memory, if that was not done.
  void leave_unusable_device();

  Binder& binder() { return binder_; }
  RandomKey& random() { return control_.random; }
  // Frees memory and plans; the session is closed.
  void close();

 private:
  void run_on(const PreparedCall& call, std::span<const Value> inputs, std::span<Value> outputs,
              const RunOptions& options, Part part);
  KvExtent kv_extent(const RunOptions& options);
  // Throws InvalidArgument where there are neither one nor as many as rows in the batch.
  void check_adapters(std::span<const Value> inputs, const RunOptions& options) const;
  void take_adapters(const RunOptions& options);
  void compute(const PreparedCall& call, const RunOptions& options, Part part);
  static bool profile(const PreparedCall& call, std::vector<NodeTiming>& timings);

  const ProgramImpl& program_;
  KvCache& kv_;
  std::shared_ptr<BlockPool> blocks_;
  Counters& counters_;
  RunControl control_;
  std::unique_ptr<SessionDevice> device_;  // null for the CPU; executors use it and the control
  SessionArena arena_;
  Binder binder_;
  Padding padding_;
  ExecutorCache executors_;
  PreparedCall call_;
};

}  // namespace graft
