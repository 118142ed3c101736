#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "device/program_device.h"
#include "graft/graft.h"
#include "load/program_impl.h"
#include "lowering/kv_shape.h"
#include "session/busy_guard.h"

namespace graft {

struct States::Impl {
  struct Entry {
    Entry() = default;
    ~Entry() { abandon_lost(); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    // A device that is lost cannot be asked to free memory.
    void abandon_lost() {
      if (!device || !device->is_lost()) return;
      there.abandon();
      for (DeviceMemory& memory_before : old) memory_before.abandon();
    }

    ir::State info;
    AlignedMemory memory;  // allocated when it is first needed
    // Of a state that a device keeps between runs: its memory there, and who has its bytes.
    std::shared_ptr<const ProgramDevice> device;
    DeviceMemory there;
    std::vector<DeviceMemory> old;  // of before, for ProgramDevice::reads_old_descriptors()
    bool on_host = true, on_device = false;
  };
  std::mutex mutex;  // of `entries` and `kv`, which the constructors of sessions extend
  std::map<std::string, Entry, std::less<>> entries;
  std::optional<KvOptions> kv;  // of the first session with a cache of keys and values
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
};

// The states of a session, each with memory from when it is first needed: its own, or those that it shares with other
// sessions by name. States are numbered as in the program.
class StateStore {
 public:
  // `shared`: null for states of its own. `kv`: the sizes of states that are caches of keys and values. Throws
  // InvalidArgument when shared states have other types or sizes.
  StateStore(const ProgramImpl& program, std::shared_ptr<States> shared, const KvOptions& kv, Counters& counters);

  // Held during a call: states serve one session at a time. Throws Busy when another session has them.
  void lock(std::optional<BusyGuard>& guard) const;
  void lock(std::optional<BusyGuard>& guard, const WaitLimit& limit) const;

  const ProgramImpl& program() const { return program_; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(program_.states.size()); }
  const ir::State& info(std::uint32_t state) const { return program_.states[state].state; }
  TensorDesc desc(std::uint32_t state) const { return state_desc(info(state), kv_); }
  const KvOptions& kv() const { return kv_; }
  bool shared() const { return shared_; }

  // The state's bytes on the host, which the caller may write. What a device has of them comes from there first; throws
  // Unavailable if it is lost.
  std::byte* data(std::uint32_t state);
  // The same to be read. Null when the state was not needed so far.
  const std::byte* existing(std::uint32_t state);
  struct Range {
    std::size_t offset = 0, bytes = 0;
  };
  // The state's memory on the device, with its bytes, which the run may write; `bytes`: its size there, `used`: the
  // ranges of its bytes that mean something, asked for where they go there. Throws OutOfMemory, Unavailable.
  const DeviceMemory& on_device(std::uint32_t state, const std::shared_ptr<const ProgramDevice>& device,
                                std::size_t bytes, const std::function<std::vector<Range>()>& used);
  // Takes all states back to the host. Of a device that is lost they have their values at load; true if keys and values
  // were among them.
  bool leave_device();
  // Sets all states to their values at load.
  void reset();
  std::vector<StateView> views();

  // New memory for each existing state whose size changes when the caches are resized.
  using Resized = std::vector<std::pair<std::uint32_t, AlignedMemory>>;
  void resize(const KvOptions& kv, Resized resized);
  // Frees everything that other sessions do not share; the session is closed.
  void clear();

 private:
  using Entry = Internal::StatesImpl::Entry;
  std::byte* on_host(std::uint32_t state);
  void reset(std::uint32_t state);
  static void release(Entry& entry);

  const ProgramImpl& program_;
  KvOptions kv_;
  Counters& counters_;
  bool shared_;
  std::shared_ptr<States> states_;
  std::vector<Entry*> entries_;  // by state
};

// States of tokens: a row of them is empty when its length is 0, whatever they hold.
inline bool holds_tokens(ir::StateKind kind) {
  return kind == ir::StateKind::kv || kind == ir::StateKind::kv_encoder || kind == ir::StateKind::recurrent;
}

}  // namespace graft
