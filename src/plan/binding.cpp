#include "plan/binding.h"

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lowering/kv_shape.h"
#include "lowering/lowering.h"
#include "op/operator.h"
#include "plan/state_updates.h"
#include "weight/stored_weight.h"

namespace graft {
namespace {

Shape shape_of(const ir::Value& value) {
  Shape shape;
  for (const ir::Dim& dim : value.dims) shape.push_back(dim.min);
  return shape;
}

class Binder {
 public:
  Binder(const ir::Program& program, const ir::Method& method, const PlanOptions& options, Plan& plan)
      : program_(program),
        method_(method),
        lowering_(options.max_threads, options.device, options.kv, options.limits, options.matmul_precision,
                  options.kv_extent),
        on_device_(options.device && !options.device->is_cpu()),
        kv_(options.kv),
        bindings_(method.values.size()),
        plan_(plan) {}

  void run(std::span<const InputDesc> inputs) {
    bind_inputs(inputs);
    std::vector<bool> updates_state = find_state_updates(program_, method_);
    // With a device, the CPU writes states at the end of the run only: a run that fails on either side leaves all of
    // them unchanged.
    if (on_device_) updates_state.assign(updates_state.size(), false);
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) lower(method_.nodes[i], updates_state[i]);
    bind_outputs();
    LaunchSequence& lowered = lowering_.sequence();
    plan_.buffers = std::move(lowered.buffers);
    plan_.launches = std::move(lowered.launches);
    plan_.undo = std::move(lowered.undo);
  }

 private:
  void bind_inputs(std::span<const InputDesc> inputs) {
    for (const ir::Input& input : method_.inputs) {
      Binding& binding = bindings_[input.value];
      const ir::Value& value = method_.values[input.value];
      Buffer buffer;
      buffer.index = input.index;
      TensorDesc desc;
      switch (input.kind) {
        case ir::InputKind::user: {
          const InputDesc& given = inputs[input.index];
          if (!given.is_tensor) {
            binding.scalar = given.scalar;
            continue;
          }
          buffer.memory = MemoryKind::input;
          desc = given.desc;
          break;
        }
        case ir::InputKind::weight:
        case ir::InputKind::constant:
          buffer.memory = input.kind == ir::InputKind::weight ? MemoryKind::weight : MemoryKind::constant;
          desc = TensorDesc(value.dtype, shape_of(value));
          break;
        case ir::InputKind::state:
          buffer.memory = MemoryKind::state;
          desc = state_desc(program_.states[input.index], kv_);
          break;
      }
      buffer.bytes = static_cast<std::int64_t>(desc.byte_count());
      std::optional<Stored> stored;
      if (input.kind == ir::InputKind::weight) {
        const ir::Weight& weight = program_.weights[input.index];
        stored = stored_of(weight);
        if (*stored == Stored::as(value.dtype)) stored.reset();
        buffer.bytes = static_cast<std::int64_t>(weight.byte_size);
      }
      binding.tensor = Tensor{lowering_.add_buffer(buffer), 0, desc, stored};
    }
  }

  void lower(const ir::Node& node, bool updates_state) {
    const std::string& target = program_.op_of(node).target;
    const Call call(program_, method_, node, bindings_);
    const auto check_outputs = [&](std::size_t count, bool tensors) {
      GRAFT_CHECK(InvalidProgram, node.outputs.size() == count, "node ", node.name, " (", target, ") has ", count,
                  " outputs, but the program declares ", node.outputs.size());
      for (const ir::ValueId id : node.outputs)
        GRAFT_CHECK(InvalidProgram, (method_.values[id].kind == ir::ValueKind::tensor) == tensors, "node ", node.name,
                    " (", target, ") gives ", tensors ? "tensors" : "a number", ", but the program declares ",
                    method_.values[id].str());
    };
    if (const ScalarOperator* op = find_scalar_operator(target)) {
      check_outputs(1, false);
      bindings_[node.outputs[0]].scalar = op->evaluate(call);
      return;
    }
    const Operator* op = find_operator(target);
    GRAFT_CHECK(Unsupported, op, "node ", node.name, ": no operator '", target, "'");
    lowering_.begin_node(static_cast<std::uint32_t>(plan_.node_names.size()), updates_state);
    const auto node_index = static_cast<std::uint32_t>(plan_.node_names.size());
    plan_.node_names.push_back(node.name);

    std::vector<Shape> shapes;
    try {
      shapes = op->shape(call);
    } catch (const InvalidArgument& e) {
      throw InvalidArgument(str("node ", node.name, " (", target, "): ", e.what()));
    }
    check_outputs(shapes.size(), true);
    for (std::size_t i = 0; i < shapes.size(); ++i) check_shape(node, target, i, shapes[i]);
    std::vector<Tensor> results;
    try {
      results = op->lower(call, shapes, lowering_);
    } catch (const Unsupported& e) {
      throw Unsupported(str("method '", method_.name, "': node ", node.name, " (", target, "): ", e.what()));
    }
    GRAFT_ASSERT(results.size() == shapes.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      GRAFT_ASSERT(results[i].shape() == shapes[i]);
      GRAFT_CHECK(InvalidProgram, results[i].dtype() == call.output_dtype(i), "node ", node.name, " (", target,
                  "): output ", i, " is ", name(results[i].dtype()), ", but the program declares ",
                  name(call.output_dtype(i)));
      bindings_[node.outputs[i]].tensor = results[i];
      plan_.results.push_back({node_index, static_cast<std::uint32_t>(i), results[i]});
    }
  }

  // The program declares the shapes: a shape rule that disagrees is an error.
  void check_shape(const ir::Node& node, const std::string& target, std::size_t i, const Shape& shape) const {
    const ir::Value& value = method_.values[node.outputs[i]];
    bool fits = shape.rank() == value.rank();
    for (int d = 0; fits && d < shape.rank(); ++d) {
      const ir::Dim& dim = value.dims[static_cast<std::size_t>(d)];
      fits = shape[d] >= dim.min && shape[d] <= dim.max;
    }
    GRAFT_CHECK(InvalidProgram, fits, "node ", node.name, " (", target, "): output ", i, " has shape ", shape.str(),
                ", but the program declares ", value.str());
  }

  void bind_outputs() {
    lowering_.begin_node(static_cast<std::uint32_t>(plan_.node_names.size()));
    plan_.node_names.push_back("output");
    std::vector<bool> is_output(lowering_.sequence().buffers.size(), false);
    std::vector<std::pair<Tensor, Tensor>> late_writes;  // into states and inputs, after everything else was read
    for (std::size_t i = 0; i < method_.outputs.size(); ++i) {
      const ir::Output& output = method_.outputs[i];
      PlanOutput out;
      out.kind = output.kind;
      out.index = output.index;
      bind_output(output, static_cast<std::uint32_t>(plan_.outputs.size()), out, is_output, late_writes);
      plan_.outputs.push_back(std::move(out));
    }
    // A late write may overwrite a state or input that another one reads: save such values before the first write.
    for (auto& [from, to] : late_writes) {
      const MemoryKind kind = lowering_.sequence().buffers[from.buffer].memory;
      if (late_writes.size() > 1 && (kind == MemoryKind::state || kind == MemoryKind::input) &&
          from.buffer != to.buffer) {
        const Tensor saved = lowering_.allocate(from.dtype(), from.shape());
        lowering_.copy(from, saved);
        from = saved;
      }
    }
    plan_.commit_begin = static_cast<std::uint32_t>(lowering_.sequence().launches.size());
    for (const auto& [from, to] : late_writes) lowering_.copy(from, to);
    lowering_.launch_held_back();
  }

  void bind_output(const ir::Output& output, std::uint32_t position, PlanOutput& out, std::vector<bool>& is_output,
                   std::vector<std::pair<Tensor, Tensor>>& late_writes) {
    const ir::Arg& arg = output.arg;
    if (!arg.is_value()) {
      switch (arg.kind) {
        case ir::Arg::Kind::none:
          out.is_none = true;
          break;
        case ir::Arg::Kind::string:
          out.is_text = true;
          out.text = arg.s;
          break;
        case ir::Arg::Kind::integer:
          out.scalar = Scalar::of(arg.i);
          break;
        case ir::Arg::Kind::boolean:
          out.scalar = Scalar::of(arg.i != 0);
          break;
        case ir::Arg::Kind::real:
          out.scalar = Scalar::of(arg.f);
          break;
        default:
          throw InvalidProgram(str("output ", position, " of method '", method_.name, "' has no value"));
      }
      return;
    }
    const Binding& binding = bindings_[arg.value()];
    if (!binding.tensor) {
      out.scalar = binding.scalar;
      return;
    }
    const Tensor value = *binding.tensor;
    out.is_tensor = true;
    out.desc = TensorDesc(value.dtype(), value.shape());
    if (output.kind != ir::OutputKind::user) {
      const Tensor& mutated = mutated_tensor(output);
      const bool cache = output.kind == ir::OutputKind::state_mutation &&
                         program_.states[output.index].kind != ir::StateKind::plain;  // written by its own kernels
      GRAFT_CHECK(InvalidProgram, cache || (value.shape() == mutated.shape() && value.dtype() == mutated.dtype()),
                  "method '", method_.name, "' writes ", out.desc.str(), " to ", what_is_mutated(output), ", which is ",
                  mutated.desc.str());
      const BufferId target = mutated.buffer;
      out.buffer = target;
      if (value.buffer != target || value.offset != 0 || !value.desc.contiguous())
        late_writes.emplace_back(value, Tensor{target, 0, out.desc});
      return;
    }
    const auto bytes = static_cast<std::int64_t>(out.desc.byte_count());
    Buffer& buffer = lowering_.sequence().buffers[value.buffer];
    is_output.resize(lowering_.sequence().buffers.size(), false);
    if (buffer.memory == MemoryKind::arena && value.offset == 0 && value.desc.contiguous() && buffer.bytes == bytes &&
        !is_output[value.buffer]) {
      buffer.memory = MemoryKind::output;
      buffer.index = position;
      is_output[value.buffer] = true;
      out.buffer = value.buffer;
      return;
    }
    Buffer fresh;
    fresh.memory = MemoryKind::output;
    fresh.index = position;
    fresh.bytes = bytes;
    out.buffer = lowering_.add_buffer(fresh);
    lowering_.copy(value, Tensor{out.buffer, 0, out.desc});
  }

  const Tensor& mutated_tensor(const ir::Output& output) const {
    const ir::InputKind kind =
        output.kind == ir::OutputKind::state_mutation ? ir::InputKind::state : ir::InputKind::user;
    for (const ir::Input& input : method_.inputs)
      if (input.kind == kind && input.index == output.index) return *bindings_[input.value].tensor;
    throw InvalidProgram(str("method '", method_.name, "' writes ", what_is_mutated(output), " without reading it"));
  }

  static std::string what_is_mutated(const ir::Output& output) {
    return str(output.kind == ir::OutputKind::state_mutation ? "state " : "input ", output.index);
  }

  const ir::Program& program_;
  const ir::Method& method_;
  Lowering lowering_;
  const bool on_device_;
  const KvOptions& kv_;
  std::vector<Binding> bindings_;
  Plan& plan_;
};

}  // namespace

void lower_method(const ir::Program& program, const ir::Method& method, std::span<const InputDesc> inputs,
                  const PlanOptions& options, Plan& plan) {
  Binder(program, method, options, plan).run(inputs);
}

}  // namespace graft
