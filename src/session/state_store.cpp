#include "session/state_store.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"

namespace graft {
namespace {

std::string str_of(const KvOptions& kv) {
  return str(kv.rows, " rows of ", kv.length, " tokens, ", name(kv.type), ", ", kv.window_slack, " beside a window, ",
             kv.encoder_length, " of an encoder");
}

}  // namespace

States::States() try : impl_(std::make_unique<Impl>()) {
} catch (...) {
  rethrow_typed();
}
States::~States() = default;

StateStore::StateStore(const ProgramImpl& program, std::shared_ptr<States> shared, const KvOptions& kv,
                       Counters& counters)
    : program_(program),
      kv_(kv),
      counters_(counters),
      shared_(shared != nullptr),
      states_(shared ? std::move(shared) : std::make_shared<States>()) {
  Internal::StatesImpl& states = Internal::of(*states_);
  const std::lock_guard guard(states.mutex);
  // Everything is checked before anything is added.
  for (const StateInfo& state : program.states) {
    const auto known = states.entries.find(state.state.fqn);
    if (known == states.entries.end()) continue;
    const ir::State &have = known->second.info, &want = state.state;
    GRAFT_CHECK(
        InvalidArgument,
        have.dtype == want.dtype && have.shape == want.shape && have.kind == want.kind && have.windows == want.windows,
        "state '", want.fqn, "' of ", program.source, " is ", TensorDesc(want.dtype, want.shape).str(),
        ", the shared one is ", TensorDesc(have.dtype, have.shape).str());
  }
  if (program.has_kv_cache()) {
    GRAFT_CHECK(InvalidArgument, !states.kv || *states.kv == kv, "the cache of ", program.source, " must have the ",
                "sizes and the type of the shared one, ", str_of(*states.kv), ", got ", str_of(kv));
    states.kv = kv;
  }
  for (const StateInfo& state : program.states)
    entries_.push_back(
        &states.entries.try_emplace(state.state.fqn, Internal::StatesImpl::Entry{state.state, {}}).first->second);
}

void StateStore::lock(std::optional<BusyGuard>& guard) const {
  if (shared_ && count() > 0)
    guard.emplace(Internal::of(*states_).busy,
                  "the states are in use by another session; sessions that share them take turns");
}

void StateStore::lock(std::optional<BusyGuard>& guard, const WaitLimit& limit) const {
  if (shared_ && count() > 0) guard.emplace(Internal::of(*states_).busy, limit);
}

std::byte* StateStore::data(std::uint32_t state) {
  AlignedMemory& memory = entries_[state]->memory;
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
    std::memcpy(entries_[state]->memory.data(), initial, bytes);
  } else if (!holds_tokens(info(state).kind)) {
    std::memset(entries_[state]->memory.data(), 0, bytes);
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
    counters_.state_bytes -= entries_[state]->memory.size();
    entries_[state]->memory = std::move(memory);
  }
  kv_ = kv;
}

void StateStore::clear() {
  entries_.assign(entries_.size(), nullptr);
  states_.reset();
  counters_.state_bytes = 0;
}

}  // namespace graft
