#include "graft/flow.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "base/thread.h"
#include "flow/graph.h"
#include "flow/schedule.h"
#include "session/block_pool.h"
#include "session/wait_limit.h"
#include "session/wait_watcher.h"

namespace graft {
namespace {

// The error that is being handled, as that of a stage.
std::exception_ptr error_of(const std::string& stage) noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      rethrow_with(str("stage '", stage, "': "), error);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      std::throw_with_nested(ExecutionError(str("stage '", stage, "': ", error.what())));
    } catch (...) {
      std::throw_with_nested(ExecutionError(str("stage '", stage, "': it threw what is no std::exception")));
    }
  } catch (...) {
    return typed_exception();
  }
}

Clock::time_point after(std::chrono::milliseconds wait) {
  constexpr std::chrono::hours kForever{24 * 365 * 100};
  return wait < kForever ? Clock::now() + wait : Clock::time_point::max();
}

void check_options(const RunOptions& options) {
  const char* wrong = options.profile != nullptr  ? "profile"
                      : options.observe           ? "observe"
                      : !options.arena.empty()    ? "arena"
                      : !options.kv_rows.empty()  ? "kv_rows"
                      : !options.adapters.empty() ? "adapters"
                                                  : nullptr;
  GRAFT_CHECK(InvalidArgument, wrong == nullptr, "a run of a flow takes deadline, cancel, priority and check, not ",
              wrong);
}

}  // namespace

struct Flow::Impl {
  // A thread of a stage, and what it uses again from call to call.
  class Worker final : public FlowCall {
   public:
    Worker(Impl& flow, std::size_t stage, std::shared_ptr<Session> session)
        : flow_(flow), index_(stage), node_(flow.flow.nodes[stage]), session_(std::move(session)) {
      if (session_) copied_ = copies(session_->counters());
      outputs_.resize(node_.output_names.size());
      made_.resize(outputs_.size());
    }

    void loop();

    // Of FlowCall.
    const Value& input(std::size_t i) const override {
      GRAFT_CHECK(InvalidArgument, !is_list(i), "input '", node_.input_names[i], "' is a list of items");
      return items(i)[0];
    }
    bool is_list(std::size_t i) const override {
      check_input(i);
      return node_.stage.fan_in && flow_.flow.sources[node_.inputs[i]].has_items();
    }
    std::span<const Value> items(std::size_t i) const override {
      check_input(i);
      const std::size_t first = i == 0 ? 0 : ends_[i - 1];
      return std::span(inputs_).subspan(first, ends_[i] - first);
    }
    TensorView make(std::size_t o, DType dtype, const Shape& shape) override {
      check_output(o);
      outputs_[o] = flow_.pools[node_.first_output + o]->tensor(dtype, shape);
      made_[o] = true;
      return outputs_[o].tensor;
    }
    void set(std::size_t o, Value value) override {
      check_output(o);
      outputs_[o] = std::move(value);
      made_[o] = true;
    }
    void emit() override;
    bool stopped() const override {
      const std::lock_guard lock(flow_.mutex);
      told_to_stop_ |= flow_.schedule.stopped(task_.run) || limit().ended(Clock::now());
      return told_to_stop_;
    }

   private:
    WaitLimit limit() const { return WaitLimit::of(flow_.schedule.options(task_.run)); }
    static std::uint64_t copies(const Counters& counters) { return counters.io_copies + counters.inputs_padded; }
    void check_input(std::size_t i) const {
      GRAFT_CHECK(InvalidArgument, i < ends_.size(), "the stage has ", ends_.size(), " inputs, got index ", i);
    }
    void check_output(std::size_t o) const {
      GRAFT_CHECK(InvalidArgument, o < outputs_.size(), "the stage has ", outputs_.size(), " outputs, got index ", o);
    }
    void check_outputs();
    std::exception_ptr call();
    void run_session();
    void run_function();
    void drop() {
      inputs_.clear();
      std::ranges::fill(outputs_, Value());
      made_.assign(made_.size(), false);
      dropped_.clear();
    }

    Impl& flow_;
    const std::size_t index_;
    const FlowNode& node_;
    const std::shared_ptr<Session> session_;
    std::uint64_t copied_ = 0;  // by the session so far
    FlowTask task_;
    std::vector<Value> inputs_, outputs_;
    std::vector<std::size_t> ends_;      // of each input's values
    std::vector<bool> made_;             // outputs
    mutable bool told_to_stop_ = false;  // the function may have left out what it should do
    FlowSchedule::Dropped dropped_;
    FlowEnd ended_;
  };

  Impl(FlowGraph graph, const FlowOptions& options)
      : flow(check_flow(std::move(graph))), schedule(flow, options), wake(flow.nodes.size()), idle(flow.nodes.size()) {
    GRAFT_CHECK(InvalidArgument, options.runs > 0, "a flow needs room for at least one run, got 0");
    GRAFT_CHECK(InvalidArgument, options.items > 0, "a flow needs room for at least one item, got 0");
    for (std::size_t s = 0; s < flow.sources.size(); ++s) pools.push_back(std::make_shared<BlockPool>());
    for (std::size_t n = 0; n < flow.nodes.size(); ++n)
      for (std::size_t w = 0; w < flow.nodes[n].workers; ++w) {
        const std::vector<std::shared_ptr<Session>>& sessions = flow.nodes[n].stage.sessions;
        workers.push_back(std::make_unique<Worker>(*this, n, sessions.empty() ? nullptr : sessions[w]));
      }
    try {
      const std::lock_guard lock(mutex);  // the threads find `own` complete
      threads.reserve(workers.size());    // a thread that has begun must get its place
      own.reserve(workers.size());
      for (const std::unique_ptr<Worker>& worker : workers) {
        threads.push_back(start_thread("a thread of a flow", [&worker = *worker] { worker.loop(); }));
        own.push_back(threads.back().get_id());
      }
    } catch (...) {
      shutdown();
      throw;
    }
  }

  bool on_own_thread() const { return std::ranges::find(own, std::this_thread::get_id()) != own.end(); }

  // After anything has changed. With the mutex locked.
  void notify() {
    for (std::size_t n = 0; n < wake.size(); ++n)
      if (idle[n] > 0 && schedule.has_tasks(n)) wake[n].notify_one();
    emitted.notify_all();
    if (closed || schedule.has_room()) room_there.notify_all();
    if (schedule.counters.running > 0) return;
    if (reporting == 0) drained.notify_all();
    if (closed)
      for (std::condition_variable& stage : wake) stage.notify_all();
  }

  // Empty when there is no room by `until`.
  std::optional<std::future<FlowOutputs>> submit(std::vector<Value> inputs, const RunOptions& options,
                                                 Clock::time_point until) {
    check_options(options);
    GRAFT_CHECK(InvalidArgument, inputs.size() == flow.input_count, "the flow takes ", flow.input_count,
                " inputs, got ", inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_value(flow.sources[i].name, flow.sources[i].type, inputs[i]);
      const Value& input = inputs[i];
      GRAFT_CHECK(InvalidArgument,
                  input.kind != Value::Kind::tensor || input.tensor.data != nullptr || input.tensor.shape.numel() == 0,
                  "'", flow.sources[i].name, "' of the flow has no memory: its pointer is null");
    }
    const WaitLimit limit = WaitLimit::of(options);
    FlowSchedule::Dropped dropped;
    std::unique_lock lock(mutex);
    GRAFT_CHECK(InvalidArgument, !closed, "the flow was shut down");
    const bool may_wait = until > Clock::now();
    GRAFT_CHECK(Busy, schedule.has_room() || !may_wait || !on_own_thread(),
                "the flow is full: ", schedule.counters.running,
                " runs are in flight, and its own stage would wait for itself");
    for (;;) {
      const Clock::time_point now = Clock::now();
      if (const std::exception_ptr error = limit.error(now)) std::rethrow_exception(error);
      GRAFT_CHECK(InvalidArgument, !closed, "the flow was shut down while a run waited for room");
      if (schedule.has_room()) break;
      if (now >= until) return std::nullopt;
      const Clock::time_point next = std::min(until, limit.next_look(now));
      if (next == Clock::time_point::max()) {
        room_there.wait(lock);
      } else {
        room_there.wait_until(lock, next);
      }
    }
    if (limit.exists()) watcher.watch();
    std::future<FlowOutputs> result = schedule.begin(std::move(inputs), options, dropped);
    notify();
    return result;
  }

  Clock::time_point stop_by_limits(std::unique_lock<std::mutex>& lock, Clock::time_point now) {
    std::vector<FlowEnd> ended;
    FlowSchedule::Dropped dropped;
    const Clock::time_point next = schedule.stop_by_limits(now, ended, dropped);
    if (next > now) return next;
    notify();
    lock.unlock();
    dropped.clear();
    lock.lock();
    report(lock, ended);
    return now;
  }

  // Runs are done and hold nothing: there is room before their callers know it, and the flow is drained after that.
  void report(std::unique_lock<std::mutex>& lock, std::span<FlowEnd> ended) {
    for (const FlowEnd& run : ended) schedule.retire(run);
    reporting += ended.size();
    notify();
    lock.unlock();
    for (FlowEnd& run : ended) run.report();
    lock.lock();
    reporting -= ended.size();
    notify();
  }

  bool drain(Clock::time_point until) {
    std::unique_lock lock(mutex);
    GRAFT_CHECK(InvalidArgument, !on_own_thread(), "a flow cannot be drained by its own stage");
    const auto done = [&] { return schedule.counters.running == 0 && reporting == 0; };
    if (until != Clock::time_point::max()) return drained.wait_until(lock, until, done);
    drained.wait(lock, done);
    return true;
  }

  void shutdown() {
    {
      const std::lock_guard lock(mutex);
      GRAFT_CHECK(InvalidArgument, !on_own_thread(), "a flow cannot be shut down by its own stage");
      closed = true;
      notify();
    }
    const std::lock_guard lock(joining);
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
    watcher.stop();
  }

  const CheckedFlow flow;
  mutable std::mutex mutex;
  FlowSchedule schedule;
  std::vector<std::condition_variable> wake;  // workers, by stage
  std::vector<std::size_t> idle;              // workers that wait, by stage
  std::condition_variable emitted, room_there, drained;
  bool closed = false;
  std::size_t reporting = 0;  // runs that are done, whose callers do not know it yet
  std::uint64_t copies = 0;
  std::vector<std::shared_ptr<BlockPool>> pools;  // by source; those of the flow's inputs stay empty
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  std::vector<std::thread::id> own;
  std::mutex joining;
  WaitWatcher watcher{
      mutex, [this](std::unique_lock<std::mutex>& lock, Clock::time_point now) { return stop_by_limits(lock, now); }};
};

void Flow::Impl::Worker::loop() {
  std::unique_lock lock(flow_.mutex);
  for (;;) {
    bool taken = false;
    std::exception_ptr error;
    ++flow_.idle[index_];
    flow_.wake[index_].wait(lock, [&] {
      try {
        taken = flow_.schedule.take(index_, task_, inputs_, ends_);
      } catch (...) {  // taken, without memory for its inputs
        taken = true;
        error = typed_exception();
      }
      return taken || (flow_.closed && flow_.schedule.counters.running == 0);
    });
    --flow_.idle[index_];
    if (!taken) return;
    flow_.notify();  // the stage may have more, and a fan-out may go on
    lock.unlock();
    if (!error) error = call();
    inputs_.clear();
    const std::uint64_t copied = session_ ? copies(session_->counters()) : 0;
    lock.lock();
    flow_.copies += copied - std::exchange(copied_, copied);
    if (error) {
      flow_.schedule.fail(index_, task_, error);
    } else {
      try {
        flow_.schedule.end(index_, task_, outputs_, dropped_);
      } catch (...) {
        flow_.schedule.stop(task_.run, typed_exception());
      }
    }
    flow_.notify();
    lock.unlock();
    drop();
    error = nullptr;  // without the lock: it may hold anything
    lock.lock();
    if (!flow_.schedule.leave(task_, ended_, dropped_)) continue;
    lock.unlock();
    drop();
    lock.lock();
    flow_.report(lock, std::span(&ended_, 1));
  }
}

std::exception_ptr Flow::Impl::Worker::call() {
  try {
    if (session_) {
      run_session();
    } else {
      run_function();
    }
    return nullptr;
  } catch (...) {
    return error_of(node_.stage.name);
  }
}

void Flow::Impl::Worker::run_function() {
  told_to_stop_ = false;
  node_.stage.function(*this);
  if (told_to_stop_) {
    if (const std::exception_ptr error = limit().error(Clock::now(), "during the call")) std::rethrow_exception(error);
    throw Cancelled("the run has ended");
  }
  if (!node_.stage.fan_out) return check_outputs();
  for (std::size_t o = 0; o < made_.size(); ++o)
    GRAFT_CHECK(InvalidArgument, !made_[o], "output '", node_.output_names[o], "' was made but not emitted");
}

void Flow::Impl::Worker::run_session() {
  const RunOptions& options = flow_.schedule.options(task_.run);  // which stay while the run has a call
  if (node_.in_segments) {                                        // its results have memory of the session's
    outputs_ = session_->run(node_.stage.method, inputs_, options);
    return;
  }
  const Session::PlaceOutputs place = [this](std::span<Value> outputs) {
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      Value& output = outputs[o];
      if (output.kind != Value::Kind::tensor) continue;
      output = flow_.pools[node_.first_output + o]->tensor(output.tensor.dtype, output.tensor.shape);
    }
  };
  std::vector<Value> outputs = session_->run_into(node_.stage.method, inputs_, place, options);
  std::ranges::move(outputs, outputs_.begin());
}

// Of a function: all were set, and are what the stage declares.
void Flow::Impl::Worker::check_outputs() {
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    GRAFT_CHECK(InvalidArgument, made_[o], "output '", node_.output_names[o], "' was not set");
    check_value(flow_.flow.sources[node_.first_output + o].name, flow_.flow.sources[node_.first_output + o].type,
                outputs_[o]);
  }
}

void Flow::Impl::Worker::emit() {
  GRAFT_CHECK(InvalidArgument, node_.stage.fan_out, "only a fan-out emits items");
  check_outputs();
  std::unique_lock lock(flow_.mutex);
  flow_.emitted.wait(lock, [&] { return flow_.schedule.may_emit(index_, task_); });
  GRAFT_CHECK(Cancelled, !flow_.schedule.stopped(task_.run), "the run has ended");
  flow_.schedule.emit(index_, task_, outputs_, dropped_);
  flow_.notify();
  lock.unlock();
  std::ranges::fill(outputs_, Value());
  made_.assign(made_.size(), false);
  dropped_.clear();
}

Flow::Flow(FlowGraph graph, const FlowOptions& options) try : impl_(std::make_unique<Impl>(std::move(graph), options)) {
} catch (...) {
  rethrow_typed();
}

Flow::~Flow() { impl_->shutdown(); }

std::future<FlowOutputs> Flow::submit(std::vector<Value> inputs, const RunOptions& options) try {
  return *impl_->submit(std::move(inputs), options, Clock::time_point::max());
} catch (...) {
  rethrow_typed();
}

std::optional<std::future<FlowOutputs>> Flow::try_submit(std::vector<Value> inputs, const RunOptions& options,
                                                         std::chrono::milliseconds wait) try {
  return impl_->submit(std::move(inputs), options, after(wait));
} catch (...) {
  rethrow_typed();
}

void Flow::drain() try { impl_->drain(Clock::time_point::max()); } catch (...) {
  rethrow_typed();
}

bool Flow::drain_for(std::chrono::milliseconds wait) try { return impl_->drain(after(wait)); } catch (...) {
  rethrow_typed();
}

void Flow::shutdown() try { impl_->shutdown(); } catch (...) {
  rethrow_typed();
}

bool Flow::is_list(std::size_t o) const try {
  const std::vector<std::size_t>& outputs = impl_->flow.outputs;
  GRAFT_CHECK(InvalidArgument, o < outputs.size(), "the flow has ", outputs.size(), " outputs, got index ", o);
  return impl_->flow.sources[outputs[o]].has_items();
} catch (...) {
  rethrow_typed();
}

FlowCounters Flow::counters() const try {
  const std::lock_guard lock(impl_->mutex);
  FlowCounters out = impl_->schedule.counters;
  for (std::size_t n = 0; n < out.stages.size(); ++n) out.stages[n].waiting = impl_->schedule.waiting(n);
  for (const std::shared_ptr<BlockPool>& pool : impl_->pools) {
    const BlockPool::Made made = pool->made();
    out.buffers += made.blocks;
    out.buffer_bytes += made.bytes;
  }
  out.copies = impl_->copies;
  return out;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
