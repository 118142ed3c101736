#include "session/plan_runner.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "load/adapter_impl.h"
#include "session/call_values.h"
#include "session/run_observer.h"

namespace graft {
namespace {

// Addresses of a run's outputs are collected on the stack: the steady state allocates nothing.
constexpr std::size_t kMaxOutputs = 1024;

// Only graft's kernels on the CPU show their tensors.
void check_observable(const Plan& plan) {
  GRAFT_CHECK(Unsupported, plan.stages.empty(), "runs on a device cannot be checked or observed");
  for (const Launch& launch : plan.launches)
    GRAFT_CHECK(Unsupported, launch.kernel != nullptr, "node ", plan.node_names[launch.node], " runs as ",
                kernel_name(launch), "; only launches of graft's own kernels can be checked or observed");
}

}  // namespace

PlanRunner::PlanRunner(const ProgramImpl& program, const SessionOptions& options, int threads, KvCache& kv,
                       std::shared_ptr<BlockPool> blocks, Counters& counters)
    : program_(program),
      kv_(kv),
      blocks_(std::move(blocks)),
      counters_(counters),
      device_(program.on_device && !program.on_device->is_lost() ? std::make_unique<SessionDevice>(*program.on_device)
                                                                 : nullptr),
      arena_(options.arena, counters),
      binder_(program, kv, arena_, options.strict_zero_copy, counters),
      padding_(program, options.buckets, blocks_, counters),
      executors_(program, threads, options.max_graphs, control_, device_.get(), counters) {
  control_.random.seed = options.seed;
}

void PlanRunner::leave_unusable_device() {
  if (!device_ || device_->is_usable()) return;
  executors_.leave_device();
  const bool tokens_lost = kv_.states().leave_device();
  device_.reset();
  ++counters_.device_losses;
  if (tokens_lost) kv_.truncate(0);
}

// The batch is known to the kernels only where no rows are given; each has the row of its own number then.
KvExtent PlanRunner::kv_extent(const RunOptions& options) {
  KvExtent extent;
  if (!device_ || !kv_.exists()) return extent;
  const std::span<const std::int64_t> rows = options.kv_rows;
  if (!rows.empty()) {
    kv_.check_rows(rows);
    extent.first_row = rows[0];
    for (std::size_t i = 1; i < rows.size(); ++i)
      if (rows[i] != rows[0] + static_cast<std::int64_t>(i)) extent.first_row = -1;
  }
  // One less than a number of slots, so that a step fills them: four numbers for each power of two.
  const auto most = static_cast<std::uint64_t>(std::ranges::max(kv_.lengths()));
  constexpr std::uint64_t kLeast = 256;
  const std::uint64_t step = std::max(std::bit_ceil(most + 1) / 8, kLeast);
  if (most > 0) extent.held = static_cast<std::int64_t>((most + step) / step * step - 1);
  return extent;
}

void PlanRunner::check_adapters(std::span<const Value> inputs, const RunOptions& options) const {
  if (options.adapters.size() < 2) return;
  // As src/pass/graph/adapters.cpp finds the batch.
  const std::vector<ValueInfo>& infos = call_.method->info.inputs;
  for (std::size_t i = 0; i < infos.size() && i < inputs.size(); ++i) {
    if (infos[i].kind != Value::Kind::tensor || infos[i].dims.size() < 2) continue;
    const Shape& shape = inputs[i].tensor.shape;
    GRAFT_CHECK(InvalidArgument, shape.rank() > 0 && std::ssize(options.adapters) == shape[0], "a batch of ",
                shape.rank() > 0 ? shape[0] : 0, " got ", options.adapters.size(), " adapters");
    return;
  }
}

void PlanRunner::take_adapters(const RunOptions& options) {
  control_.adapters.clear();
  for (const Adapter* const adapter : options.adapters) {
    if (adapter != nullptr) {
      GRAFT_CHECK(InvalidArgument, program_.adapters, program_.source,
                  " was loaded without adapters (LoadOptions::max_adapter_rank)");
      GRAFT_CHECK(InvalidArgument, AdapterAccess::is_of(*adapter, *program_.adapters),
                  "an adapter is of another program than ", program_.source);
    }
    control_.adapters.push_back(adapter == nullptr ? nullptr : AdapterAccess::list(*adapter).data());
  }
  // Where all rows have the same one it need not be known which rows of a layer are whose.
  const std::vector<const LowRank*>& all = control_.adapters;
  if (!all.empty() && std::ranges::all_of(all, [&](const LowRank* each) { return each == all.front(); }))
    control_.adapters.resize(all.front() == nullptr ? 0 : 1);
}

PreparedCall& PlanRunner::prepare(std::uint32_t method, std::span<const Value> inputs, const RunOptions& options,
                                  const RunSizes* run) {
  call_.begin = options.profile ? Clock::now() : Clock::time_point{};
  leave_unusable_device();
  call_.describe(program_, method, inputs, counters_);
  if (run == nullptr) check_adapters(inputs, options);
  if (call_.in_segments()) {
    program_.check_inputs(method, call_.inputs);
    padding_.round_up(call_);
  } else {
    padding_.round_up(call_, run);
    executors_.find(call_, kv_.states().kv(), kv_extent(options));
  }
  return call_;
}

std::vector<Value> PlanRunner::outputs(const PreparedCall& call) const {
  std::vector<Value> values;
  values.reserve(call.output_count());
  for (std::size_t i = 0; i < call.output_count(); ++i) {
    const PlanOutput& out = call.output(i);
    values.push_back(out.is_tensor ? Value::of(TensorView{nullptr, out.desc.dtype, padding_.cut_shape(call, i)})
                                   : padding_.number(call, i));
  }
  return values;
}

void PlanRunner::run(PreparedCall& call, std::span<Value> outputs, const RunOptions& options, Part part,
                     Padded* padded) {
  check_output_count(*call.method, outputs.size());
  if (!call.padded()) return run_on(call, call.given, outputs, options, part);
  // Outputs that are cut have memory of their own during the run.
  std::vector<Value> whole(outputs.begin(), outputs.end());
  std::vector<bool> cut(outputs.size(), false);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const PlanOutput& out = call.output(i);
    if (!out.is_tensor) continue;
    const Shape shape = padding_.cut_shape(call, i);
    cut[i] = shape != out.desc.shape;
    if (!cut[i]) continue;
    check_output(*call.method, i, outputs[i], {out.desc.dtype, shape});
    whole[i] = blocks_->tensor(out.desc.dtype, out.desc.shape);
  }
  run_on(call, padding_.pad(call, padded ? padded->inputs : std::span<const Value>{}), whole, options, part);
  if (padded) padded->outputs.assign(outputs.size(), {});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (cut[i]) {
      padding_.cut(call, i, whole[i].tensor, outputs[i].tensor);
      if (padded) padded->outputs[i] = std::move(whole[i]);
    } else {
      outputs[i] = std::move(whole[i]);
    }
  }
}

void PlanRunner::run_on(const PreparedCall& call, std::span<const Value> inputs, std::span<Value> outputs,
                        const RunOptions& options, Part part) {
  const LoadedMethod& method = *call.method;
  const Plan& plan = call.plan();
  std::byte* addresses[kMaxOutputs];
  GRAFT_CHECK(Unsupported, plan.outputs.size() <= kMaxOutputs, "a method has at most ", kMaxOutputs, " outputs, '",
              method.info.name, "' has ", plan.outputs.size());
  std::fill_n(addresses, plan.outputs.size(), nullptr);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const PlanOutput& out = call.output(i);
    if (!out.is_tensor) continue;
    check_output(method, i, outputs[i], out.desc);
    addresses[method.user_outputs[i]] = static_cast<std::byte*>(outputs[i].tensor.data);
  }
  std::optional<BusyGuard> arena_guard;
  arena_.lock(arena_guard, options);
  binder_.bind(call, inputs, addresses, options, device_.get());
  compute(call, options, part);
  binder_.return_copies(call, inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (!call.output(i).is_tensor) outputs[i] = padding_.number(call, i);
}

bool PlanRunner::profile(const PreparedCall& call, std::vector<NodeTiming>& timings) {
  std::vector<Clock::time_point> stamps;
  const Clock::time_point computing = Clock::now();
  const bool finished = call.entry->executor->run(&stamps);
  const auto since_begin = [&](Clock::time_point t) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(t - call.begin).count();
  };
  const Plan& plan = call.plan();
  timings.clear();
  std::int64_t start = since_begin(computing);
  for (std::size_t i = 0; i < stamps.size() && i < plan.launches.size(); ++i) {
    const Launch& launch = plan.launches[i];
    const std::int64_t end = since_begin(stamps[i]);
    timings.push_back({plan.node_names[launch.node], kernel_name(launch), start, end});
    start = end;
  }
  return finished;
}

void PlanRunner::compute(const PreparedCall& call, const RunOptions& options, Part part) {
  if (!options.kv_rows.empty()) kv_.check_rows(options.kv_rows);
  control_.error.clear();
  control_.timed_out = false;
  control_.cancel = options.cancel ? options.cancel->flag() : nullptr;
  control_.has_deadline = options.deadline.has_value();
  control_.kv_rows = options.kv_rows;
  take_adapters(options);
  control_.priority = options.priority;
  control_.outer = RunControl::around_this_thread();
  if (control_.has_deadline) control_.deadline = *options.deadline;
  const char* when = part == Part::segment ? "" : " before the run began";
  if (control_.cancel && control_.cancel->load()) throw Cancelled(str("the run was cancelled", when));
  if (control_.has_deadline && Clock::now() >= control_.deadline) throw Cancelled(str("the deadline passed", when));
  ++(call.entry->counts_as_miss ? counters_.plan_misses : counters_.plan_hits);
  call.entry->counts_as_miss = false;
  Executor& executor = *call.entry->executor;
  std::optional<RunObserver> observer;
  if (RunObserver::wanted(options)) {
    check_observable(call.plan());
    observer.emplace(options, call.plan());
  }
  control_.observer = observer ? &*observer : nullptr;
  const bool finished = options.profile ? profile(call, *options.profile) : executor.run();
  counters_.kernels_launched += executor.launches_finished();
  if (part == Part::whole) ++counters_.runs;
  if (device_) device_->write_counters(counters_);
  if (!finished) {
    if (control_.error.failed()) throw ExecutionError(std::string(control_.error.message()));
    throw Cancelled(control_.timed_out ? "the deadline passed" : "the run was cancelled");
  }
  ++control_.random.run;
  counters_.state_bytes_written += static_cast<std::uint64_t>(call.plan().state_bytes_written);
}

void PlanRunner::close() {
  executors_.clear();
  binder_.clear();
  arena_.release();
}

}  // namespace graft
