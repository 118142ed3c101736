#include "session/executor_cache.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "plan/inputs.h"
#include "session/prepared_call.h"

namespace graft {
namespace {

// Compares whole keys, since hashes of different keys can be equal.
bool same_key(std::span<const std::int64_t> a, std::span<const std::int64_t> b) { return std::ranges::equal(a, b); }

}  // namespace

ExecutorCache::ExecutorCache(const ProgramImpl& program, int threads, std::size_t capacity, RunControl& control,
                             SessionDevice* device, Counters& counters)
    : program_(program),
      threads_(threads),
      capacity_(std::max<std::size_t>(capacity, 1) + program.methods.size() - program.public_methods),
      control_(control),
      device_(device),
      counters_(counters) {}

void ExecutorCache::find(PreparedCall& call, const KvOptions& kv, const KvExtent& extent) {
  call.key.clear();
  append_plan_key(call.inputs, call.key);
  if (call.method->has_kv_cache) append_kv_key(kv, extent, call.key);
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->method != call.index || !same_key(it->executor->plan().key, call.key)) continue;
    // Equal sizes do not make equal dtypes or ranks.
    if (!same_types(call.method->info, call.inputs)) program_.check_inputs(call.index, call.inputs);
    if (it != entries_.begin()) entries_.splice(entries_.begin(), entries_, it);
    call.entry = &entries_.front();
    return;
  }
  PlanCache::Result found =
      program_.plan(call.index, call.inputs, call.key, threads_, kv, extent, program_.on_device && !device_);
  Entry entry;
  entry.method = call.index;
  entry.counts_as_miss = !found.hit;
  entry.bases.assign(found.plan->allocations.size(), nullptr);
  entry.buffers.assign(found.plan->allocations.size(), nullptr);
  const Clock::time_point start = Clock::now();
  entry.executor = make_executor(std::move(found.plan), threads_, control_, device_);
  program_.phases.add(kLaunchSequencePhase, ms_since(start), entry.executor->metadata_bytes());
  ++counters_.graphs_built;
  entries_.push_front(std::move(entry));
  if (entries_.size() > capacity_) entries_.pop_back();
  call.entry = &entries_.front();
}

}  // namespace graft
