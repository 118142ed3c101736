#include "session/state_store.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "device/device_copy.h"

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
  for (const StateInfo& state : program.states) {
    const auto [entry, fresh] = states.entries.try_emplace(state.state.fqn);
    if (fresh) entry->second.info = state.state;
    entries_.push_back(&entry->second);
  }
}

void StateStore::lock(std::optional<BusyGuard>& guard) const {
  if (shared_ && count() > 0)
    guard.emplace(Internal::of(*states_).busy,
                  "the states are in use by another session; sessions that share them take turns");
}

void StateStore::lock(std::optional<BusyGuard>& guard, const WaitLimit& limit) const {
  if (shared_ && count() > 0) guard.emplace(Internal::of(*states_).busy, limit);
}

std::byte* StateStore::on_host(std::uint32_t state) {
  Entry& entry = *entries_[state];
  const std::size_t bytes = desc(state).byte_count();
  const bool fresh = !entry.memory.data();
  if (fresh) {
    entry.memory = AlignedMemory(bytes);
    counters_.state_bytes += bytes;
  }
  if (entry.on_host) {
    if (fresh) reset(state);
    return entry.memory.data();
  }
  entry.device->guard("a state came from it", [&] {
    copy_to_host(nullptr, entry.there.buffer(), entry.there.base(), entry.memory.data(), bytes);
  });
  ++counters_.state_downloads;
  entry.on_host = true;
  return entry.memory.data();
}

std::byte* StateStore::data(std::uint32_t state) {
  std::byte* const bytes = on_host(state);
  entries_[state]->on_device = false;
  return bytes;
}

const std::byte* StateStore::existing(std::uint32_t state) {
  const Entry& entry = *entries_[state];
  return entry.memory.data() || entry.on_device ? on_host(state) : nullptr;
}

const DeviceMemory& StateStore::on_device(std::uint32_t state, const std::shared_ptr<const ProgramDevice>& device,
                                          std::size_t bytes, const std::function<std::vector<Range>()>& used) {
  Entry& entry = *entries_[state];
  if (entry.device != device || entry.there.size() != bytes) {
    if (entry.on_device) on_host(state);
    release(entry);
    entry.device = device;
    entry.there = DeviceMemory(device->handle(), device->name(), bytes, str("state '", entry.info.fqn, "'"));
    device->guard("a state was made", [&] { ggml_backend_buffer_clear(entry.there.buffer(), 0); });
  }
  const bool empty = holds_tokens(entry.info.kind) && !entry.memory.data();
  if (!entry.on_device && !empty) {
    // Attention multiplies what no token has been written to by 0 there: it must be finite, as it need not be here.
    const std::byte* from = on_host(state);
    std::vector<std::byte> finite(desc(state).byte_count());
    for (const auto& [offset, count] : used()) std::memcpy(finite.data() + offset, from + offset, count);
    device->guard("a state went to it", [&] {
      copy_to_device(nullptr, entry.there.buffer(), entry.there.base(), finite.data(), finite.size());
    });
    ++counters_.state_uploads;
  }
  entry.on_device = true;
  entry.on_host = false;
  return entry.there;
}

void StateStore::release(Entry& entry) {
  entry.abandon_lost();
  if (entry.device && entry.device->reads_old_descriptors() && entry.there.buffer())
    entry.old.push_back(std::move(entry.there));
  entry.there = DeviceMemory();
  entry.on_device = false;
}

bool StateStore::leave_device() {
  bool lost = false;
  for (std::uint32_t i = 0; i < count(); ++i) {
    Entry& entry = *entries_[i];
    if (!entry.device) continue;
    if (!entry.on_host && entry.device->is_lost()) {
      entry.on_host = true;
      if (entry.memory.data()) reset(i);
      lost = lost || holds_tokens(entry.info.kind);
    }
    on_host(i);
    release(entry);
  }
  return lost;
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
  for (std::uint32_t i = 0; i < count(); ++i) {
    Entry& entry = *entries_[i];
    if (!entry.memory.data()) continue;
    entry.on_host = true;
    entry.on_device = false;
    reset(i);
  }
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
    release(*entries_[state]);
  }
  kv_ = kv;
}

void StateStore::clear() {
  entries_.assign(entries_.size(), nullptr);
  states_.reset();
  counters_.state_bytes = 0;
}

}  // namespace graft
