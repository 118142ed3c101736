#include "base/check.h"
#include "session/session_impl.h"

// Runs in the background, in the order they were submitted, on one thread of the session.
namespace graft {

std::future<std::vector<Value>> Session::Impl::submit(Job job) {
  const std::unique_lock lock(queue_mutex);
  GRAFT_CHECK(InvalidArgument, !queue_closed, "the session is closed");
  GRAFT_CHECK(Busy, queue.size() < options.queue_capacity, "the queue is full: ", queue.size(), " runs wait, at most ",
              options.queue_capacity);
  if (!worker.joinable()) worker = std::thread([this] { work(); });
  queue.push_back(std::move(job));
  queue_changed.notify_one();
  return queue.back().result.get_future();
}

void Session::Impl::work() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(queue_mutex);
      queue_changed.wait(lock, [&] { return queue_closed || !queue.empty(); });
      if (queue.empty()) return;
      job = std::move(queue.front());
      queue.pop_front();
    }
    try {
      // A direct call of the owner's may be under way: this one waits for its turn.
      while (busy.test_and_set(std::memory_order_acquire)) busy.wait(true, std::memory_order_relaxed);
      struct Release {
        std::atomic_flag& flag;
        ~Release() {
          flag.clear(std::memory_order_release);
          flag.notify_one();
        }
      } release{busy};
      job.result.set_value(run(job.method, job.inputs, job.options));
    } catch (...) {
      job.result.set_exception(std::current_exception());
    }
  }
}

void Session::Impl::drain() {
  {
    const std::unique_lock lock(queue_mutex);
    queue_closed = true;
    queue_changed.notify_one();
  }
  if (worker.joinable()) worker.join();
}

std::future<std::vector<Value>> Session::submit(std::string method, std::vector<Value> inputs, RunOptions options) {
  return impl_->submit({std::move(method), std::move(inputs), options, {}});
}

void Session::close() {
  impl_->drain();
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->closed = true;
  impl_->graphs.clear();
  impl_->states.clear();
  impl_->staging.clear();
  impl_->arena.reset();
  impl_->counters.state_bytes = impl_->counters.staging_bytes = impl_->counters.arena_bytes = 0;
}

}  // namespace graft
