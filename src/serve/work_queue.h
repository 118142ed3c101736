#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace graft::serve {

// Runs tasks one after the other on a thread of its own: sessions take one call at a time.
class WorkQueue {
 public:
  explicit WorkQueue(std::size_t capacity);
  ~WorkQueue() { end(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Throws Busy when as many tasks as the capacity wait. Tasks may not throw.
  void submit(std::function<void()> task);
  std::size_t waiting() const;
  // Drops the tasks that wait, and returns when the one that runs has ended. Not from a task.
  void end();

 private:
  void loop();

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace graft::serve
