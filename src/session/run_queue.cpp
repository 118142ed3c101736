#include "session/run_queue.h"

#include <exception>
#include <utility>

#include "base/check.h"

namespace graft {

RunQueue::RunQueue(std::size_t capacity, std::function<std::vector<Value>(const Job&)> run)
    : capacity_(capacity), run_(std::move(run)) {}

std::future<std::vector<Value>> RunQueue::submit(Job job) {
  const std::unique_lock lock(mutex_);
  GRAFT_CHECK(InvalidArgument, !closed_, "the session is closed");
  GRAFT_CHECK(Busy, jobs_.size() < capacity_, "the queue is full: ", jobs_.size(), " runs wait, at most ", capacity_);
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  jobs_.push_back(std::move(job));
  changed_.notify_one();
  return jobs_.back().result.get_future();
}

void RunQueue::work() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    try {
      job.result.set_value(run_(job));
    } catch (...) {
      job.result.set_exception(std::current_exception());
    }
  }
}

void RunQueue::close() {
  {
    const std::unique_lock lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }
  if (worker_.joinable()) worker_.join();
}

}  // namespace graft
