#include "serve/work_queue.h"

#include "base/check.h"

namespace graft::serve {

WorkQueue::WorkQueue(std::size_t capacity) : capacity_(capacity) {
  thread_ = std::thread([this] { loop(); });
}

void WorkQueue::end() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  tasks_.clear();
}

void WorkQueue::submit(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    GRAFT_CHECK(Busy, !stopping_, "the server is stopping");
    GRAFT_CHECK(Busy, tasks_.size() < capacity_, tasks_.size(), " calls wait, the queue has room for ", capacity_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

std::size_t WorkQueue::waiting() const {
  const std::lock_guard lock(mutex_);
  return tasks_.size();
}

void WorkQueue::loop() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task();
    } catch (...) {  // what the task holds gives its answer
    }
  }
}

}  // namespace graft::serve
