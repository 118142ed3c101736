#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "graft/graft.h"
#include "session/wait_watcher.h"

namespace graft {

// Runs in the background, in the order they were submitted, on one thread, which starts with the first. A WaitWatcher
// ends jobs that wait for too long.
class RunQueue {
 public:
  struct Job {
    std::string method;
    std::vector<Value> inputs;
    RunOptions options;
    std::promise<std::vector<Value>> result;
  };

  // `run` does a job's run, on the queue's thread.
  RunQueue(std::size_t capacity, std::function<std::vector<Value>(const Job&)> run);
  ~RunQueue() { close(); }
  RunQueue(const RunQueue&) = delete;
  RunQueue& operator=(const RunQueue&) = delete;

  // Throws Busy when `capacity` jobs wait already, InvalidArgument after close().
  std::future<std::vector<Value>> submit(Job job);
  // Finishes what was submitted and ends the thread.
  void close();

 private:
  void work();
  Clock::time_point end_waiting(std::unique_lock<std::mutex>& lock, Clock::time_point now);

  std::size_t capacity_;
  std::function<std::vector<Value>(const Job&)> run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool closed_ = false;
  std::thread worker_;
  WaitWatcher watcher_;
};

}  // namespace graft
