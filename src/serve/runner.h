#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "graft/graft.h"
#include "serve/options.h"

namespace graft::serve {

// Runs one method of a program for many threads, in the order of the calls. Where the method's rows are independent
// (MethodInfo), calls that wait and agree in all but their number of rows are one run.
class Runner {
 public:
  using OnDone = std::function<void(const std::vector<Value>& outputs, std::exception_ptr error)>;

  // The method "forward", or the only one. Throws InvalidArgument for a program with several others.
  Runner(std::shared_ptr<const Program> program, const SessionOptions& options, std::size_t queue,
         const BatchOptions& batch);
  ~Runner() { end(); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const MethodInfo& method() const { return *method_; }
  const std::shared_ptr<const Program>& program() const { return program_; }
  // `on_done` is called once, on the runner's thread, unless this throws Busy or the runner ends before. The outputs
  // are valid during the call. A program with states starts each call with those of its load.
  void run(std::vector<Value> inputs, Clock::time_point deadline, const CancelToken& cancel, OnDone on_done);
  // Drops the calls that wait, and returns when the one that runs has ended. Not from the runner's thread.
  void end();
  std::size_t waiting() const;
  std::uint64_t state_bytes() const { return state_bytes_; }  // of mutable buffers

  struct Stats {
    std::uint64_t calls = 0, runs = 0, rows = 0;  // that ended
  };
  Stats stats() const;

 private:
  struct Job {
    std::vector<Value> inputs;
    Clock::time_point arrived, deadline;
    CancelToken cancel;
    OnDone on_done;
    std::int64_t rows = 0;  // 0: not to be batched
  };

  std::int64_t rows_of(const std::vector<Value>& inputs) const;
  // The next job and those that may run with it; none: the runner ends.
  std::vector<Job> next();
  void take_fitting(std::vector<Job>& jobs, std::int64_t& rows);
  void loop();
  void run_together(std::vector<Job>& jobs);
  void run_alone(const Job& job);
  void finish(const Job& job, const std::vector<Value>& outputs, std::exception_ptr error);

  std::shared_ptr<const Program> program_;
  Session session_;
  const MethodInfo* method_ = nullptr;
  bool has_states_ = false;
  std::uint64_t state_bytes_ = 0;
  const std::size_t capacity_;
  BatchOptions batch_;
  std::vector<std::vector<std::byte>> joined_;  // inputs of the jobs of a run
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  Stats stats_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace graft::serve
