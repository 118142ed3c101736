#include "graft/pipeline.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "base/thread.h"
#include "session/wait_limit.h"
#include "session/wait_watcher.h"

namespace graft {

struct Pipeline::Impl {
  struct Work {
    std::function<bool(Session&)> run;               // false when it failed; never throws
    std::function<void(std::exception_ptr)> refuse;  // instead of run
    WaitLimit limit = {};
  };

  struct Stream {
    std::shared_ptr<Session> session;
    std::deque<Work> queue;
    bool busy = false;  // a worker runs its work, or it is in `ready`
  };

  std::vector<Stream> streams;
  PipelineOptions options;
  mutable std::mutex mutex;
  std::condition_variable work_there, room_there, idle;
  std::deque<std::size_t> ready;  // idle streams with queued work, longest waiting first
  bool closed = false;
  PipelineCounters counts;
  std::vector<std::thread> workers;
  std::vector<std::thread::id> own;  // of the workers
  std::mutex joining;
  WaitWatcher watcher{
      mutex, [this](std::unique_lock<std::mutex>& lock, Clock::time_point now) { return end_waiting(lock, now); }};

  Impl(std::vector<std::shared_ptr<Session>> sessions, const PipelineOptions& given) : options(given) {
    GRAFT_CHECK(InvalidArgument, !sessions.empty(), "a pipeline needs at least one session, got none");
    GRAFT_CHECK(InvalidArgument, options.workers > 0, "a pipeline needs at least one worker, got ", options.workers);
    GRAFT_CHECK(InvalidArgument, options.capacity > 0, "a pipeline needs room for at least one run, got 0");
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      GRAFT_CHECK(InvalidArgument, sessions[i], "session ", i, " of the pipeline is null");
      const auto same = std::find(sessions.begin(), sessions.begin() + static_cast<std::ptrdiff_t>(i), sessions[i]);
      GRAFT_CHECK(InvalidArgument, same == sessions.begin() + static_cast<std::ptrdiff_t>(i), "session ", i,
                  " of the pipeline is there twice: its runs would have no order");
    }
    for (std::shared_ptr<Session>& session : sessions) streams.push_back({std::move(session), {}, false});
    try {
      // More workers than sessions would never have anything to do.
      const std::size_t count = std::min(streams.size(), static_cast<std::size_t>(options.workers));
      workers.reserve(count);  // a thread that has begun must get its place
      own.reserve(count);
      for (std::size_t i = 0; i < count; ++i)
        own.push_back(workers.emplace_back(start_thread("a thread of the pipeline", [this] { work(); })).get_id());
    } catch (...) {
      shutdown();
      throw;
    }
  }

  bool on_own_thread() const { return std::ranges::find(own, std::this_thread::get_id()) != own.end(); }

  bool has_room() const { return counts.waiting < options.capacity; }

  // False when the queue is full and it may not wait.
  bool push(std::size_t index, Work work, bool may_wait) {
    std::unique_lock lock(mutex);
    GRAFT_CHECK(InvalidArgument, index < streams.size(), "the pipeline has ", streams.size(), " sessions, got index ",
                index);
    GRAFT_CHECK(InvalidArgument, !closed, "the pipeline was shut down");
    if (!has_room() && !may_wait) return false;
    GRAFT_CHECK(Busy, has_room() || !on_own_thread(), "the pipeline is full: ", counts.waiting,
                " runs wait, and its own thread would wait for itself");
    room_there.wait(lock, [&] { return closed || has_room(); });
    GRAFT_CHECK(InvalidArgument, !closed, "the pipeline was shut down while a run waited for room");
    Stream& stream = streams[index];
    if (work.limit.exists()) watcher.watch();
    stream.queue.push_back(std::move(work));
    ++counts.submitted;
    counts.most_waiting = std::max(counts.most_waiting, ++counts.waiting);
    make_ready(index);
    return true;
  }

  void make_ready(std::size_t index) {
    Stream& stream = streams[index];
    if (stream.busy || stream.queue.empty()) return;
    stream.busy = true;
    ready.push_back(index);
    work_there.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      work_there.wait(lock, [&] { return !ready.empty() || (closed && counts.waiting == 0); });
      if (ready.empty()) return;
      const std::size_t index = ready.front();
      ready.pop_front();
      Stream& stream = streams[index];
      if (stream.queue.empty()) {  // the watcher ended its runs
        stream.busy = false;
        continue;
      }
      Work work = std::move(stream.queue.front());
      stream.queue.pop_front();
      --counts.waiting;
      ++counts.running;
      room_there.notify_one();
      lock.unlock();
      const bool done = work.run(*stream.session);
      work = {};  // frees what it holds, without the lock
      lock.lock();
      --counts.running;
      ++counts.finished;
      counts.failed += done ? 0 : 1;
      stream.busy = false;
      make_ready(index);
      notify_of_ends();
    }
  }

  void notify_of_ends() {
    if (counts.waiting == 0 && counts.running == 0) idle.notify_all();
    if (closed && counts.waiting == 0) work_there.notify_all();
  }

  Clock::time_point end_waiting(std::unique_lock<std::mutex>& lock, Clock::time_point now) {
    Clock::time_point next = Clock::time_point::max();
    std::vector<Work> ended;
    for (Stream& stream : streams)
      for (auto work = stream.queue.begin(); work != stream.queue.end();) {
        if (const std::exception_ptr error = work->limit.error(now)) {
          ended.push_back(std::move(*work));  // first, as it may fail
          ended.back().refuse(error);
          work = stream.queue.erase(work);
          --counts.waiting;
          ++counts.finished;
          ++counts.failed;
          room_there.notify_one();
        } else {
          next = std::min(next, work->limit.next_look(now));
          ++work;
        }
      }
    if (ended.empty()) return next;
    notify_of_ends();
    lock.unlock();
    ended.clear();  // frees what they hold, without the lock
    lock.lock();
    return now;
  }

  void shutdown() {
    GRAFT_CHECK(InvalidArgument, !on_own_thread(), "a pipeline cannot be shut down by its own work");
    {
      const std::lock_guard lock(mutex);
      closed = true;
      work_there.notify_all();
      room_there.notify_all();
    }
    const std::lock_guard lock(joining);
    for (std::thread& worker : workers)
      if (worker.joinable()) worker.join();
    watcher.stop();
  }

  // The future and the work that fulfils it exactly once.
  template <typename T, typename Run>
  static std::pair<std::future<T>, Work> promised(Run run) {
    auto promise = std::make_shared<std::promise<T>>();
    std::future<T> future = promise->get_future();
    const auto work = [promise, run = std::move(run)](Session& session) {
      try {
        if constexpr (std::is_void_v<T>) {
          run(session);
          promise->set_value();
        } else {
          promise->set_value(run(session));
        }
        return true;
      } catch (...) {
        promise->set_exception(std::current_exception());
        return false;
      }
    };
    return {std::move(future), Work{work, [promise](std::exception_ptr error) { promise->set_exception(error); }}};
  }

  static auto run_of(std::string method, std::vector<Value> inputs, const RunOptions& options) {
    auto made = promised<std::vector<Value>>([method = std::move(method), inputs = std::move(inputs), options](
                                                 Session& session) { return session.run(method, inputs, options); });
    made.second.limit = WaitLimit::of(options);
    return made;
  }
};

Pipeline::Pipeline(std::vector<std::shared_ptr<Session>> sessions, const PipelineOptions& options) try
    : impl_(std::make_unique<Impl>(std::move(sessions), options)) {
} catch (...) {
  rethrow_typed();
}

Pipeline::~Pipeline() { impl_->shutdown(); }

std::future<std::vector<Value>> Pipeline::submit(std::size_t session, std::string method, std::vector<Value> inputs,
                                                 RunOptions options) try {
  auto [future, work] = Impl::run_of(std::move(method), std::move(inputs), options);
  impl_->push(session, std::move(work), true);
  return std::move(future);
} catch (...) {
  rethrow_typed();
}

std::optional<std::future<std::vector<Value>>> Pipeline::try_submit(std::size_t session, std::string method,
                                                                    std::vector<Value> inputs, RunOptions options) try {
  auto [future, work] = Impl::run_of(std::move(method), std::move(inputs), options);
  if (!impl_->push(session, std::move(work), false)) return std::nullopt;
  return std::move(future);
} catch (...) {
  rethrow_typed();
}

std::future<void> Pipeline::submit(std::size_t session, std::function<void(Session&)> work) try {
  GRAFT_CHECK(InvalidArgument, work, "the pipeline got work without a function");
  auto [future, run] = Impl::promised<void>(std::move(work));
  impl_->push(session, std::move(run), true);
  return std::move(future);
} catch (...) {
  rethrow_typed();
}

std::optional<std::future<void>> Pipeline::try_submit(std::size_t session, std::function<void(Session&)> work) try {
  GRAFT_CHECK(InvalidArgument, work, "the pipeline got work without a function");
  auto [future, run] = Impl::promised<void>(std::move(work));
  if (!impl_->push(session, std::move(run), false)) return std::nullopt;
  return std::move(future);
} catch (...) {
  rethrow_typed();
}

void Pipeline::drain() try {
  std::unique_lock lock(impl_->mutex);
  GRAFT_CHECK(InvalidArgument, !impl_->on_own_thread(), "a pipeline cannot be drained by its own work");
  impl_->idle.wait(lock, [&] { return impl_->counts.waiting == 0 && impl_->counts.running == 0; });
} catch (...) {
  rethrow_typed();
}

void Pipeline::shutdown() try { impl_->shutdown(); } catch (...) {
  rethrow_typed();
}

PipelineCounters Pipeline::counters() const try {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counts;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
