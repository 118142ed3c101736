#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/clock.h"
#include "base/rethrow.h"
#include "graft/graft.h"
#include "load/fold.h"
#include "load/loaded_model.h"
#include "load/program_impl.h"
#include "weight/stored_weight.h"

namespace graft {
namespace {

ValueInfo value_info(const ir::Value& value, std::string label) {
  ValueInfo info;
  info.name = std::move(label);
  switch (value.kind) {
    case ir::ValueKind::tensor:
      info.kind = Value::Kind::tensor;
      break;
    case ir::ValueKind::integer:
      info.kind = Value::Kind::integer;
      break;
    case ir::ValueKind::real:
      info.kind = Value::Kind::real;
      break;
    case ir::ValueKind::boolean:
      info.kind = Value::Kind::boolean;
      break;
  }
  info.dtype = value.dtype;
  for (const ir::Dim& dim : value.dims) info.dims.push_back({dim.min, dim.max, dim.expr});
  return info;
}

}  // namespace

std::uint64_t host_bytes(const Plan& plan) {
  std::uint64_t bytes = sizeof(plan) + plan.key.capacity() * sizeof(plan.key[0]) +
                        plan.allocations.capacity() * sizeof(Allocation) + plan.buffers.capacity() * sizeof(Buffer) +
                        plan.launches.capacity() * sizeof(Launch) + plan.outputs.capacity() * sizeof(PlanOutput);
  for (const Launch& launch : plan.launches)
    bytes += launch.attrs.capacity() + (launch.inputs.capacity() + launch.outputs.capacity()) * sizeof(Tensor);
  for (const std::string& name : plan.node_names) bytes += sizeof(name) + name.capacity();
  return bytes;
}

namespace {

bool same_kinds(const std::vector<ValueInfo>& a, const std::vector<ValueInfo>& b) {
  return std::ranges::equal(a, b, [](const ValueInfo& x, const ValueInfo& y) {
    return x.name == y.name && x.kind == y.kind && x.dtype == y.dtype && x.dims.size() == y.dims.size();
  });
}

// Whether the results of load fit a graph that was read again: its plans are bound to these weights, states and
// outputs.
bool fits(const ir::Program& graph, const LoadedMethod& method, const std::vector<StateInfo>& states) {
  const MethodInfo info = method_info(graph.methods[0]);
  const auto same_weight = [](const ir::Weight& weight, std::size_t bytes) { return weight.byte_size == bytes; };
  const auto same_state = [&](const ir::State& state, std::uint32_t index) {
    const ir::State& known = states[index].state;
    return state.fqn == known.fqn && state.kind == known.kind && state.dtype == known.dtype &&
           state.shape == known.shape;
  };
  return info.name == method.info.name && same_kinds(info.inputs, method.info.inputs) &&
         same_kinds(info.outputs, method.info.outputs) && user_outputs(graph.methods[0]) == method.user_outputs &&
         std::ranges::equal(graph.weights, method.weight_bytes, same_weight) &&
         std::ranges::equal(graph.states, method.states, same_state);
}

}  // namespace

MethodInfo method_info(const ir::Method& method) {
  MethodInfo info;
  info.name = method.name;
  info.in_spec = method.in_spec;
  info.out_spec = method.out_spec;
  info.inputs.resize(user_input_count(method));
  for (std::size_t i = 0; i < info.inputs.size(); ++i) {
    info.inputs[i].kind = Value::Kind::none;
    if (i < method.user_input_names.size()) info.inputs[i].name = method.user_input_names[i];
  }
  for (const ir::Input& input : method.inputs) {
    if (input.kind != ir::InputKind::user) continue;
    const std::string& given = info.inputs[input.index].name;
    info.inputs[input.index] =
        value_info(method.values[input.value], given.empty() ? method.values[input.value].name : given);
  }
  for (const ir::Output& output : method.outputs) {
    if (output.kind != ir::OutputKind::user) continue;
    if (info.outputs.size() <= output.index) info.outputs.resize(output.index + 1);
    ValueInfo& out = info.outputs[output.index];
    out.kind = Value::Kind::none;
    if (output.arg.is_value())
      out = value_info(method.values[output.arg.value()], method.values[output.arg.value()].name);
  }
  return info;
}

std::vector<std::uint32_t> user_outputs(const ir::Method& graph) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < graph.outputs.size(); ++i) {
    if (graph.outputs[i].kind != ir::OutputKind::user) continue;
    const std::uint32_t position = graph.outputs[i].index;
    if (out.size() <= position) out.resize(position + 1);
    out[position] = i;
  }
  return out;
}

template <typename T>
std::optional<double> uniform_value(const std::byte* bytes, std::int64_t count) {
  for (std::int64_t i = 1; i < count; ++i)
    if (std::memcmp(bytes, bytes + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T)) != 0) return std::nullopt;
  T value{};
  std::memcpy(&value, bytes, sizeof(T));
  const auto number = static_cast<double>(value);
  return std::abs(number) < 0x1p53 || std::is_floating_point_v<T> ? std::optional(number) : std::nullopt;
}

UniformWeight uniform_weights(const ir::Program& graph, const LoadedMethod& method) {
  return [&](std::uint32_t weight) -> std::optional<double> {
    const ir::Weight& info = graph.weights[weight];
    const std::int64_t count = info.shape.numel();
    if (info.storage != ir::Storage::plain || count == 0) return std::nullopt;
    if (info.byte_size != static_cast<std::uint64_t>(count) * byte_size(info.dtype)) return std::nullopt;
    const std::byte* bytes = method.weights[weight];
    if (info.dtype == DType::i64) return uniform_value<std::int64_t>(bytes, count);
    if (info.dtype == DType::i32) return uniform_value<std::int32_t>(bytes, count);
    if (info.dtype == DType::i8) return uniform_value<std::int8_t>(bytes, count);
    if (info.dtype == DType::f32) return uniform_value<float>(bytes, count);
    return std::nullopt;
  };
}

bool same_types(const MethodInfo& method, std::span<const InputDesc> inputs) {
  return std::ranges::equal(method.inputs, inputs, [](const ValueInfo& value, const InputDesc& given) {
    if (value.kind == Value::Kind::none) return true;  // nothing reads it
    if (given.is_tensor != (value.kind == Value::Kind::tensor)) return false;
    if (!given.is_tensor) return given.scalar.is_real() == (value.kind == Value::Kind::real);
    return given.desc.dtype == value.dtype && given.desc.rank() == static_cast<int>(value.dims.size());
  });
}

bool Program::Impl::has_recurrent_states() const {
  return std::ranges::any_of(states, [](const StateInfo& s) { return s.state.kind == ir::StateKind::recurrent; });
}

bool Program::Impl::has_kv_cache() const {
  return std::ranges::any_of(states, [](const StateInfo& s) { return s.state.kind != ir::StateKind::plain; });
}

std::uint32_t Program::Impl::find(std::string_view name) const {
  std::string known;
  for (std::uint32_t i = 0; i < public_methods; ++i) {
    if (methods[i].info.name == name) return i;
    known += (i ? ", '" : "'") + methods[i].info.name + "'";
  }
  throw NotFound(str("no method '", name, "' in ", source, "; it has ", known));
}

namespace {

// A device that has only some of a program's weights.
class PlacedOps final : public DeviceOps {
 public:
  PlacedOps(const ProgramImpl& program, const LoadedMethod& method)
      : program_(program), device_(*program.on_device), method_(method) {}
  bool supports(const Launch& launch) const override { return device_.supports(launch); }
  bool host_supports(const Launch& launch) const override { return device_.host_supports(launch); }
  bool holds(const Buffer& buffer) const override {
    if (buffer.memory == MemoryKind::state)
      return program_.placement.holds_state(program_.states[method_.states[buffer.index]].state.fqn);
    return buffer.memory != MemoryKind::weight ||
           !program_.placement.weights_on_host.contains(method_.weights[buffer.index]);
  }
  bool computes_angles() const override { return device_.computes_angles(); }
  bool multiplies_halves() const override { return device_.multiplies_halves(); }
  bool rounds_attention() const override { return device_.rounds_attention(); }
  std::int64_t alignment() const override { return device_.alignment(); }
  std::size_t streams() const override { return device_.streams(); }

 private:
  const ProgramImpl& program_;
  const ProgramDevice& device_;
  const LoadedMethod& method_;
};

}  // namespace

PlanCache::Result Program::Impl::plan(std::uint32_t index, std::span<const InputDesc> inputs,
                                      const std::vector<std::int64_t>& key, int threads, const KvOptions& kv,
                                      const KvExtent& extent, bool leaves_device) const {
  PlanCache::Result found = (leaves_device ? cpu_plans : plans)->get(index, threads, key, [&] {
    const Clock::time_point start = Clock::now();
    const std::shared_ptr<const ir::Program> program = graph(index);
    PlanOptions options;
    options.max_threads = threads;
    std::optional<PlacedOps> ops;
    if (on_device && !leaves_device) ops.emplace(*this, methods[index]);
    options.device = ops ? static_cast<const DeviceOps*>(&*ops) : plain.get();
    options.kv = kv;
    options.kv_extent = extent;
    options.stored = stored_plan(index, key, threads);
    options.limits = limits;
    options.matmul_precision = matmul_precision;
    Plan plan = make_plan(*program, program->methods[0], inputs, options);
    ++(plan.layout_was_stored ? plans_loaded : plans_made);
    if (options.stored && !plan.layout_was_stored) ++plans_stale;
    phases.add(kPlansPhase, ms_since(start), host_bytes(plan));
    return plan;
  });
  const std::lock_guard lock(own_plans_mutex);
  std::erase_if(own_plans, [](const auto& own) { return own.second.expired(); });
  if (std::ranges::none_of(own_plans, [&](const auto& own) { return own.second.lock() == found.plan; }))
    own_plans.emplace_back(index, found.plan);
  return found;
}

std::vector<std::pair<std::uint32_t, std::shared_ptr<const Plan>>> Program::Impl::list_own_plans() const {
  auto listed = plans->list();  // the most recently used first
  const std::lock_guard lock(own_plans_mutex);
  std::erase_if(listed, [&](const auto& entry) {
    return std::ranges::none_of(own_plans, [&](const auto& own) { return own.second.lock() == entry.second; });
  });
  // The cache may have dropped plans that sessions still run.
  for (const auto& [index, own] : own_plans)
    if (const auto plan = own.lock();
        plan && std::ranges::none_of(listed, [&](const auto& l) { return l.second == plan; }))
      listed.emplace_back(index, plan);
  return listed;
}

const StoredPlan* Program::Impl::stored_plan(std::uint32_t index, const std::vector<std::int64_t>& key,
                                             int threads) const {
  const std::span<const std::int64_t> sizes(key.data(), size_count(index, key));
  bool other_threads = false;
  for (const StoredPlan& plan : stored_plans) {
    if (plan.method != methods[index].info.name || !std::ranges::equal(plan.sizes, sizes)) continue;
    if (plan.threads == threads) return &plan;
    other_threads = true;
  }
  plans_stale += other_threads ? 1 : 0;
  return nullptr;
}

std::shared_ptr<const ir::Program> Program::Impl::graph(std::uint32_t index) const {
  const LoadedMethod& method = methods[index];
  const std::lock_guard lock(method.graph->mutex);
  if (method.graph->kept) return method.graph->kept;
  if (auto made = method.graph->made.lock()) return made;
  for (const auto& file : files) file->check_unchanged();
  ir::Program whole = read_method(method.source);
  ir::verify(whole, max_graph_calls);
  verify_weights(whole);
  GraphPasses whole_passes{whole, pass_options(), partition};
  run_graph_passes(PassStage::read, whole_passes);
  run_graph_passes(PassStage::cut, whole_passes);
  std::vector<Part>& parts = whole_passes.parts;
  GRAFT_CHECK(InvalidProgram, method.part < parts.size() && parts[method.part].steps.size() == method.steps.size(),
              "method '", method.info.name, "' of ", source, " changed since it was loaded");
  auto again = std::make_shared<ir::Program>(std::move(parts[method.part].graph));
  GRAFT_CHECK(InvalidProgram, again->methods.size() == 1 && fits(*again, method, states), "method '", method.info.name,
              "' of ", source, " changed since it was loaded");
  for (std::size_t i = 0; i < method.stored.size(); ++i) set_stored(again->weights[i], method.stored[i]);
  GraphPasses passes{*again, pass_options()};
  run_graph_passes(PassStage::stored, passes);
  for (std::size_t i = 0; i < method.panel_bytes.size(); ++i)
    if (method.panel_bytes[i] > 0) set_panels(again->weights[i], method.panel_bytes[i]);
  if (method.steps.empty()) {
    passes.uniform = uniform_weights(*again, method);
    passes.fold = [&] { return fold_again(*again, method); };
    run_graph_passes(PassStage::placed, passes);
    run_graph_passes(PassStage::fold, passes);
  }
  method.graph->made = again;
  ++graphs_read_again;
  return again;
}

void Program::Impl::check_inputs(std::uint32_t index, std::span<const InputDesc> inputs) const {
  graft::check_inputs(graph(index)->methods[0], inputs);
}

void Program::Impl::shrink() const {
  for (const LoadedMethod& method : methods) {
    std::shared_ptr<const ir::Program> dropped;  // freed after the lock, by the last thread that plans with it
    const std::lock_guard lock(method.graph->mutex);
    dropped.swap(method.graph->kept);
    if (!dropped) continue;
    graph_bytes_freed += ir::host_bytes(*dropped);
    method.graph->made = dropped;
  }
}

ProgramStats Program::Impl::stats() const {
  ProgramStats out = weight_stats;
  out.phases = phases.list();
  for (const LoadedMethod& method : methods) {
    const std::lock_guard lock(method.graph->mutex);
    const auto made = method.graph->made.lock();
    if (const auto& held = method.graph->kept ? method.graph->kept : made) out.graph_bytes += ir::host_bytes(*held);
  }
  out.graph_bytes_freed = graph_bytes_freed;
  out.graphs_read_again = graphs_read_again;
  out.plans_made = plans_made;
  out.plans_loaded = plans_loaded;
  out.plans_stale = plans_stale;
  return out;
}

Program::Impl::~Impl() {
  if (!model) return;
  model->remove_user(*this);
  // What was made of weights goes before the weights that the next program compares its own with.
  methods.clear();
  made_weights.clear();
  model->remove_sources(*this);
}

Program::Program(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Program::~Program() = default;

std::shared_ptr<const Program> Internal::program(std::unique_ptr<ProgramImpl> impl) {
  return std::shared_ptr<const Program>(new Program(std::move(impl)));
}

std::vector<std::string> Program::method_names() const try {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < impl_->public_methods; ++i) names.push_back(impl_->methods[i].info.name);
  return names;
} catch (...) {
  rethrow_typed();
}

const MethodInfo& Program::method(std::string_view name) const try {
  return impl_->methods[impl_->find(name)].info;
} catch (...) {
  rethrow_typed();
}

ProgramStats Program::stats() const try { return impl_->stats(); } catch (...) {
  rethrow_typed();
}
void Program::shrink() const try { impl_->shrink(); } catch (...) {
  rethrow_typed();
}

}  // namespace graft
