#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "exec/thread_pool.h"
#include "graft/graft.h"
#include "session/session_impl.h"

namespace graft {
namespace {

// Addresses of a run's outputs are collected on the stack: the steady state allocates nothing.
constexpr std::size_t kMaxOutputs = 1024;

std::string_view kind_name(Value::Kind kind) {
  constexpr std::string_view names[] = {"None", "a tensor", "an integer", "a float", "a bool", "a text"};
  return names[static_cast<std::size_t>(kind)];
}

// A result that is not a tensor.
Value number_of(const PlanOutput& out) {
  if (out.is_none) return {};
  if (!out.is_text) return from_scalar(out.scalar);
  Value text;
  text.kind = Value::Kind::text;
  text.text = out.text;
  return text;
}

// Equality of the whole key; never of a hash of it.
bool same_key(std::span<const std::int64_t> a, std::span<const std::int64_t> b) { return std::ranges::equal(a, b); }

}  // namespace

Value from_scalar(const Scalar& s) {
  switch (s.kind) {
    case ir::ValueKind::real:
      return Value::of(s.f);
    case ir::ValueKind::boolean:
      return Value::of(s.i != 0);
    default:
      return Value::of(s.i);
  }
}

CancelToken::CancelToken() : flag_(std::make_shared<std::atomic<bool>>(false)) {}
void CancelToken::cancel() const { flag_->store(true); }
void CancelToken::reset() const { flag_->store(false); }
bool CancelToken::cancelled() const { return flag_->load(); }

Session::Impl::Impl(std::shared_ptr<const Program> loaded_program, const SessionOptions& session_options)
    : program(std::move(loaded_program)), options(session_options), threads(resolve_threads(options.threads)) {
  if (const ProgramDevice* on_device = loaded().on_device.get()) device = std::make_unique<SessionDevice>(*on_device);
  arena = options.arena ? options.arena : std::make_shared<Arena>();
  has_kv = loaded().has_kv_cache();
  if (has_kv) check_kv(options.kv);
  control.random.seed = options.seed;
  find_padded_dims();
}

Session::Impl::~Impl() { drain(); }

void Session::Impl::check_open() const { GRAFT_CHECK(InvalidArgument, !closed, "the session is closed"); }

Session::Session(std::shared_ptr<const Program> program, const SessionOptions& options) {
  GRAFT_CHECK(InvalidArgument, program, "a session needs a program, got null");
  impl_ = std::make_unique<Impl>(std::move(program), options);
}

Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

const Counters& Session::counters() const { return impl_->counters; }
int Session::threads() const { return impl_->threads; }
const Program& Session::program() const { return *impl_->program; }

Arena::Arena() : impl_(std::make_unique<Impl>()) {}
Arena::~Arena() = default;
std::size_t Arena::bytes() const { return impl_->memory.size(); }

void Session::Impl::describe_inputs(const LoadedMethod& method, std::span<const Value> inputs) {
  GRAFT_CHECK(InvalidArgument, inputs.size() == method.info.inputs.size(), "method '", method.info.name, "' takes ",
              method.info.inputs.size(), " inputs, got ", inputs.size());
  input_descs.resize(inputs.size());
  for (std::size_t i = 0; i < input_descs.size(); ++i) {
    const Value& value = inputs[i];
    InputDesc& desc = input_descs[i];
    desc = InputDesc{};
    desc.is_tensor = value.kind == Value::Kind::tensor;
    if (method.info.inputs[i].kind == Value::Kind::none) {  // a constant of the export: nothing reads it
      desc.is_tensor = false;
      continue;
    }
    switch (value.kind) {
      case Value::Kind::tensor:
        desc.desc = TensorDesc(value.tensor.dtype, value.tensor.shape);
        break;
      case Value::Kind::integer:
        desc.scalar = Scalar::of(value.i);
        break;
      case Value::Kind::boolean:
        desc.scalar = Scalar::of(value.i != 0);
        break;
      case Value::Kind::real:
        desc.scalar = Scalar::of(value.f);
        break;
      default:
        throw InvalidArgument(str("input ", i, " of method '", method.info.name, "' must be a tensor or a number, got ",
                                  kind_name(value.kind)));
    }
    // A Python caller may give 2 for a float.
    if (method.info.inputs[i].kind == Value::Kind::real) desc.scalar = Scalar::of(desc.scalar.to_double());
  }
}

Session::Impl::Graph& Session::Impl::graph_for(std::uint32_t index) {
  const LoadedMethod& method = loaded().methods[index];
  key.clear();
  for (const InputDesc& input : input_descs) append_key(input);
  if (has_kv) append_kv_key(options.kv, key);
  for (auto it = graphs.begin(); it != graphs.end(); ++it) {
    if (it->method != index || !same_key(it->executable->plan().key, key)) continue;
    // Equal sizes do not make equal dtypes or ranks.
    if (!same_types(method.info, input_descs)) loaded().check_inputs(index, input_descs);
    if (it != graphs.begin()) graphs.splice(graphs.begin(), graphs, it);
    return graphs.front();
  }
  PlanCache::Result found = loaded().plan(index, input_descs, key, threads, options.kv);
  Graph graph;
  graph.method = index;
  graph.counts_as_miss = !found.hit;
  graph.bases.assign(found.plan->allocations.size(), nullptr);
  const Clock::time_point start = Clock::now();
  graph.executable = std::make_unique<Executable>(std::move(found.plan), threads, &control, device.get());
  loaded().phases.add(kLaunchListPhase, ms_since(start), graph.executable->metadata_bytes());
  ++counters.graphs_built;
  graphs.push_front(std::move(graph));
  // A run of a cut method needs a graph of each of its parts.
  const std::size_t parts = loaded().methods.size() - loaded().public_methods;
  if (graphs.size() > std::max<std::size_t>(options.max_graphs, 1) + parts) graphs.pop_back();
  return graphs.front();
}

void Session::Impl::append_key(const InputDesc& input) {
  if (!input.is_tensor) {
    key.push_back(input.scalar.is_real() ? std::bit_cast<std::int64_t>(input.scalar.f) : input.scalar.i);
    return;
  }
  for (std::int64_t size : input.desc.shape.sizes()) key.push_back(size);
}

bool Session::Impl::profile(Graph& graph, std::vector<NodeTiming>& timings, Clock::time_point begin) {
  std::vector<Clock::time_point> stamps;
  const Clock::time_point computing = Clock::now();
  const bool finished = graph.executable->compute(&stamps);
  const auto since = [&](Clock::time_point t) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(t - begin).count();
  };
  const Plan& plan = graph.executable->plan();
  timings.clear();
  std::int64_t start = since(computing);
  for (std::size_t i = 0; i < stamps.size() && i < plan.launches.size(); ++i) {
    const Launch& launch = plan.launches[i];
    const std::int64_t end = since(stamps[i]);
    timings.push_back({plan.node_names[launch.node], kernel_name(launch), start, end});
    start = end;
  }
  return finished;
}

void Session::Impl::compute(Graph& graph, const RunOptions& run_options, Clock::time_point begin) {
  if (!run_options.kv_rows.empty()) check_kv_rows(run_options.kv_rows);
  control.error.clear();
  control.timed_out = false;
  control.cancel = run_options.cancel ? run_options.cancel->flag() : nullptr;
  control.has_deadline = run_options.deadline.has_value();
  control.kv_rows = run_options.kv_rows;
  if (control.has_deadline) control.deadline = *run_options.deadline;
  const char* when = in_segments ? "" : " before the run began";
  if (control.cancel && control.cancel->load()) throw Cancelled(str("the run was cancelled", when));
  if (control.has_deadline && Clock::now() >= control.deadline) throw Cancelled(str("the deadline passed", when));
  ++(graph.counts_as_miss ? counters.plan_misses : counters.plan_hits);
  graph.counts_as_miss = false;
  const bool finished = run_options.profile ? profile(graph, *run_options.profile, begin) : graph.executable->compute();
  counters.kernels_launched += graph.executable->launches_finished();
  if (!in_segments) ++counters.runs;
  if (device) device->write_counters(counters);
  if (!finished) {
    if (control.error.failed()) throw ExecutionError(std::string(control.error.message()));
    throw Cancelled(control.timed_out ? "the deadline passed" : "the run was cancelled");
  }
  ++control.random.run;
  counters.state_bytes_written += static_cast<std::uint64_t>(graph.executable->plan().state_bytes_written);
}
std::vector<Value> Session::Impl::output_values(std::string_view name, std::span<const Value> inputs) {
  const std::uint32_t index = loaded().find(name);
  const LoadedMethod& method = loaded().methods[index];
  describe_inputs(method, inputs);
  if (!method.steps.empty()) return values_before_run(method, inputs);
  std::vector<Value> padded_inputs;
  std::vector<std::int64_t> sizes;
  const bool pads = !padded.empty() && pad(index, inputs, padded_inputs, sizes);
  if (pads) describe_inputs(method, padded_inputs);
  const Plan& plan = graph_for(index).executable->plan();
  std::vector<Value> values;
  for (const std::uint32_t position : method.user_outputs) {
    const PlanOutput& out = plan.outputs[position];
    values.push_back(out.is_tensor ? Value::of(TensorView{nullptr, out.desc.dtype, out.desc.shape}) : number_of(out));
    if (pads && out.is_tensor) values.back().tensor.shape = cut_back(values.size() - 1, out.desc.shape, sizes);
  }
  return values;
}

void Session::Impl::run_into(std::string_view name, std::span<const Value> inputs, std::span<Value> outputs,
                             const RunOptions& run_options) {
  const std::uint32_t index = loaded().find(name);
  if (!loaded().methods[index].steps.empty()) return run_segments(index, inputs, outputs, run_options);
  if (!padded.empty()) {
    std::vector<Value> padded_inputs;
    std::vector<std::int64_t> sizes;
    if (pad(index, inputs, padded_inputs, sizes)) return run_padded(index, padded_inputs, outputs, sizes, run_options);
  }
  run_plan(index, inputs, outputs, run_options);
}

void check_output_count(const LoadedMethod& method, std::size_t given) {
  GRAFT_CHECK(InvalidArgument, given == method.user_outputs.size(), "method '", method.info.name, "' returns ",
              method.user_outputs.size(), " outputs, got room for ", given);
}

void check_output_alignment(const LoadedMethod& method, std::size_t i, const TensorView& given) {
  GRAFT_CHECK(InvalidArgument, is_aligned(given.data, given.dtype), "output ", i, " of method '", method.info.name,
              "' must be aligned to ", byte_size(given.dtype), " bytes, its address is ", given.data);
}

void check_output(const LoadedMethod& method, std::size_t i, const Value& output, const TensorDesc& wanted) {
  const TensorView& given = output.tensor;
  GRAFT_CHECK(InvalidArgument,
              output.kind == Value::Kind::tensor && given.dtype == wanted.dtype && given.shape == wanted.shape,
              "output ", i, " of method '", method.info.name, "' must be a tensor ", wanted.str(), ", got ",
              output.kind == Value::Kind::tensor ? TensorDesc(given.dtype, given.shape).str()
                                                 : std::string(kind_name(output.kind)));
  GRAFT_CHECK(InvalidArgument, given.data || wanted.numel() == 0, "output ", i, " of method '", method.info.name, "' (",
              wanted.str(), ") has no memory: its pointer is null");
  check_output_alignment(method, i, given);
}

void Session::Impl::run_plan(std::uint32_t index, std::span<const Value> inputs, std::span<Value> outputs,
                             const RunOptions& run_options) {
  const Clock::time_point begin = run_options.profile ? Clock::now() : Clock::time_point{};
  const LoadedMethod& method = loaded().methods[index];
  const std::string& name = method.info.name;
  describe_inputs(method, inputs);
  Graph& graph = graph_for(index);
  const Plan& plan = graph.executable->plan();
  check_output_count(method, outputs.size());

  std::byte* output_data[kMaxOutputs];
  GRAFT_CHECK(Unsupported, plan.outputs.size() <= kMaxOutputs, "a method has at most ", kMaxOutputs, " outputs, '",
              name, "' has ", plan.outputs.size());
  std::fill_n(output_data, plan.outputs.size(), nullptr);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::uint32_t position = method.user_outputs[i];
    const PlanOutput& out = plan.outputs[position];
    if (!out.is_tensor) continue;
    check_output(method, i, outputs[i], out.desc);
    output_data[position] = static_cast<std::byte*>(outputs[i].tensor.data);
  }
  // One arena serves one run at a time.
  std::optional<BusyGuard> arena_guard;
  if (!run_options.arena.data())
    arena_guard.emplace(Internal::of(*arena).busy,
                        "the arena is in use by another session; sessions that share one take turns");
  bind(graph, inputs, output_data, run_options);
  compute(graph, run_options, begin);
  return_staged(graph, inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (const PlanOutput& out = plan.outputs[method.user_outputs[i]]; !out.is_tensor) outputs[i] = number_of(out);
}

std::vector<Value> Session::Impl::run(std::string_view name, std::span<const Value> inputs,
                                      const RunOptions& run_options) {
  const std::uint32_t index = loaded().find(name);
  if (const LoadedMethod& method = loaded().methods[index]; !method.steps.empty()) {
    std::vector<Value> outputs(method.user_outputs.size());
    run_segments(index, inputs, outputs, run_options);
    return outputs;
  }
  std::vector<Value> outputs = output_values(name, inputs);
  for (Value& value : outputs) {
    if (value.kind != Value::Kind::tensor || value.tensor.data) continue;
    auto memory = std::make_shared<AlignedMemory>(TensorDesc(value.tensor.dtype, value.tensor.shape).byte_count());
    value.tensor.data = memory->data();
    value.owner = std::move(memory);
  }
  run_into(name, inputs, outputs, run_options);
  return outputs;
}

std::vector<Value> Session::run(std::string_view name, std::span<const Value> inputs, const RunOptions& options) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  return impl_->run(name, inputs, options);
}

std::vector<Value> Session::output_values(std::string_view name, std::span<const Value> inputs) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  return impl_->output_values(name, inputs);
}

PlanInfo Session::plan(std::string_view name, std::span<const Value> inputs) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const std::uint32_t method = impl_->loaded().find(name);
  GRAFT_CHECK(InvalidArgument, impl_->loaded().methods[method].steps.empty(), "method '", name, "' runs in ",
              impl_->loaded().methods[method].steps.size(), " segments, each with a plan of its own");
  impl_->describe_inputs(impl_->loaded().methods[method], inputs);
  const Impl::Graph& graph = impl_->graph_for(method);
  const Plan& plan = graph.executable->plan();
  PlanInfo info{plan.arena_bytes, graph.executable->metadata_bytes(), plan.launches.size(), {}};
  for (std::size_t id = 0; id < plan.allocations.size(); ++id) {
    const Allocation& a = plan.allocations[id];
    info.allocations.push_back({graft::name(a.segment), a.index, a.bytes, a.hits, graph.bases[id]});
  }
  return info;
}

std::vector<std::byte> Session::stored_plan(std::string_view name, std::span<const Value> inputs) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  const ProgramImpl& program = impl_->loaded();
  GRAFT_CHECK(InvalidArgument, !program.plain, "plans of a program without fast kernels are not stored");
  const std::uint32_t method = program.find(name);
  GRAFT_CHECK(InvalidArgument, program.methods[method].steps.empty(), "method '", name, "' runs in ",
              program.methods[method].steps.size(), " segments; their plans are not stored");
  impl_->describe_inputs(program.methods[method], inputs);
  const Plan& plan = impl_->graph_for(method).executable->plan();
  return encode(stored_plan_of(plan, std::string(name), impl_->threads, program.size_count(plan.key)),
                plan_origin(program.device));
}

void Session::run_into(std::string_view name, std::span<const Value> inputs, std::span<Value> outputs,
                       const RunOptions& options) {
  const BusyGuard guard(impl_->busy, kSessionInUse);
  impl_->check_open();
  impl_->run_into(name, inputs, outputs, options);
}

}  // namespace graft
