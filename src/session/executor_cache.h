#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "exec/executor.h"
#include "graft/graft.h"
#include "load/program_impl.h"

namespace graft {

struct PreparedCall;

// A session's instantiated plans, most recently used first; the least recently used is dropped when there are too many.
class ExecutorCache {
 public:
  struct Entry {
    std::uint32_t method = 0;
    std::unique_ptr<Executor> executor;
    std::vector<std::byte*> bases;              // by allocation of the plan, of its last run
    std::vector<ggml_backend_buffer*> buffers;  // of states that the device keeps, by allocation; else null
    bool counts_as_miss = false;                // its plan was made for a run that has not happened yet
  };

  // `capacity`: plans of public methods; segments of methods that are cut get further entries. `control` and `device`
  // must outlive it; `device` is null for the CPU.
  ExecutorCache(const ProgramImpl& program, int threads, std::size_t capacity, RunControl& control,
                SessionDevice* device, Counters& counters);

  // Sets key and entry of a call whose inputs are described. The entry stays until the next call of this function.
  // Throws InvalidArgument naming the input that the method does not take, and what planning throws.
  void find(PreparedCall& call, const KvOptions& kv, const KvExtent& extent);
  void clear() { entries_.clear(); }
  // Forgets all, and makes executors for the CPU from now on.
  void leave_device() {
    clear();
    device_ = nullptr;
  }

 private:
  const ProgramImpl& program_;
  int threads_;
  std::size_t capacity_;
  RunControl& control_;
  SessionDevice* device_;
  Counters& counters_;
  std::list<Entry> entries_;
};

}  // namespace graft
