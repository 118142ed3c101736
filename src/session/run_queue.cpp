#include "session/run_queue.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "base/thread.h"
#include "session/wait_limit.h"

namespace graft {

RunQueue::RunQueue(std::size_t capacity, std::function<std::vector<Value>(const Job&)> run)
    : capacity_(capacity),
      run_(std::move(run)),
      watcher_(mutex_,
               [this](std::unique_lock<std::mutex>& lock, Clock::time_point now) { return end_waiting(lock, now); }) {}

std::future<std::vector<Value>> RunQueue::submit(Job job) {
  const std::unique_lock lock(mutex_);
  GRAFT_CHECK(InvalidArgument, !closed_, "the session is closed");
  GRAFT_CHECK(Busy, jobs_.size() < capacity_, "the queue is full: ", jobs_.size(), " runs wait, at most ", capacity_);
  if (!worker_.joinable()) worker_ = start_thread("the thread of a queue of runs", [this] { work(); });
  if (WaitLimit::of(job.options).exists()) watcher_.watch();
  jobs_.push_back(std::move(job));
  changed_.notify_one();
  return jobs_.back().result.get_future();
}

Clock::time_point RunQueue::end_waiting(std::unique_lock<std::mutex>& lock, Clock::time_point now) {
  Clock::time_point next = Clock::time_point::max();
  std::vector<Job> ended;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const WaitLimit limit = WaitLimit::of(job->options);
    if (const std::exception_ptr error = limit.error(now)) {
      ended.push_back(std::move(*job));  // first, as it may fail
      ended.back().result.set_exception(error);
      job = jobs_.erase(job);
    } else {
      next = std::min(next, limit.next_look(now));
      ++job;
    }
  }
  if (ended.empty()) return next;
  lock.unlock();
  ended.clear();  // frees what they hold, without the lock
  lock.lock();
  return now;
}

void RunQueue::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());  // a new one would allocate
    jobs_.pop_front();
    lock.unlock();
    try {
      job.result.set_value(run_(job));
    } catch (...) {
      job.result.set_exception(typed_exception());
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
  watcher_.stop();
}

}  // namespace graft
