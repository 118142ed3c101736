#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/plant.h"
#include "graft/graft.h"
#include "kernel/simd/cpu_check.h"
#include "op/operator.h"
#include "package/package.h"
#include "run/device.h"
#include "run/fold.h"
#include "run/log.h"
#include "run/program_impl.h"

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

void check_operators(const ir::Program& program) {
  const ir::Method& method = program.methods[0];
  for (const ir::Node& node : method.nodes) {
    const Refusal reason = refuse(NodeView(program, method, node));
    GRAFT_CHECK(Unsupported, reason.empty(), "method '", method.name, "': node ", node.name, " (",
                program.op_of(node).target, ") cannot run: ", reason);
  }
}

// The address of a weight: in the file where its alignment allows, else in a copy made once for all methods.
std::byte* place_weight(Program::Impl& impl, const ir::Weight& weight, const Program::WeightLookup& lookup,
                        std::set<const std::byte*>& seen) {
  GRAFT_CHECK(Unsupported, weight.storage == ir::Storage::plain, "weight '", weight.key, "' (", weight.fqn,
              ") is stored in ", weight.block_type, " blocks; only plain tensors are supported");
  const std::span<const std::byte> data = lookup(weight.key);
  GRAFT_CHECK(InvalidProgram, data.size() == weight.byte_size || GRAFT_PLANT("weight-size-unchecked"), "weight '",
              weight.key, "' (", weight.fqn, ") must have ", weight.byte_size, " bytes, the data has ", data.size());
  const std::size_t element = byte_size(weight.dtype);
  if (seen.insert(data.data()).second) {
    ++impl.weight_stats.count;
    impl.weight_stats.mapped_bytes += data.size();
  }
  if (reinterpret_cast<std::uintptr_t>(data.data()) % element == 0)
    return const_cast<std::byte*>(data.data());  // never written: weights are inputs of launches only
  const auto [it, fresh] = impl.copied_weights.try_emplace(weight.key);
  if (fresh) {
    it->second = AlignedMemory(data.size());
    std::memcpy(it->second.data(), data.data(), data.size());
    impl.weight_stats.copied_bytes += data.size();
    log(LogLevel::info,
        str("weight '", weight.fqn, "' copied: its address in the file is not a multiple of ", element));
  }
  return it->second.data();
}

std::uint32_t place_state(Program::Impl& impl, const ir::State& state, const LoadedMethod& method) {
  const std::byte* initial = state.initial >= 0 ? method.weights[static_cast<std::size_t>(state.initial)] : nullptr;
  const TensorDesc desc(state.dtype, state.shape);
  for (std::uint32_t i = 0; i < impl.states.size(); ++i) {
    if (impl.states[i].fqn != state.fqn || GRAFT_PLANT("state-per-method")) continue;
    GRAFT_CHECK(InvalidProgram, impl.states[i].desc.dtype == desc.dtype && impl.states[i].desc.shape == desc.shape,
                "state '", state.fqn, "' is ", impl.states[i].desc.str(), " in one method and ", desc.str(),
                " in method '", method.info.name, "'");
    return i;
  }
  impl.states.push_back({state.fqn, desc, initial});
  return static_cast<std::uint32_t>(impl.states.size() - 1);
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

std::unique_ptr<Program::Impl> build_program(std::vector<ir::Program> sources, const Program::WeightLookup& weights,
                                             const LoadOptions& options, std::string source,
                                             std::shared_ptr<const void> keep_alive) {
  simd::check_cpu();
  check_ggml();
  install_ggml_log();
  auto impl = std::make_unique<Program::Impl>(options.max_plans);
  impl->source = std::move(source);
  impl->keep_alive = std::move(keep_alive);
  impl->device = resolve_device(options.device);
  if (ggml_backend_dev_t device = find_device(impl->device))
    impl->on_device = std::make_unique<ProgramDevice>(device, impl->device);
  std::set<const std::byte*> seen;
  for (ir::Program& from : sources) {
    LoadedMethod method;
    method.ir = std::move(from);
    method.info = method_info(method.graph());
    check_operators(method.ir);
    for (const ir::Weight& weight : method.ir.weights)
      method.weights.push_back(place_weight(*impl, weight, weights, seen));
    for (const ir::State& state : method.ir.states) method.states.push_back(place_state(*impl, state, method));
    const ir::Method& graph = method.graph();
    method.user_outputs.resize(method.info.outputs.size());
    for (std::uint32_t i = 0; i < graph.outputs.size(); ++i)
      if (graph.outputs[i].kind == ir::OutputKind::user) method.user_outputs[graph.outputs[i].index] = i;
    fold_constants(method);
    ir::verify(method.ir);  // each pass over the IR leaves it valid
    for (const FoldedConstant& constant : method.constants) impl->weight_stats.constant_bytes += constant.memory.size();
    impl->methods.push_back(std::move(method));
  }
  return impl;
}

std::uint32_t Program::Impl::find(std::string_view name) const {
  std::string known;
  for (std::uint32_t i = 0; i < methods.size(); ++i) {
    if (methods[i].info.name == name) return i;
    known += (i ? ", '" : "'") + methods[i].info.name + "'";
  }
  throw NotFound(str("no method '", name, "' in ", source, "; it has ", known));
}

PlanCache::Result Program::Impl::plan(std::uint32_t index, std::span<const InputDesc> inputs,
                                      const std::vector<std::int64_t>& key, int threads) const {
  const LoadedMethod& method = methods[index];
  return plans.get(index, threads, key, [&] {
    PlanOptions options;
    options.max_threads = threads;
    options.device = on_device.get();
    return make_plan(method.ir, method.graph(), inputs, options);
  });
}

Program::Program(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Program::~Program() = default;

std::shared_ptr<const Program> Program::from_impl(std::unique_ptr<Impl> impl) {
  return std::shared_ptr<const Program>(new Program(std::move(impl)));
}

std::shared_ptr<const Program> Program::from_ir(std::span<const std::byte> blob, const WeightLookup& weights,
                                                const LoadOptions& options) {
  ir::Program parsed = ir::parse(blob);
  ir::verify(parsed);
  std::vector<ir::Program> sources;
  for (const ir::Method& method : parsed.methods) {
    ir::Program one = parsed;
    one.methods = {method};
    sources.push_back(std::move(one));
  }
  return from_impl(build_program(std::move(sources), weights, options, "the IR", nullptr));
}

std::shared_ptr<const Program> Program::load(const std::string& path, const LoadOptions& options) {
  const std::shared_ptr<const Package> package = Package::open(path, options.data_files);
  if (options.verify_hashes) package->verify_hashes();
  std::vector<ir::Program> sources;
  for (const PackageMethod& method : package->methods()) {
    GRAFT_CHECK(Unsupported, method.fully_delegated, path, ": method '", method.name,
                "' needs ExecuTorch's runtime, graft alone cannot run it: ", method.why_not);
    sources.push_back(method.program);
  }
  const auto weights = [&](std::string_view key) { return package->data(key).bytes; };
  return from_impl(build_program(std::move(sources), weights, options, path, package));
}

std::vector<std::string> Program::method_names() const {
  std::vector<std::string> names;
  for (const LoadedMethod& method : impl_->methods) names.push_back(method.info.name);
  return names;
}

const MethodInfo& Program::method(std::string_view name) const { return impl_->methods[impl_->find(name)].info; }

}  // namespace graft
