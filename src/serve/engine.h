#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "graft/llm.h"

namespace graft::serve {

// A text to generate.
struct Job {
  std::vector<std::int64_t> prompt;
  GenerationOptions options;
  RequestOptions request;
  std::shared_ptr<const llm::PreparedImages> images = {};  // of the prompt; null: none
};

struct EngineStats {
  std::size_t waiting = 0, running = 0;  // now: jobs
  GenerationStats generation;
  double busy_seconds = 0;  // that the engine's thread had jobs: in runs, and beside them
  double cache_use = 0;     // how much of the cache holds tokens, those of ended texts included; from 0 to 1
  PrefixCacheStats prefixes;
};

// Continuous batching for many threads: one thread owns a BatchGenerator; requests join and leave before each step.
class Engine {
 public:
  // Called on the engine's thread after each step that changed the job, and for the last time with the state's reason
  // or with an error. The state's views are valid during the call.
  using OnProgress = std::function<void(std::size_t job, const RequestState& state, std::exception_ptr error)>;
  using RequestId = std::uint64_t;

  // Makes all plans and begins. `prompt_lookup`: the most tokens that a job drafts
  // (GenerationOptions::prompt_lookup_num_tokens). Throws what BatchGenerator throws.
  Engine(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options, std::size_t queue,
         const PrefixCacheOptions& prefix_cache = {}, std::int64_t prompt_lookup = 0);
  ~Engine() { end(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues the jobs of a request, all or none. Throws Busy when the queue has no room for them. At the deadline its
  // jobs end with the error Cancelled.
  RequestId submit(std::vector<Job> jobs, Clock::time_point deadline, OnProgress on_progress);
  // Cancels what runs, and returns when the engine's thread has ended. Not from that thread.
  void end();
  // Before the next step; its callback is not called any more. An id that has ended is fine.
  void cancel(RequestId id);
  EngineStats stats() const;
  const LanguageModel& model() const { return *model_; }
  std::int64_t capacity() const { return capacity_; }  // tokens of a sequence
  std::int64_t rows() const { return rows_; }
  std::uint64_t state_bytes() const { return state_bytes_; }  // of the caches of keys and values, in memory

 private:
  struct Request {
    RequestId id = 0;
    std::vector<Job> jobs;
    Clock::time_point deadline;
    OnProgress on_progress;
  };
  struct Active {  // a job in the generator
    RequestId request = 0;
    std::size_t job = 0;
    BatchGenerator::Id id = 0;
    std::size_t tokens = 0, prompt_logprobs = 0;  // that on_progress has seen
    Clock::time_point deadline;
    std::shared_ptr<const OnProgress> on_progress;
  };

  void loop();
  bool turn();  // false: stopping
  void stop();
  void take_new(std::vector<Request> requests);
  void drop(const std::vector<RequestId>& ids);
  void end_late();
  void step();
  void report(std::exception_ptr error);
  void end_with(std::size_t active, std::exception_ptr error);
  void tell(const Active& active, const RequestState& state, std::exception_ptr error);
  void publish();

  const std::shared_ptr<const LanguageModel> model_;
  BatchGenerator generator_;
  const std::size_t queue_;
  std::int64_t capacity_ = 0, rows_ = 0;
  std::uint64_t state_bytes_ = 0;
  std::vector<Active> active_;
  std::exception_ptr thrown_;  // by the last step, and not yet reported
  CancelToken ended_;          // of a model in stages: a stage that hangs must not hold up the end
  bool lost_ = false;          // a stage of the model was not there in the last step: what waits, waits
  bool logged_prefixes_ = false;
  double busy_seconds_ = 0;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Request> new_;
  std::size_t new_jobs_ = 0;
  std::vector<RequestId> cancelled_;
  RequestId next_ = 1;
  EngineStats stats_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace graft::serve
