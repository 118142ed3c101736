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
  int workers = 1;            // runs at one time, each of another session
  std::size_t capacity = 16;  // runs that may wait, of all sessions together
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

// A queue of runs over several sessions, done by threads of its own. Runs of one session happen in the order of their
// submission and never two at once; those of different sessions side by side, the session that has waited longest
// first. A run that fails takes nothing else with it. Nothing that was accepted is lost: every future gets its result
// or its error.
//
// All functions may be called from any thread; sessions must not be used directly while runs of theirs wait (Busy).
class GRAFT_API Pipeline {
 public:
  // Throws InvalidArgument for no sessions, null, one session given twice, no workers or no capacity; SystemError when
  // a thread cannot be started.
  explicit Pipeline(std::vector<std::shared_ptr<Session>> sessions, const PipelineOptions& options = {});
  ~Pipeline();  // shutdown()
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Appends a run of session `session`, an index of the constructor's list; tensors of the inputs must stay valid until
  // it is done. Waits while `capacity` runs wait. Throws InvalidArgument for an index that there is not and after
  // shutdown() began, also when that happens while it waits; Busy when it would have to wait on one of the pipeline's
  // own threads.
  std::future<std::vector<Value>> submit(std::size_t session, std::string method, std::vector<Value> inputs,
                                         RunOptions options = {});
  // The same without waiting: empty when `capacity` runs wait.
  std::optional<std::future<std::vector<Value>>> try_submit(std::size_t session, std::string method,
                                                            std::vector<Value> inputs, RunOptions options = {});
  // Other work on a session in its place of the order: resetting states, run_into, several runs in a row. What it
  // throws comes out of the future.
  std::future<void> submit(std::size_t session, std::function<void(Session&)> work);
  std::optional<std::future<void>> try_submit(std::size_t session, std::function<void(Session&)> work);

  // Waits until nothing waits or runs. What others submit meanwhile is waited for too.
  void drain();
  // Takes no more runs, finishes those that were accepted and ends the threads.
  void shutdown();

  PipelineCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace graft
