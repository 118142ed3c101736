#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "graft/graft.h"
#include "load/program_impl.h"
#include "lowering/kv_shape.h"

namespace graft {

// The memory of a session's states, each allocated when it is first needed. States are numbered as in the program.
class StateStore {
 public:
  // `kv`: the sizes of states that are caches of keys and values.
  StateStore(const ProgramImpl& program, const KvOptions& kv, Counters& counters);

  const ProgramImpl& program() const { return program_; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(program_.states.size()); }
  const ir::State& info(std::uint32_t state) const { return program_.states[state].state; }
  TensorDesc desc(std::uint32_t state) const { return state_desc(info(state), kv_); }
  const KvOptions& kv() const { return kv_; }

  std::byte* data(std::uint32_t state);
  // Null when it was not needed so far.
  std::byte* existing(std::uint32_t state) const { return memory_[state].data(); }
  // Sets all states to their values at load.
  void reset();
  std::vector<StateView> views();

  // New memory for each existing state whose size changes when the caches are resized.
  using Resized = std::vector<std::pair<std::uint32_t, AlignedMemory>>;
  void resize(const KvOptions& kv, Resized resized);
  // Frees everything; the session is closed.
  void clear();

 private:
  void reset(std::uint32_t state);

  const ProgramImpl& program_;
  KvOptions kv_;
  Counters& counters_;
  std::vector<AlignedMemory> memory_;
};

// States that hold keys and values of tokens: a cache is empty when its lengths are 0, whatever they hold.
inline bool holds_tokens(ir::StateKind kind) { return kind == ir::StateKind::kv || kind == ir::StateKind::kv_encoder; }

}  // namespace graft
