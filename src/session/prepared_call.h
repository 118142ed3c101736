#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "graft/graft.h"
#include "load/program_impl.h"
#include "session/executor_cache.h"

namespace graft {

// A call of a method, resolved once: everything that depends on the method and on dtypes and sizes of its inputs, but
// not on their addresses. Reused from call to call, so that a repeated call allocates nothing.
struct PreparedCall {
  std::uint32_t index = 0;  // of the method
  const LoadedMethod* method = nullptr;
  std::span<const Value> given;           // the caller's inputs
  std::vector<InputDesc> inputs;          // what they are; padded sizes where one is padded (Padding)
  std::vector<std::int64_t> sizes;        // by padded dimension, the given size; -1: not padded. Empty: no padding
  std::vector<std::int64_t> key;          // of the plan
  ExecutorCache::Entry* entry = nullptr;  // null for a method in segments
  Clock::time_point begin;                // of the call, when it is timed

  bool in_segments() const { return !method->steps.empty(); }
  bool padded() const { return !sizes.empty(); }
  const Plan& plan() const { return entry->executor->plan(); }
  std::size_t output_count() const { return method->user_outputs.size(); }
  const PlanOutput& output(std::size_t i) const { return plan().outputs[method->user_outputs[i]]; }

  // Sets method, given and inputs. Throws InvalidArgument for a wrong number of inputs and for one that is neither a
  // tensor nor a number; dtypes and sizes are checked where a plan is looked up.
  void describe(const ProgramImpl& program, std::uint32_t method_index, std::span<const Value> values,
                Counters& counters);
};

}  // namespace graft
