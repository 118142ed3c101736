#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <list>
#include <numeric>

#include "base/aligned.h"
#include "base/check.h"
#include "base/plant.h"
#include "graft/graft.h"
#include "run/executable.h"
#include "run/program_impl.h"
#include "run/thread_team.h"

namespace graft {
namespace {

// Addresses of a run's outputs are collected on the stack: the steady state allocates nothing.
constexpr std::size_t kMaxOutputs = 1024;

bool aligned(const void* data, DType dtype) { return reinterpret_cast<std::uintptr_t>(data) % byte_size(dtype) == 0; }

std::string_view kind_name(Value::Kind kind) {
  constexpr std::string_view names[] = {"None", "a tensor", "an integer", "a float", "a bool", "a text"};
  return names[static_cast<std::size_t>(kind)];
}

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

// A result that is not a tensor.
Value number_of(const PlanOutput& out) {
  if (out.is_none) return {};
  if (!out.is_text) return from_scalar(out.scalar);
  Value text;
  text.kind = Value::Kind::text;
  text.text = out.text;
  return text;
}

}  // namespace

CancelToken::CancelToken() : flag_(std::make_shared<std::atomic<bool>>(false)) {}
void CancelToken::cancel() const { flag_->store(true); }
void CancelToken::reset() const { flag_->store(false); }
bool CancelToken::cancelled() const { return flag_->load(); }

struct Session::Impl {
  std::shared_ptr<const Program> program;
  SessionOptions options;
  int threads = 1;
  Counters counters;
  RunControl control;
  AlignedMemory arena;
  std::vector<AlignedMemory> states;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;

  struct Graph {
    std::uint32_t method = 0;
    std::unique_ptr<Executable> executable;
    std::vector<std::byte*> bases;
    bool counts_as_miss = false;  // its plan was made for a run that has not happened yet
  };
  std::list<Graph> graphs;  // most recently used first

  // Reused from call to call, so that the steady state allocates nothing.
  std::vector<InputDesc> input_descs;
  std::vector<std::int64_t> key;
  std::vector<AlignedMemory> staging;

  const Program::Impl& loaded() const { return program->impl(); }

  void describe_inputs(const LoadedMethod& method, std::span<const Value> inputs) {
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
          if (GRAFT_PLANT("input-read-at-the-graphs-size"))
            for (int d = 0; d < desc.desc.rank(); ++d)
              desc.desc.shape[d] = method.info.inputs[i].dims[static_cast<std::size_t>(d)].min;
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
          throw InvalidArgument(str("input ", i, " of method '", method.info.name,
                                    "' must be a tensor or a number, got ", kind_name(value.kind)));
      }
      // A Python caller may give 2 for a float.
      if (method.info.inputs[i].kind == Value::Kind::real) desc.scalar = Scalar::of(desc.scalar.to_double());
    }
  }

  // The instantiated plan for the described inputs; the one to use next is at the front of `graphs`.
  Graph& graph_for(std::uint32_t index) {
    const LoadedMethod& method = loaded().methods[index];
    key.clear();
    for (const InputDesc& input : input_descs) append_key(input);
    for (auto it = graphs.begin(); it != graphs.end(); ++it) {
      if (it->method != index || !same_key(it->executable->plan().key, key)) continue;
      // Equal sizes do not make equal dtypes or ranks.
      if (!same_types(method.graph(), input_descs)) check_inputs(method.graph(), input_descs);
      if (it != graphs.begin()) graphs.splice(graphs.begin(), graphs, it);
      return graphs.front();
    }
    PlanCache::Result found = loaded().plan(index, input_descs, key, threads);
    Graph graph;
    graph.method = index;
    graph.counts_as_miss = !found.hit;
    graph.bases.assign(found.plan->allocations.size(), nullptr);
    graph.executable = std::make_unique<Executable>(std::move(found.plan), threads, &control);
    ++counters.graphs_built;
    graphs.push_front(std::move(graph));
    if (graphs.size() > std::max<std::size_t>(options.max_graphs, 1)) graphs.pop_back();
    return graphs.front();
  }

  // Equality of the whole key; never of a hash of it.
  static bool same_key(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
    if (GRAFT_PLANT("plans-found-by-hash-alone") && a.size() == b.size())
      return std::accumulate(a.begin(), a.end(), 0LL) == std::accumulate(b.begin(), b.end(), 0LL);
    return std::ranges::equal(a, b);
  }

  void append_key(const InputDesc& input) {
    if (!input.is_tensor && GRAFT_PLANT("numbers-of-the-first-run-frozen")) return;
    if (!input.is_tensor) {
      key.push_back(input.scalar.is_real() ? std::bit_cast<std::int64_t>(input.scalar.f) : input.scalar.i);
      return;
    }
    for (std::int64_t size : input.desc.shape.sizes()) key.push_back(size);
  }

  std::byte* state(std::uint32_t index) {
    if (states.size() <= index) states.resize(loaded().states.size());
    AlignedMemory& memory = states[index];
    if (!memory.data()) {
      const StateInfo& info = loaded().states[index];
      const std::size_t bytes = info.desc.byte_count();
      memory = AlignedMemory(bytes);
      if (info.initial) {
        std::memcpy(memory.data(), info.initial, bytes);
      } else {
        std::memset(memory.data(), 0, bytes);
      }
      counters.state_bytes += bytes;
    }
    return memory.data();
  }

  std::byte* input_base(const LoadedMethod& method, std::uint32_t index, std::span<const Value> inputs) {
    const TensorView& tensor = inputs[index].tensor;
    const std::size_t bytes = input_descs[index].desc.byte_count();
    if (bytes == 0) return nullptr;
    GRAFT_CHECK(InvalidArgument, tensor.data, "input ", index, " of method '", method.info.name, "' (",
                input_descs[index].desc.str(), ") has no data: its pointer is null");
    if (aligned(tensor.data, tensor.dtype)) return static_cast<std::byte*>(tensor.data);
    GRAFT_CHECK(InvalidArgument, !options.strict_zero_copy, "input ", index, " of method '", method.info.name,
                "' must be aligned to ", byte_size(tensor.dtype), " bytes (strict_zero_copy), its address is ",
                tensor.data);
    if (staging.size() <= index) staging.resize(index + 1);
    if (staging[index].size() < bytes) {
      counters.staging_bytes += bytes - staging[index].size();
      staging[index] = AlignedMemory(bytes);
    }
    std::memcpy(staging[index].data(), tensor.data, bytes);
    ++counters.io_copies;
    counters.io_bytes_copied += bytes;
    return staging[index].data();
  }

  void ensure_arena(std::int64_t bytes) {
    if (arena.data() && static_cast<std::int64_t>(arena.size()) >= bytes) return;
    arena = AlignedMemory();  // the old block goes first, so that the peak is the new one alone
    arena = AlignedMemory(static_cast<std::size_t>(bytes));
    ++counters.arena_allocations;
    counters.arena_bytes = arena.size();
  }

  void bind(Graph& graph, std::span<const Value> inputs, std::span<std::byte* const> output_data) {
    const LoadedMethod& method = loaded().methods[graph.method];
    const Plan& plan = graph.executable->plan();
    ensure_arena(plan.arena_bytes);
    for (std::size_t id = 0; id < plan.allocations.size(); ++id) {
      const Allocation& allocation = plan.allocations[id];
      std::byte*& base = graph.bases[id];
      switch (allocation.segment) {
        case Segment::weight:
          base = method.weights[allocation.index];
          break;
        case Segment::constant:
          base = method.constants[allocation.index].memory.data();
          break;
        case Segment::state:
          base = state(method.states[allocation.index]);
          break;
        case Segment::arena:
          base = arena.data();
          break;
        case Segment::input:
          base = input_base(method, allocation.index, inputs);
          break;
        case Segment::output:
          base = output_data[allocation.index];
          break;
      }
    }
    counters.rewrites += graph.executable->bind(graph.bases);
  }

  static bool profile(Graph& graph, std::vector<NodeTiming>& timings) {
    std::vector<Executable::Clock::time_point> stamps;
    const Executable::Clock::time_point begin = Executable::Clock::now();
    const bool finished = graph.executable->compute(&stamps);
    const auto since = [&](Executable::Clock::time_point t) {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(t - begin).count();
    };
    const Plan& plan = graph.executable->plan();
    timings.clear();
    std::int64_t start = 0;
    for (std::size_t i = 0; i < stamps.size() && i < plan.launches.size(); ++i) {
      const Launch& launch = plan.launches[i];
      const std::int64_t end = since(stamps[i]);
      timings.push_back({plan.node_names[launch.node], kernel_name(launch), start, end});
      start = end;
    }
    return finished;
  }

  void compute(Graph& graph, const RunOptions& run_options) {
    control.error.clear();
    control.timed_out = false;
    control.cancel = run_options.cancel ? run_options.cancel->flag() : nullptr;
    control.has_deadline = run_options.deadline.has_value();
    if (control.has_deadline) control.deadline = *run_options.deadline;
    if (control.cancel && control.cancel->load()) throw Cancelled("the run was cancelled before it began");
    if (control.has_deadline && std::chrono::steady_clock::now() >= control.deadline)
      throw Cancelled("the deadline passed before the run began");
    ++(graph.counts_as_miss ? counters.plan_misses : counters.plan_hits);
    graph.counts_as_miss = false;
    const bool finished = run_options.profile ? profile(graph, *run_options.profile) : graph.executable->compute();
    counters.kernels_launched += graph.executable->launches_finished();
    ++counters.runs;
    if (!finished) {
      if (control.error.failed()) throw ExecutionError(std::string(control.error.message()));
      throw Cancelled(control.timed_out ? "the deadline passed" : "the run was cancelled");
    }
    counters.state_bytes_written += static_cast<std::uint64_t>(graph.executable->plan().state_bytes_written);
  }
};

namespace {

// A session belongs to one caller at a time.
class BusyGuard {
 public:
  explicit BusyGuard(std::atomic_flag& busy) : busy_(busy) {
    GRAFT_CHECK(InvalidArgument, !busy_.test_and_set(std::memory_order_acquire),
                "the session is in use by another thread; make one session per thread");
  }
  ~BusyGuard() { busy_.clear(std::memory_order_release); }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  std::atomic_flag& busy_;
};

}  // namespace

Session::Session(std::shared_ptr<const Program> program, const SessionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  GRAFT_CHECK(InvalidArgument, program, "a session needs a program, got null");
  impl_->program = std::move(program);
  impl_->options = options;
  impl_->threads = resolve_threads(options.threads);
}

Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

std::vector<StateView> Session::states() {
  std::vector<StateView> views;
  const std::vector<StateInfo>& infos = impl_->loaded().states;
  for (std::uint32_t i = 0; i < infos.size(); ++i)
    views.push_back({infos[i].fqn, {impl_->state(i), infos[i].desc.dtype, infos[i].desc.shape}});
  return views;
}

const Counters& Session::counters() const { return impl_->counters; }
int Session::threads() const { return impl_->threads; }
const Program& Session::program() const { return *impl_->program; }

std::vector<Value> Session::output_values(std::string_view name, std::span<const Value> inputs) {
  const BusyGuard guard(impl_->busy);
  const std::uint32_t index = impl_->loaded().find(name);
  const LoadedMethod& method = impl_->loaded().methods[index];
  impl_->describe_inputs(method, inputs);
  const Plan& plan = impl_->graph_for(index).executable->plan();
  std::vector<Value> values;
  for (const std::uint32_t position : method.user_outputs) {
    const PlanOutput& out = plan.outputs[position];
    values.push_back(out.is_tensor ? Value::of(TensorView{nullptr, out.desc.dtype, out.desc.shape}) : number_of(out));
  }
  return values;
}

void Session::run_into(std::string_view name, std::span<const Value> inputs, std::span<Value> outputs,
                       const RunOptions& options) {
  const BusyGuard guard(impl_->busy);
  const std::uint32_t index = impl_->loaded().find(name);
  const LoadedMethod& method = impl_->loaded().methods[index];
  impl_->describe_inputs(method, inputs);
  Impl::Graph& graph = impl_->graph_for(index);
  const Plan& plan = graph.executable->plan();
  GRAFT_CHECK(InvalidArgument, outputs.size() == method.user_outputs.size(), "method '", name, "' returns ",
              method.user_outputs.size(), " outputs, got room for ", outputs.size());

  std::byte* output_data[kMaxOutputs];
  GRAFT_CHECK(Unsupported, plan.outputs.size() <= kMaxOutputs, "a method has at most ", kMaxOutputs, " outputs, '",
              name, "' has ", plan.outputs.size());
  std::fill_n(output_data, plan.outputs.size(), nullptr);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::uint32_t position = method.user_outputs[i];
    const PlanOutput& out = plan.outputs[position];
    if (!out.is_tensor) continue;
    const TensorView& given = outputs[i].tensor;
    GRAFT_CHECK(InvalidArgument,
                outputs[i].kind == Value::Kind::tensor &&
                    (given.dtype == out.desc.dtype || GRAFT_PLANT("output-dtype-unchecked")) &&
                    given.shape == out.desc.shape,
                "output ", i, " of method '", name, "' must be a tensor ", out.desc.str(), ", got ",
                outputs[i].kind == Value::Kind::tensor ? TensorDesc(given.dtype, given.shape).str()
                                                       : std::string(kind_name(outputs[i].kind)));
    GRAFT_CHECK(InvalidArgument, given.data || out.desc.numel() == 0, "output ", i, " of method '", name, "' (",
                out.desc.str(), ") has no memory: its pointer is null");
    GRAFT_CHECK(InvalidArgument, aligned(given.data, given.dtype), "output ", i, " of method '", name,
                "' must be aligned to ", byte_size(given.dtype), " bytes, its address is ", given.data);
    output_data[position] = static_cast<std::byte*>(given.data);
  }
  impl_->bind(graph, inputs, output_data);
  impl_->compute(graph, options);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (const PlanOutput& out = plan.outputs[method.user_outputs[i]]; !out.is_tensor) outputs[i] = number_of(out);
}

std::vector<Value> Session::run(std::string_view name, std::span<const Value> inputs, const RunOptions& options) {
  std::vector<Value> outputs = output_values(name, inputs);
  for (Value& value : outputs) {
    if (value.kind != Value::Kind::tensor || value.tensor.data) continue;
    auto memory = std::make_shared<AlignedMemory>(TensorDesc(value.tensor.dtype, value.tensor.shape).byte_count());
    value.tensor.data = memory->data();
    value.owner = std::move(memory);
  }
  run_into(name, inputs, outputs, options);
  return outputs;
}

}  // namespace graft
