#include "session/run_queue.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/thread.h"
#include "session/wait_limit.h"

namespace graft {

RunQueue::RunQueue(std::size_t capacity, std::function<std::vector<Value>(const Job&)> run)
    : capacity_(capacity), run_(std::move(run)) {}

std::future<std::vector<Value>> RunQueue::submit(Job job) {
  const std::unique_lock lock(mutex_);
  GRAFT_CHECK(InvalidArgument, !closed_, "the session is closed");
  GRAFT_CHECK(Busy, jobs_.size() < capacity_, "the queue is full: ", jobs_.size(), " runs wait, at most ", capacity_);
  if (!worker_.joinable()) worker_ = start_thread("the thread of a queue of runs", [this] { work(); });
  if (WaitLimit::of(job.options).exists() && !watcher_.joinable())
    watcher_ = start_thread("the thread that ends waiting runs", [this] { watch(); });
  jobs_.push_back(std::move(job));
  changed_.notify_one();
  watched_.notify_one();
  return jobs_.back().result.get_future();
}

void RunQueue::watch() {
  std::unique_lock lock(mutex_);
  while (!closed_ || !jobs_.empty()) {
    const Clock::time_point now = Clock::now();
    Clock::time_point next = Clock::time_point::max();
    std::vector<Job> ended;
    for (auto job = jobs_.begin(); job != jobs_.end();) {
      const WaitLimit limit = WaitLimit::of(job->options);
      if (const std::exception_ptr error = limit.error(now)) {
        job->result.set_exception(error);
        ended.push_back(std::move(*job));
        job = jobs_.erase(job);
      } else {
        next = std::min(next, limit.next_look(now));
        ++job;
      }
    }
    if (!ended.empty()) {  // frees what they hold, without the lock
      lock.unlock();
      ended.clear();
      lock.lock();
      continue;
    }
    if (next == Clock::time_point::max()) {
      watched_.wait(lock);
    } else {
      watched_.wait_until(lock, next);
    }
  }
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
      if (closed_) watched_.notify_one();  // it may have been the last
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
    watched_.notify_one();
  }
  if (watcher_.joinable()) watcher_.join();
  if (worker_.joinable()) worker_.join();
}

}  // namespace graft
