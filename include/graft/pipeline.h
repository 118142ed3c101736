#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graft/graft.h"

namespace graft {

struct PipelineOptions {
  int workers = 1;            // runs at a time, each on a different session
  std::size_t capacity = 16;  // waiting runs, of all sessions together
};

// Counts since the pipeline was made. submitted = waiting + running + finished.
struct PipelineCounters {
  std::uint64_t submitted = 0;
  std::uint64_t finished = 0;  // those that failed too
  std::uint64_t failed = 0;
  std::size_t waiting = 0;  // now
  std::size_t running = 0;  // now
  std::size_t most_waiting = 0;
};

// A queue of runs over several sessions, executed by its own threads. Runs of one session execute in the order of
// submission, one at a time; those of different sessions in parallel, the session that has waited longest first. A
// failed run affects no other. Every accepted run completes: its future gets a result or an error.
//
// All functions may be called from any thread; sessions must not be used directly while they have waiting runs (Busy).
class GRAFT_API Pipeline {
 public:
  // Throws InvalidArgument for no sessions, null, one session given twice, no workers or no capacity; SystemError when
  // a thread cannot be started.
  explicit Pipeline(std::vector<std::shared_ptr<Session>> sessions, const PipelineOptions& options = {});
  ~Pipeline();  // shutdown()
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Appends a run of session `session`, an index of the constructor's list; tensors of the inputs must stay valid until
  // it is done. Waits while `capacity` runs wait. Throws InvalidArgument for an index out of range and once shutdown()
  // has begun, also while it waits; Busy when called on one of the pipeline's own threads and it would have to wait.
  std::future<std::vector<Value>> submit(std::size_t session, std::string method, std::vector<Value> inputs,
                                         RunOptions options = {});
  // As submit(), without waiting: empty when `capacity` runs wait.
  std::optional<std::future<std::vector<Value>>> try_submit(std::size_t session, std::string method,
                                                            std::vector<Value> inputs, RunOptions options = {});
  // Appends other work on a session, in order with its runs: resetting states, run_into, several runs in a row. The
  // future throws what it throws.
  std::future<void> submit(std::size_t session, std::function<void(Session&)> work);
  std::optional<std::future<void>> try_submit(std::size_t session, std::function<void(Session&)> work);

  // Waits until no run waits or executes, including those that others submit meanwhile.
  void drain();
  // Takes no more runs, finishes those that were accepted and ends the threads.
  void shutdown();

  PipelineCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace graft
