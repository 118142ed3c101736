#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "device/session_device.h"
#include "graft/graft.h"
#include "load/program_impl.h"
#include "session/kv_cache.h"
#include "session/prepared_call.h"
#include "session/session_arena.h"

namespace graft {

// The addresses of a run: every allocation of the plan gets its base.
class Binder {
 public:
  Binder(const ProgramImpl& program, KvCache& kv, SessionArena& arena, bool strict_zero_copy, Counters& counters);

  // As Session::freeze_input.
  void freeze(std::uint32_t method, std::size_t input);

  // `inputs` are the call's, padded where it is padded; `outputs` has an address for each output of the plan. An input
  // that is not aligned to its elements is copied. Throws InvalidArgument for inputs without memory, and for memory of
  // outputs that the run must not write; OutOfMemory and Unavailable of the device, null for the CPU.
  void bind(const PreparedCall& call, std::span<const Value> inputs, std::span<std::byte* const> outputs,
            const RunOptions& options, SessionDevice* device);
  // Copies inputs that the run wrote in a copy back to the caller's memory.
  void return_copies(const PreparedCall& call, std::span<const Value> inputs);
  // Frees the copies; the session is closed.
  void clear();

 private:
  std::byte* input_base(const PreparedCall& call, std::uint32_t input, const TensorView& tensor);
  std::byte* aligned_copy(const PreparedCall& call, std::uint32_t input, const TensorView& tensor, std::size_t bytes);
  std::byte* state_on_device(const PreparedCall& call, std::size_t id, SessionDevice& device);
  void check_overlaps(const PreparedCall& call) const;

  struct Frozen {
    std::uint32_t method = 0, input = 0;
    std::byte* address = nullptr;  // null before a run
  };

  const ProgramImpl& program_;
  KvCache& kv_;
  SessionArena& arena_;
  bool strict_zero_copy_;
  Counters& counters_;
  std::vector<AlignedMemory> copies_;  // by input
  std::vector<Frozen> frozen_;
};

}  // namespace graft
