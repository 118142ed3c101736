#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "exec/cpus.h"
#include "graft/graft.h"
#include "session/call_values.h"
#include "session/kv_tokens.h"
#include "session/session_impl.h"
#include "session/state_file.h"

namespace graft {

CancelToken::CancelToken() try : flag_(std::make_shared<std::atomic<bool>>(false)) {
} catch (...) {
  rethrow_typed();
}
void CancelToken::cancel() const { flag_->store(true); }
void CancelToken::reset() const { flag_->store(false); }
bool CancelToken::cancelled() const { return flag_->load(); }

Session::Impl::Use::Use(Impl& impl) : guard(impl.busy, kSessionInUse) {
  GRAFT_CHECK(InvalidArgument, !impl.closed, "the session is closed");
  impl.states.lock(states);
  impl.plans.leave_unusable_device();
}

Session::Impl::Impl(std::shared_ptr<const Program> loaded_program, const SessionOptions& session_options)
    : program(std::move(loaded_program)),
      options(session_options),
      threads(resolve_threads(options.threads)),
      states(Internal::of(*program), options.states, options.kv, counters),
      kv(states),
      plans(Internal::of(*program), options, threads, kv, blocks, counters),
      segments(Internal::of(*program), plans, states, blocks, counters),
      queue(options.queue_capacity, [this](const RunQueue::Job& job) {
        // The owner may be in a direct call: wait for it to end.
        const WaitLimit limit = WaitLimit::of(job.options);
        const BusyGuard guard(busy, limit);
        std::optional<BusyGuard> sharing;
        states.lock(sharing, limit);
        return run(job.method, job.inputs, job.options);
      }) {}

PreparedCall& Session::Impl::prepare_plan(std::string_view method, std::span<const Value> inputs,
                                          std::string_view what) {
  const std::uint32_t index = find(method);
  const std::size_t steps = Internal::of(*program).methods[index].steps.size();
  GRAFT_CHECK(InvalidArgument, steps == 0, "method '", method, "' runs in ", steps, " segments", what);
  return plans.prepare(index, inputs);
}

std::vector<std::byte> Session::Impl::encoded(const PreparedCall& call) const {
  const ProgramImpl& loaded = Internal::of(*program);
  GRAFT_CHECK(InvalidArgument, !loaded.plain, "plans of a program without fast kernels are not stored");
  const Plan& plan = call.plan();
  return encode(stored_plan_of(plan, call.method->info.name, threads, loaded.size_count(call.index, plan.key)),
                plan_origin(loaded.device));
}

std::vector<Value> Session::Impl::output_values(std::string_view method, std::span<const Value> inputs) {
  const PreparedCall& call = plans.prepare(find(method), inputs);
  return call.in_segments() ? SegmentRunner::outputs(call) : plans.outputs(call);
}

void Session::Impl::run_into(std::string_view method, std::span<const Value> inputs, std::span<Value> outputs,
                             const RunOptions& run_options) {
  PreparedCall& call = plans.prepare(find(method), inputs, run_options);
  if (call.in_segments()) {
    segments.run(call, outputs, run_options);
  } else {
    plans.run(call, outputs, run_options);
  }
}

std::vector<Value> Session::Impl::run_into(std::string_view method, std::span<const Value> inputs,
                                           const PlaceOutputs& place, const RunOptions& run_options) {
  PreparedCall& call = plans.prepare(find(method), inputs, run_options);
  if (!call.in_segments()) {
    std::vector<Value> outputs = plans.outputs(call);
    call_back([&] { place(outputs); });
    plans.run(call, outputs, run_options);
    return outputs;
  }
  const LoadedMethod& loaded = *call.method;
  GRAFT_CHECK(InvalidArgument, !options.strict_zero_copy, "method '", method, "' runs in ", loaded.steps.size(),
              " segments: its outputs would be copied to where the caller wants them (strict_zero_copy)");
  std::vector<Value> made(call.output_count());
  segments.run(call, made, run_options);
  std::vector<Value> outputs = made;
  for (Value& output : outputs) {
    output.owner.reset();
    output.tensor.data = nullptr;
  }
  call_back([&] { place(outputs); });
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (made[i].kind != Value::Kind::tensor) continue;
    const TensorDesc desc(made[i].tensor.dtype, made[i].tensor.shape);
    check_output(loaded, i, outputs[i], desc);
    const std::size_t bytes = desc.byte_count();
    if (bytes == 0) continue;
    std::memcpy(outputs[i].tensor.data, made[i].tensor.data, bytes);
    ++counters.io_copies;
    counters.io_bytes_copied += bytes;
  }
  return outputs;
}

std::vector<Value> Session::Impl::run(std::string_view method, std::span<const Value> inputs,
                                      const RunOptions& run_options) {
  PreparedCall& call = plans.prepare(find(method), inputs, run_options);
  if (call.in_segments()) {
    std::vector<Value> outputs(call.output_count());
    segments.run(call, outputs, run_options);
    return outputs;
  }
  std::vector<Value> outputs = plans.outputs(call);
  for (Value& output : outputs) {
    if (output.kind != Value::Kind::tensor) continue;
    auto memory = std::make_shared<AlignedMemory>(TensorDesc(output.tensor.dtype, output.tensor.shape).byte_count());
    output.tensor.data = memory->data();
    output.owner = std::move(memory);
  }
  plans.run(call, outputs, run_options);
  return outputs;
}

Session::Session(std::shared_ptr<const Program> program, const SessionOptions& options) try {
  GRAFT_CHECK(InvalidArgument, program, "a session needs a program, got null");
  impl_ = std::make_unique<Impl>(std::move(program), options);
} catch (...) {
  rethrow_typed();
}

Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

const Counters& Session::counters() const { return impl_->counters; }
int Session::threads() const { return impl_->threads; }
const Program& Session::program() const { return *impl_->program; }

std::vector<Value> Session::run(std::string_view method, std::span<const Value> inputs, const RunOptions& options) try {
  const Impl::Use use(*impl_);
  return impl_->run(method, inputs, options);
} catch (...) {
  rethrow_typed();
}

std::vector<Value> Session::output_values(std::string_view method, std::span<const Value> inputs) try {
  const Impl::Use use(*impl_);
  return impl_->output_values(method, inputs);
} catch (...) {
  rethrow_typed();
}

void Session::run_into(std::string_view method, std::span<const Value> inputs, std::span<Value> outputs,
                       const RunOptions& options) try {
  const Impl::Use use(*impl_);
  impl_->run_into(method, inputs, outputs, options);
} catch (...) {
  rethrow_typed();
}

std::vector<Value> Session::run_into(std::string_view method, std::span<const Value> inputs, const PlaceOutputs& place,
                                     const RunOptions& options) try {
  const Impl::Use use(*impl_);
  return impl_->run_into(method, inputs, place, options);
} catch (...) {
  rethrow_typed();
}

std::future<std::vector<Value>> Session::submit(std::string method, std::vector<Value> inputs, RunOptions options) try {
  return impl_->queue.submit({std::move(method), std::move(inputs), options, {}});
} catch (...) {
  rethrow_typed();
}

void Session::close() try {
  impl_->queue.close();
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->closed = true;
  impl_->plans.close();
  impl_->states.clear();
} catch (...) {
  rethrow_typed();
}

PlanInfo Session::plan(std::string_view method, std::span<const Value> inputs) try {
  const Impl::Use use(*impl_);
  const PreparedCall& call = impl_->prepare_plan(method, inputs, ", each with a plan of its own");
  const Plan& plan = call.plan();
  PlanInfo info{plan.arena_bytes, call.entry->executor->metadata_bytes(), plan.launches.size(), {}};
  for (std::size_t id = 0; id < plan.allocations.size(); ++id) {
    const Allocation& a = plan.allocations[id];
    info.allocations.push_back({name(a.memory), a.index, a.bytes, a.hits, call.entry->bases[id]});
  }
  return info;
} catch (...) {
  rethrow_typed();
}

std::vector<std::byte> Session::stored_plan(std::string_view method, std::span<const Value> inputs) try {
  const Impl::Use use(*impl_);
  const PreparedCall& call = impl_->prepare_plan(method, inputs, ", each with a plan of its own: see stored_plans()");
  return impl_->encoded(call);
} catch (...) {
  rethrow_typed();
}

std::vector<std::vector<std::byte>> Session::stored_plans(std::string_view method, std::span<const Value> inputs) try {
  const Impl::Use use(*impl_);
  PreparedCall& call = impl_->plans.prepare(impl_->find(method), inputs);
  std::vector<std::vector<std::byte>> plans;
  if (!call.in_segments()) {
    plans.push_back(impl_->encoded(call));
    return plans;
  }
  std::set<std::pair<std::uint32_t, std::vector<std::int64_t>>> seen;
  std::vector<Value> outputs(call.output_count());
  impl_->segments.run(call, outputs, {}, [&](const PreparedCall& segment) {
    if (seen.emplace(segment.index, segment.key).second) plans.push_back(impl_->encoded(segment));
  });
  return plans;
} catch (...) {
  rethrow_typed();
}

void Session::freeze_input(std::string_view method, std::size_t input) try {
  const Impl::Use use(*impl_);
  impl_->plans.binder().freeze(impl_->find(method), input);
} catch (...) {
  rethrow_typed();
}

std::vector<StateView> Session::states() try {
  const Impl::Use use(*impl_);
  return impl_->states.views();
} catch (...) {
  rethrow_typed();
}

void Session::reset() try {
  const Impl::Use use(*impl_);
  impl_->states.reset();
  impl_->plans.random().run = 0;
} catch (...) {
  rethrow_typed();
}

Session Session::fork() try {
  const Impl::Use use(*impl_);
  SessionOptions options = impl_->options;
  options.threads = impl_->threads;
  options.states = nullptr;
  options.kv = impl_->states.kv();
  Session copy(impl_->program, options);
  copy.impl_->plans.random() = impl_->plans.random();
  for (std::uint32_t i = 0; i < impl_->states.count(); ++i) {
    const std::byte* from = impl_->states.existing(i);
    if (!from) continue;
    std::byte* to = copy.impl_->states.data(i);
    for (const auto& [offset, bytes] : impl_->kv.used_ranges(i)) std::memcpy(to + offset, from + offset, bytes);
  }
  return copy;
} catch (...) {
  rethrow_typed();
}

void Session::save(const std::string& path) try {
  const Impl::Use use(*impl_);
  StateFile(impl_->kv).save(path);
} catch (...) {
  rethrow_typed();
}

void Session::restore(const std::string& path) try {
  const Impl::Use use(*impl_);
  StateFile(impl_->kv).restore(path);
} catch (...) {
  rethrow_typed();
}

std::span<const std::int64_t> Session::kv_lengths() try {
  const Impl::Use use(*impl_);
  return impl_->kv.lengths();
} catch (...) {
  rethrow_typed();
}

void Session::kv_truncate(std::int64_t length) try {
  const Impl::Use use(*impl_);
  impl_->kv.truncate(length);
} catch (...) {
  rethrow_typed();
}

std::int64_t Session::kv_shortest(std::int64_t row) try {
  const Impl::Use use(*impl_);
  impl_->kv.check_row(row);
  return impl_->kv.shortest(static_cast<std::size_t>(row));
} catch (...) {
  rethrow_typed();
}

void Session::kv_select(std::span<const std::int64_t> rows) try {
  const Impl::Use use(*impl_);
  impl_->kv.select(rows);
} catch (...) {
  rethrow_typed();
}

void Session::kv_resize(std::int64_t rows, std::int64_t length) try {
  const Impl::Use use(*impl_);
  impl_->kv.resize(rows, length);
} catch (...) {
  rethrow_typed();
}

void Session::kv_read(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
                      const TensorView& values) try {
  const Impl::Use use(*impl_);
  KvTokens(impl_->kv).read(layer, row, first, keys, values);
} catch (...) {
  rethrow_typed();
}

std::size_t Session::kv_token_bytes() try {
  const Impl::Use use(*impl_);
  return KvTokens(impl_->kv).token_bytes();
} catch (...) {
  rethrow_typed();
}

bool Session::kv_copy_out(std::int64_t row, std::int64_t first, std::int64_t count, std::span<std::byte> bytes) try {
  const Impl::Use use(*impl_);
  return KvTokens(impl_->kv).copy_out(row, first, count, bytes);
} catch (...) {
  rethrow_typed();
}

void Session::kv_copy_in(std::int64_t row, std::int64_t first, std::int64_t count,
                         std::span<const std::byte> bytes) try {
  const Impl::Use use(*impl_);
  KvTokens(impl_->kv).copy_in(row, first, count, bytes);
} catch (...) {
  rethrow_typed();
}

void Session::kv_write(std::int64_t layer, std::int64_t row, std::int64_t first, const TensorView& keys,
                       const TensorView& values) try {
  const Impl::Use use(*impl_);
  KvTokens(impl_->kv).write(layer, row, first, keys, values);
} catch (...) {
  rethrow_typed();
}

void Session::kv_set_lengths(std::span<const std::int64_t> lengths) try {
  const Impl::Use use(*impl_);
  impl_->kv.set_lengths(lengths);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
