#include "session/state_store.h"

#include <cstring>
#include <utility>

namespace graft {

StateStore::StateStore(const ProgramImpl& program, const KvOptions& kv, Counters& counters)
    : program_(program), kv_(kv), counters_(counters), memory_(program.states.size()) {}

std::byte* StateStore::data(std::uint32_t state) {
  AlignedMemory& memory = memory_[state];
  if (!memory.data()) {
    const std::size_t bytes = desc(state).byte_count();
    memory = AlignedMemory(bytes);
    reset(state);
    counters_.state_bytes += bytes;
  }
  return memory.data();
}

void StateStore::reset(std::uint32_t state) {
  const std::size_t bytes = desc(state).byte_count();
  if (const std::byte* initial = program_.states[state].initial) {
    std::memcpy(memory_[state].data(), initial, bytes);
  } else if (!holds_tokens(info(state).kind)) {
    std::memset(memory_[state].data(), 0, bytes);
  }
}

void StateStore::reset() {
  for (std::uint32_t i = 0; i < count(); ++i)
    if (existing(i)) reset(i);
}

std::vector<StateView> StateStore::views() {
  std::vector<StateView> views;
  for (std::uint32_t i = 0; i < count(); ++i) {
    const TensorDesc what = desc(i);
    views.push_back({info(i).fqn, {data(i), what.dtype, what.shape}});
  }
  return views;
}

void StateStore::resize(const KvOptions& kv, Resized resized) {
  for (auto& [state, memory] : resized) {
    counters_.state_bytes += memory.size();
    counters_.state_bytes -= memory_[state].size();
    memory_[state] = std::move(memory);
  }
  kv_ = kv;
}

void StateStore::clear() {
  for (AlignedMemory& memory : memory_) memory = AlignedMemory();
  counters_.state_bytes = 0;
}

}  // namespace graft
