#include "flow/schedule.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"

namespace graft {
namespace {

bool later(const FlowTask& a, const FlowTask& b) { return b < a; }

// Without memory for the list the value is freed at once, under the lock.
void drop(Value value, FlowSchedule::Dropped& dropped) noexcept {
  try {
    dropped.push_back(std::move(value));
  } catch (...) {
  }
}

}  // namespace

void FlowEnd::report() {
  std::promise<FlowOutputs> promise = std::move(result);  // of which nothing is kept
  if (error) {
    promise.set_exception(std::exchange(error, nullptr));
  } else {
    promise.set_value(std::exchange(outputs, {}));
  }
}

FlowSchedule::FlowSchedule(const CheckedFlow& flow, const FlowOptions& options)
    : flow_(flow), items_(options.items), runs_(options.runs), stages_(flow.nodes.size()) {
  for (Run& run : runs_) {
    run.sources.resize(flow_.sources.size());
    run.stages.resize(flow_.nodes.size());
  }
  active_.reserve(runs_.size());
  for (std::size_t slot = runs_.size(); slot-- > 0;) free_.push_back(slot);
  for (std::size_t n = 0; n < flow_.nodes.size(); ++n) {
    const FlowNode& node = flow_.nodes[n];
    counters.stages.push_back({node.stage.name});
    if (node.per_item()) stages_[node.origin].item_stages.push_back(n);
    for (const std::size_t source : node.inputs) stages_[n].each += node.reads_each(flow_.sources[source]) ? 1 : 0;
  }
  for (std::size_t s = 0; s < flow_.sources.size(); ++s)
    if (flow_.sources[s].has_items()) stages_[flow_.sources[s].origin].item_sources.push_back(s);
}

std::future<FlowOutputs> FlowSchedule::begin(std::vector<Value> inputs, const RunOptions& options, Dropped& dropped) {
  RunOptions own = options;
  std::promise<FlowOutputs> promise;
  const std::size_t slot = free_.back();
  free_.pop_back();
  active_.push_back(slot);  // has the capacity
  Run& run = runs_[slot];
  run.sequence = next_++;
  run.options = std::move(own);
  if (options.cancel != nullptr) {  // the caller may drop his
    run.cancel = *options.cancel;
    run.options.cancel = &run.cancel;
  }
  run.result = std::move(promise);
  run.ended = false;
  run.incomplete = flow_.nodes.size();
  for (std::size_t n = 0; n < flow_.nodes.size(); ++n) {
    Progress& progress = run.stages[n];
    progress.missing = flow_.nodes[n].inputs.size() - stages_[n].each;
    progress.arrived.clear();
    progress.taken = progress.done = progress.emitted = 0;
    progress.all_emitted = progress.complete = false;
  }
  ++counters.submitted;
  counters.running = active_.size();
  counters.most_running = std::max(counters.most_running, counters.running);
  std::future<FlowOutputs> result = run.result.get_future();
  try {
    for (std::size_t n = 0; n < flow_.nodes.size(); ++n)
      if (flow_.nodes[n].inputs.empty()) push(n, slot, 0);
    for (std::size_t i = 0; i < inputs.size(); ++i) store(slot, i, 0, std::move(inputs[i]), dropped);
  } catch (...) {  // none of its calls has begun
    stop(slot, std::current_exception());
    FlowEnd ended;
    finish(slot, ended, dropped);
    retire(ended);
    throw;
  }
  return result;
}

void FlowSchedule::push(std::size_t stage, std::size_t slot, std::size_t item) {
  std::vector<FlowTask>& ready = stages_[stage].ready;
  ready.push_back({runs_[slot].sequence, slot, item});
  std::ranges::push_heap(ready, later);
  FlowStageCounters& counts = counters.stages[stage];
  counts.most_waiting = std::max(counts.most_waiting, ready.size());
}

// Calls begin in their order where the stage has one worker: no older run, no earlier item has a call to come.
bool FlowSchedule::is_next(std::size_t stage, const FlowTask& task) const {
  if (!flow_.nodes[stage].ordered()) return true;
  for (const std::size_t slot : active_) {
    const Run& run = runs_[slot];
    if (run.sequence >= task.sequence) break;
    if (!run.stages[stage].complete && !run.is_over()) return false;
  }
  return task.item == runs_[task.run].stages[stage].taken;
}

bool FlowSchedule::take(std::size_t stage, FlowTask& task, std::vector<Value>& inputs, std::vector<std::size_t>& ends) {
  std::vector<FlowTask>& ready = stages_[stage].ready;
  if (ready.empty() || !is_next(stage, ready.front())) return false;
  task = ready.front();
  std::ranges::pop_heap(ready, later);
  ready.pop_back();
  const FlowNode& node = flow_.nodes[stage];
  Run& run = runs_[task.run];
  ++run.running;
  ++run.stages[stage].taken;
  ends.clear();
  for (const std::size_t s : node.inputs) {
    const std::vector<Value>& values = run.sources[s].values;
    if (node.stage.fan_in) {
      inputs.insert(inputs.end(), values.begin(), values.end());
    } else {
      inputs.push_back(values[flow_.sources[s].has_items() ? task.item : 0]);
    }
    ends.push_back(inputs.size());
  }
  return true;
}

void FlowSchedule::store(std::size_t slot, std::size_t source, std::size_t item, Value value, Dropped& dropped) {
  Run& run = runs_[slot];
  const FlowSource& info = flow_.sources[source];
  Values& there = run.sources[source];
  if (there.values.size() <= item) {
    there.values.resize(item + 1);
    there.readers.resize(item + 1);
  }
  ++there.stored;
  there.readers[item] = info.readers.size() + (info.is_output ? 1 : 0);
  if (there.readers[item] == 0) {
    drop(std::move(value), dropped);
    return;
  }
  there.values[item] = std::move(value);
  for (const std::size_t reader : info.readers) {
    if (!info.has_items()) {
      count_input(slot, reader);
    } else if (flow_.nodes[reader].per_item()) {
      Progress& progress = run.stages[reader];
      if (progress.arrived.size() <= item) progress.arrived.resize(item + 1, 0);
      if (++progress.arrived[item] == stages_[reader].each && progress.missing == 0) push(reader, slot, item);
    }
  }
  if (info.has_items()) check_complete(slot, source);
}

// One of the inputs that all calls of the stage need has come.
void FlowSchedule::count_input(std::size_t slot, std::size_t stage) {
  Progress& progress = runs_[slot].stages[stage];
  if (--progress.missing > 0) return;
  if (!flow_.nodes[stage].per_item()) return push(stage, slot, 0);
  for (std::size_t i = 0; i < progress.arrived.size(); ++i)
    if (progress.arrived[i] == stages_[stage].each) push(stage, slot, i);
}

// Once all items of a source are there, fan-ins may read it.
void FlowSchedule::check_complete(std::size_t slot, std::size_t source) {
  Run& run = runs_[slot];
  const FlowSource& info = flow_.sources[source];
  const Progress& fan_out = run.stages[info.origin];
  Values& there = run.sources[source];
  if (there.complete || !fan_out.all_emitted || there.stored < fan_out.emitted) return;
  there.complete = true;
  for (const std::size_t reader : info.readers)
    if (!flow_.nodes[reader].per_item()) count_input(slot, reader);
}

void FlowSchedule::emit(std::size_t stage, const FlowTask& task, std::vector<Value>& outputs, Dropped& dropped) {
  const std::size_t item = runs_[task.run].stages[stage].emitted++;
  for (std::size_t o = 0; o < outputs.size(); ++o)
    store(task.run, flow_.nodes[stage].first_output + o, item, std::move(outputs[o]), dropped);
}

// While calls for items wait, of this run or older ones, those that come first can begin: the stages for items make no
// items themselves, so their workers get free. Not so where an older run has yet to come here and the workers of this
// fan-out all wait. Younger runs do not count, since an ordered stage may keep their items until this run is done.
bool FlowSchedule::may_emit(std::size_t stage, const FlowTask& task) const {
  if (runs_[task.run].error != nullptr) return true;
  std::size_t waiting = 0;
  for (const std::size_t reader : stages_[stage].item_stages)
    waiting += static_cast<std::size_t>(std::ranges::count_if(
        stages_[reader].ready, [&](const FlowTask& other) { return other.sequence <= task.sequence; }));
  if (waiting < items_) return true;
  std::size_t busy = 0;
  bool older_to_come = false;
  for (const std::size_t slot : active_) {
    const Run& run = runs_[slot];
    const Progress& progress = run.stages[stage];
    busy += progress.taken > progress.done ? 1 : 0;
    older_to_come |= run.sequence < task.sequence && !run.is_over() && progress.taken == 0;
  }
  return older_to_come && busy >= flow_.nodes[stage].workers;
}

void FlowSchedule::end(std::size_t stage, const FlowTask& task, std::vector<Value>& outputs, Dropped& dropped) {
  const FlowNode& node = flow_.nodes[stage];
  const std::size_t slot = task.run;
  Run& run = runs_[slot];
  ++counters.stages[stage].calls;
  if (run.error != nullptr) return;
  Progress& progress = run.stages[stage];
  ++progress.done;
  if (node.stage.fan_out) {
    progress.all_emitted = true;
  } else {
    for (std::size_t o = 0; o < outputs.size(); ++o)
      store(slot, node.first_output + o, task.item, std::move(outputs[o]), dropped);
  }
  for (const std::size_t source : node.inputs) {
    if (node.reads_each(flow_.sources[source])) {
      release(slot, source, task.item, dropped);
    } else if (!node.per_item()) {
      for (std::size_t i = 0; i < run.sources[source].values.size(); ++i) release(slot, source, i, dropped);
    }
  }
  if (!node.per_item()) {
    complete(slot, stage, dropped);
  } else if (const Progress& fan_out = run.stages[node.origin];
             fan_out.all_emitted && progress.done == fan_out.emitted) {
    complete(slot, stage, dropped);
  }
  if (node.stage.fan_out) {
    for (const std::size_t source : stages_[stage].item_sources) check_complete(slot, source);
    for (const std::size_t reader : stages_[stage].item_stages)
      if (run.stages[reader].done == progress.emitted) complete(slot, reader, dropped);
  }
}

void FlowSchedule::complete(std::size_t slot, std::size_t stage, Dropped& dropped) {
  Run& run = runs_[slot];
  run.stages[stage].complete = true;
  --run.incomplete;
  const FlowNode& node = flow_.nodes[stage];
  if (!node.per_item() || run.stages[stage].done == 0) return;
  for (const std::size_t source : node.inputs)
    if (!flow_.sources[source].has_items()) release(slot, source, 0, dropped);
}

void FlowSchedule::release(std::size_t slot, std::size_t source, std::size_t item, Dropped& dropped) {
  Values& there = runs_[slot].sources[source];
  if (--there.readers[item] == 0) drop(std::exchange(there.values[item], {}), dropped);
}

void FlowSchedule::fail(std::size_t stage, const FlowTask& task, const std::exception_ptr& error) {
  ++counters.stages[stage].calls;
  stop(task.run, error);
}

bool FlowSchedule::leave(const FlowTask& task, FlowEnd& ended, Dropped& dropped) {
  Run& run = runs_[task.run];
  if (--run.running > 0 || (run.incomplete > 0 && run.error == nullptr)) return false;
  finish(task.run, ended, dropped);
  return true;
}

// The first error counts. Calls of the run that have begun go on.
void FlowSchedule::stop(std::size_t slot, const std::exception_ptr& error) {
  Run& run = runs_[slot];
  if (run.is_over()) return;
  run.error = error;
  for (Stage& stage : stages_) {
    if (std::erase_if(stage.ready, [&](const FlowTask& task) { return task.run == slot; }) > 0)
      std::ranges::make_heap(stage.ready, later);
  }
}

void FlowSchedule::finish(std::size_t slot, FlowEnd& ended, Dropped& dropped) {
  Run& run = runs_[slot];
  if (run.error == nullptr) {
    try {
      ended.outputs.reserve(flow_.outputs.size());
      for (const std::size_t source : flow_.outputs) ended.outputs.push_back(run.sources[source].values);
    } catch (...) {
      ended.outputs.clear();
      run.error = typed_exception();
    }
  }
  run.ended = true;
  ended.run = slot;
  ended.result = std::move(run.result);
  counters.failed += run.error != nullptr ? 1 : 0;
  ended.error = std::exchange(run.error, nullptr);
  for (Values& there : run.sources) {
    for (Value& value : there.values) drop(std::move(value), dropped);
    there.values.clear();
    there.readers.clear();
    there.stored = 0;
    there.complete = false;
  }
}

void FlowSchedule::retire(const FlowEnd& ended) {
  active_.erase(std::ranges::find(active_, ended.run));
  free_.push_back(ended.run);
  ++counters.finished;
  counters.running = active_.size();
}

Clock::time_point FlowSchedule::stop_by_limits(Clock::time_point now, std::vector<FlowEnd>& ended, Dropped& dropped) {
  Clock::time_point next = Clock::time_point::max();
  ended.reserve(active_.size());  // a run that is stopped must get its place
  for (const std::size_t slot : active_) {
    Run& run = runs_[slot];
    const WaitLimit limit = WaitLimit::of(run.options);
    if (run.is_over() || run.incomplete == 0) continue;
    const std::exception_ptr error = limit.ended(now) ? limit.error(now, place(slot)) : nullptr;
    if (error == nullptr) {
      next = std::min(next, limit.next_look(now));
      continue;
    }
    stop(slot, error);
    next = now;
    if (run.running == 0) finish(slot, ended.emplace_back(), dropped);
  }
  return next;
}

// "in stage 'crop'": those that have calls which run or may begin.
std::string FlowSchedule::place(std::size_t slot) const {
  std::string at;
  for (std::size_t n = 0; n < stages_.size(); ++n) {
    const Progress& progress = runs_[slot].stages[n];
    const bool waits = std::ranges::any_of(stages_[n].ready, [&](const FlowTask& task) { return task.run == slot; });
    if (waits || progress.taken > progress.done)
      at += str(at.empty() ? "in stage '" : ", '", flow_.nodes[n].stage.name, "'");
  }
  return at;
}

}  // namespace graft
