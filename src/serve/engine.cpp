#include "serve/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "serve/log.h"

namespace graft::serve {
namespace {

constexpr auto kBetweenAttempts = std::chrono::milliseconds(100);  // to reach a stage

}  // namespace

Engine::Engine(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options, std::size_t queue,
               const PrefixCacheOptions& prefix_cache, std::int64_t prompt_lookup)
    : model_(std::move(model)), generator_(model_, options, prefix_cache), queue_(queue) {
  capacity_ = generator_.decoder().capacity();
  rows_ = generator_.decoder().options().rows;
  generator_.prepare(prompt_lookup, true);
  state_bytes_ = generator_.decoder().session().counters().state_bytes;
  if (prefix_cache.file.empty()) {
    const PrefixCacheStats prefixes = generator_.prefix_cache();
    state_bytes_ += prefixes.max_blocks * prefixes.block_bytes;
  }
  publish();
  thread_ = std::thread([this] { loop(); });
}

void Engine::end() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ended_.cancel();
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Engine::RequestId Engine::submit(std::vector<Job> jobs, Clock::time_point deadline, OnProgress on_progress) {
  const std::lock_guard lock(mutex_);
  const auto idle_rows = static_cast<std::size_t>(rows_) - std::min(stats_.running, static_cast<std::size_t>(rows_));
  const std::size_t waiting = stats_.waiting + new_jobs_;
  GRAFT_CHECK(Busy, !stopping_, "the server is stopping");
  GRAFT_CHECK(Busy, waiting + jobs.size() <= queue_ + idle_rows, waiting, " texts wait, the queue has room for ",
              queue_);
  const std::size_t count = jobs.size();
  new_.push_back({next_, std::move(jobs), deadline, std::move(on_progress)});
  new_jobs_ += count;
  changed_.notify_all();
  return next_++;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = std::ranges::find(new_, id, &Request::id); found != new_.end()) {
    new_jobs_ -= found->jobs.size();
    new_.erase(found);
    return;
  }
  cancelled_.push_back(id);
  changed_.notify_all();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting += new_jobs_;
  return stats;
}

void Engine::loop() {
  for (bool more = true; more;) {
    try {
      more = turn();
    } catch (...) {  // no memory for the bookkeeping: what was not done is done in the next turn
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  try {
    stop();
  } catch (...) {  // calls that were not told give an answer when they end
  }
}

bool Engine::turn() {
  std::vector<Request> requests;
  std::vector<RequestId> cancelled;
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(lost_, false)) changed_.wait_for(lock, kBetweenAttempts, [&] { return stopping_; });
    changed_.wait(lock, [&] { return stopping_ || !new_.empty() || !cancelled_.empty() || !active_.empty(); });
    if (stopping_) return false;
    requests.assign(std::make_move_iterator(new_.begin()), std::make_move_iterator(new_.end()));
    new_.clear();
    new_jobs_ = 0;
    cancelled = std::exchange(cancelled_, {});
  }
  const auto start = Clock::now();
  take_new(std::move(requests));
  drop(cancelled);
  end_late();
  if (active_.empty())
    thrown_ = nullptr;
  else
    step();
  busy_seconds_ += seconds_since(start);
  publish();
  return true;
}

void Engine::stop() {
  const auto stopped = std::make_exception_ptr(Cancelled("the server is stopping"));
  std::deque<Request> left;
  {
    const std::lock_guard lock(mutex_);
    left = std::exchange(new_, {});
  }
  for (const Request& request : left) {
    const auto on_progress = std::make_shared<const OnProgress>(request.on_progress);
    for (std::size_t job = 0; job < request.jobs.size(); ++job)
      tell({request.id, job, 0, 0, 0, request.deadline, on_progress}, {}, stopped);
  }
  while (!active_.empty()) end_with(active_.size() - 1, stopped);
}

void Engine::take_new(std::vector<Request> requests) {
  for (Request& request : requests) {
    std::shared_ptr<const OnProgress> on_progress;
    try {
      on_progress = std::make_shared<const OnProgress>(std::move(request.on_progress));
    } catch (...) {
      continue;  // its call gives an answer when it ends, and the other requests go on
    }
    for (std::size_t job = 0; job < request.jobs.size(); ++job) {
      Active active{request.id, job, 0, 0, 0, request.deadline, on_progress};
      try {
        Job& asked = request.jobs[job];
        active_.reserve(active_.size() + 1);
        active.id = generator_.submit(ImagePrompt{std::move(asked.prompt), std::move(asked.images)}, asked.options,
                                      asked.request);
        active_.push_back(std::move(active));
      } catch (...) {
        tell(active, {}, std::current_exception());
      }
    }
  }
}

void Engine::drop(const std::vector<RequestId>& ids) {
  for (std::size_t i = 0; i < active_.size();) {
    if (std::ranges::find(ids, active_[i].request) == ids.end()) {
      ++i;
      continue;
    }
    generator_.cancel(active_[i].id);
    generator_.take(active_[i].id);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Engine::end_late() {
  const auto now = Clock::now();
  for (std::size_t i = active_.size(); i-- > 0;)
    if (now >= active_[i].deadline)
      end_with(i, std::make_exception_ptr(Cancelled("the request took longer than the server allows")));
}

// What a step threw stays until it was reported.
void Engine::step() {
  try {
    RunOptions options;
    if (model_->info().stage) options.cancel = &ended_;
    if (!thrown_) generator_.step(options);
  } catch (const Unavailable&) {
    thrown_ = std::current_exception();
    lost_ = true;
  } catch (...) {
    thrown_ = std::current_exception();
  }
  publish();  // who is told of a job's end may read the counts, and finds its tokens there
  report(thrown_);
  thrown_ = nullptr;
}

// `error`: what the step threw. It belongs to the jobs that it ended; when it ended none the run itself failed, and
// would fail again. Where a stage is lost, it has ended those that had begun, and the others wait until it is back.
void Engine::report(std::exception_ptr error) {
  bool ended_any = false;
  for (std::size_t i = 0; i < active_.size();) {
    Active& active = active_[i];
    const RequestState state = generator_.state(active.id);
    const bool failed = state.reason == FinishReason::cancelled;
    if (state.reason || state.tokens.size() > active.tokens) {
      active.tokens = state.tokens.size();
      tell(active, state, failed ? error : nullptr);
    }
    if (!state.reason) {
      ++i;
      continue;
    }
    ended_any |= failed;
    generator_.take(active.id);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (error && !ended_any && !lost_)
    while (!active_.empty()) end_with(active_.size() - 1, error);
}

void Engine::end_with(std::size_t i, std::exception_ptr error) {
  generator_.cancel(active_[i].id);
  const RequestState state = generator_.state(active_[i].id);
  const Active active = std::move(active_[i]);
  active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
  tell(active, state, std::move(error));
  generator_.take(active.id);
}

void Engine::tell(const Active& active, const RequestState& state, std::exception_ptr error) {
  try {
    (*active.on_progress)(active.job, state, std::move(error));
  } catch (...) {  // of a client: it must not end the others
    try {
      cancel(active.request);
    } catch (...) {  // then it runs to its end for nobody
    }
  }
}

void Engine::publish() {
  EngineStats stats;
  stats.waiting = generator_.waiting();
  stats.running = generator_.running();
  stats.generation = generator_.stats();
  stats.busy_seconds = busy_seconds_;
  std::int64_t tokens = 0;
  for (std::int64_t row = 0; row < rows_; ++row) tokens += generator_.decoder().length(static_cast<std::size_t>(row));
  stats.cache_use = static_cast<double>(tokens) / static_cast<double>(rows_ * capacity_);
  stats.prefixes = generator_.prefix_cache();
  if (!stats.prefixes.error.empty() && !std::exchange(logged_prefixes_, true))
    log_event("warning", "prefix_cache", {{"error", stats.prefixes.error}});
  const std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

}  // namespace graft::serve
