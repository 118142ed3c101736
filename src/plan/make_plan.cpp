#include "plan/make_plan.h"

#include <algorithm>
#include <bit>
#include <map>

#include "base/check.h"
#include "kernel/index/index.h"
#include "lowering/kv_shape.h"
#include "lowering/lowering.h"
#include "lowering/tasks.h"
#include "op/operator.h"
#include "pass/launch/fuse.h"
#include "pass/launch/merge_products.h"
#include "pass/launch/order_for_stages.h"
#include "plan/arena.h"
#include "plan/arena_check.h"
#include "plan/stages.h"
#include "plan/state_updates.h"
#include "plan/stored_plan.h"

namespace graft {
namespace {

constexpr std::int64_t kArenaAlignment = 64;

std::string input_name(const ir::Method& method, std::uint32_t index) {
  const std::string label =
      index < method.user_input_names.size() ? " ('" + method.user_input_names[index] + "')" : std::string();
  return str("input ", index, label, " of method '", method.name, "'");
}

Shape shape_of(const ir::Value& value) {
  Shape shape;
  for (const ir::Dim& dim : value.dims) shape.push_back(dim.min);
  return shape;
}

class Planner {
 public:
  Planner(const ir::Program& program, const ir::Method& method, const PlanOptions& options)
      : program_(program),
        method_(method),
        lowering_(options.max_threads, options.device, options.kv, options.limits, options.matmul_precision),
        threads_(options.max_threads),
        device_(options.device && !options.device->is_cpu() ? options.device : nullptr),
        stored_(options.stored),
        limits_(options.limits),
        kv_(options.kv),
        bindings_(method.values.size()) {}

  Plan run(std::span<const InputDesc> inputs) {
    bind_inputs(inputs);
    std::vector<bool> updates_state = find_state_updates(program_, method_);
    // With a device, states are written at the end of the run alone, by the CPU: a run that fails on either side has
    // then changed none.
    if (device_) updates_state.assign(updates_state.size(), false);
    for (std::size_t i = 0; i < method_.nodes.size(); ++i) lower(method_.nodes[i], updates_state[i]);
    bind_outputs();
    plan_.buffers = std::move(lowering_.sequence().buffers);
    plan_.launches = std::move(lowering_.sequence().launches);
    plan_.undo = std::move(lowering_.sequence().undo);
    if (!lowering_.plain()) fuse_sums(plan_);
    drop_dead_launches();
    if (!lowering_.plain()) {
      fuse_separable(plan_, threads_);
      merge_products(plan_);
      fuse_chains(plan_);
      drop_dead_launches();
    }
    if (device_) order_for_stages(plan_);
    merge_inplace();
    lay_out_arena();
    GRAFT_CHECK(Unsupported, plan_.arena_bytes <= limits_.bytes, "method '", method_.name,
                "': its intermediate tensors take ", plan_.arena_bytes, " bytes together, at most ", limits_.bytes,
                " are allowed (max_plan_bytes)");
    list_allocations();
    list_aliases();
    if (device_) cut_stages(plan_, device_->alignment());
    plan_.key = plan_key(inputs);
    if (has_kv_cache(program_.states)) append_kv_key(kv_, plan_.key);
    return std::move(plan_);
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
          buffer.segment = Segment::input;
          desc = given.desc;
          break;
        }
        case ir::InputKind::weight:
        case ir::InputKind::constant:
          buffer.segment = input.kind == ir::InputKind::weight ? Segment::weight : Segment::constant;
          desc = TensorDesc(value.dtype, shape_of(value));
          break;
        case ir::InputKind::state:
          buffer.segment = Segment::state;
          desc = state_desc(program_.states[input.index], kv_);
          break;
      }
      buffer.bytes = static_cast<std::int64_t>(desc.byte_count());
      std::optional<Stored> stored;
      if (input.kind == ir::InputKind::weight) {
        const ir::Weight& weight = program_.weights[input.index];
        stored = ir::stored_of(weight);
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
    }
  }

  // The program says what shapes it expects; a rule of ours that disagrees must not go on silently.
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
    // A value read from a state or input that another late write changes must be saved before the first write.
    for (auto& [from, to] : late_writes) {
      const Segment segment = lowering_.sequence().buffers[from.buffer].segment;
      if (late_writes.size() > 1 && (segment == Segment::state || segment == Segment::input) &&
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
    if (buffer.segment == Segment::arena && value.offset == 0 && value.desc.contiguous() && buffer.bytes == bytes &&
        !is_output[value.buffer]) {
      buffer.segment = Segment::output;
      buffer.index = position;
      is_output[value.buffer] = true;
      out.buffer = value.buffer;
      return;
    }
    Buffer fresh;
    fresh.segment = Segment::output;
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

  template <typename Visit>
  static void for_each_buffer(Launch& launch, Visit&& visit) {
    for (Tensor& t : launch.inputs) visit(t.buffer);
    for (Tensor& t : launch.outputs) visit(t.buffer);
    if (launch.scratch_bytes > 0) visit(launch.scratch);
  }

  void drop_dead_launches() {
    std::vector<bool> needed(plan_.buffers.size(), false);
    std::vector<bool> live(plan_.launches.size(), false);
    for (const UndoLaunch& undo : plan_.undo)
      for (const Tensor& t : undo.launch.inputs) needed[t.buffer] = true;
    for (std::size_t i = plan_.launches.size(); i-- > 0;) {
      const Launch& launch = plan_.launches[i];
      for (const Tensor& t : launch.outputs)
        live[i] = live[i] || needed[t.buffer] || plan_.buffers[t.buffer].segment != Segment::arena;
      if (!live[i]) continue;
      for (const Tensor& t : launch.inputs) needed[t.buffer] = true;
    }
    std::vector<std::uint32_t> position(plan_.launches.size() + 1);  // by old index: how many launches stay before it
    std::uint32_t kept = 0;
    for (std::size_t i = 0; i < plan_.launches.size(); ++i) {
      position[i] = kept;
      if (!live[i]) continue;
      if (kept != i) plan_.launches[kept] = std::move(plan_.launches[i]);
      ++kept;
    }
    position.back() = kept;
    plan_.launches.resize(kept);
    plan_.commit_begin = position[plan_.commit_begin];
    for (UndoLaunch& undo : plan_.undo) undo.after = position[undo.after];
  }

  void find_lifetimes() {
    for (Buffer& b : plan_.buffers) b.first_use = b.last_use = -1;
    for (std::size_t i = 0; i < plan_.launches.size(); ++i) {
      for_each_buffer(plan_.launches[i], [&](BufferId id) {
        Buffer& b = plan_.buffers[id];
        if (b.first_use < 0) b.first_use = static_cast<std::int32_t>(i);
        b.last_use = static_cast<std::int32_t>(i);
      });
    }
    // What an undo reads is kept to the end of the run, and beyond it.
    for (UndoLaunch& undo : plan_.undo)
      for_each_buffer(undo.launch, [&](BufferId id) {
        plan_.buffers[id].last_use = static_cast<std::int32_t>(plan_.launches.size());
      });
  }

  // A scatter's output is a window whose elements share places; it writes one element per value.
  static std::int64_t written_bytes(const Launch& launch, const Tensor& out) {
    const std::int64_t elements = launch.kernel == &kScatter ? launch.inputs[0].numel() : out.numel();
    return elements * static_cast<std::int64_t>(byte_size(out.dtype()));
  }

  // Lets an output take over the memory of an input that dies at the same launch.
  void merge_inplace() {
    find_lifetimes();
    std::vector<BufferId> merged(plan_.buffers.size());
    for (BufferId id = 0; id < merged.size(); ++id) merged[id] = id;
    for (std::size_t i = 0; i < plan_.launches.size(); ++i) {
      Launch& launch = plan_.launches[i];
      // A buffer that was merged into an earlier one is found under that one from here on: chains stay one step deep,
      // because launches are visited in order.
      for_each_buffer(launch, [&](BufferId& id) { id = merged[id]; });
      if (launch.inplace == 0) continue;
      const Tensor out = launch.outputs[0];
      Buffer& out_buffer = plan_.buffers[out.buffer];
      if (out_buffer.segment != Segment::arena || out_buffer.first_use != static_cast<std::int32_t>(i)) continue;
      for (std::size_t k = 0; k < launch.inputs.size(); ++k) {
        if (!((launch.inplace >> k) & 1u)) continue;
        const Tensor& in = launch.inputs[k];
        Buffer& in_buffer = plan_.buffers[in.buffer];
        const bool same_place = in_buffer.segment == Segment::arena && in_buffer.bytes == out_buffer.bytes &&
                                in.offset == out.offset && in.shape() == out.shape() &&
                                byte_size(in.dtype()) == byte_size(out.dtype()) && is_dense(out.desc) &&
                                in.desc.strides == out.desc.strides;
        // Another operand that reads the same buffer at other places would see half-written data.
        const auto uses = std::count_if(launch.inputs.begin(), launch.inputs.end(),
                                        [&](const Tensor& t) { return t.buffer == in.buffer; });
        if (!same_place || uses != 1 || in_buffer.last_use != static_cast<std::int32_t>(i)) continue;
        in_buffer.last_use = out_buffer.last_use;
        merged[out.buffer] = in.buffer;
        out_buffer.first_use = out_buffer.last_use = -1;
        launch.outputs[0].buffer = in.buffer;
        break;
      }
    }
    for (UndoLaunch& undo : plan_.undo) for_each_buffer(undo.launch, [&](BufferId& id) { id = merged[id]; });
  }

  void lay_out_arena() {
    std::vector<BufferId> ids;
    std::vector<Lifetime> lifetimes;
    for (BufferId id = 0; id < plan_.buffers.size(); ++id) {
      const Buffer& b = plan_.buffers[id];
      if (b.segment != Segment::arena || b.first_use < 0) continue;
      ids.push_back(id);
      lifetimes.push_back({b.bytes, b.first_use, b.last_use});
    }
    const std::int64_t alignment = device_ ? std::max(kArenaAlignment, device_->alignment()) : kArenaAlignment;
    if (stored_ && fits(*stored_, lifetimes)) {
      check_layout(*stored_, alignment);
      for (std::size_t i = 0; i < ids.size(); ++i) plan_.buffers[ids[i]].offset = stored_->offsets[i];
      plan_.arena_bytes = stored_->arena_bytes;
      plan_.layout_was_stored = true;
      return;
    }
    const ArenaLayout layout = plan_arena(lifetimes, alignment);
    for (std::size_t i = 0; i < ids.size(); ++i) plan_.buffers[ids[i]].offset = layout.offsets[i];
    plan_.arena_bytes = layout.bytes;
#ifndef NDEBUG
    const std::optional<std::string> overlap = find_overlap(lifetimes, layout.offsets, alignment);
    GRAFT_ASSERT(!overlap.has_value());
#endif
  }

  void list_allocations() {
    std::map<std::pair<Segment, std::uint32_t>, std::uint32_t> ids;
    for (Buffer& b : plan_.buffers) {
      const std::uint32_t index = b.segment == Segment::arena ? 0 : b.index;
      const auto [it, fresh] =
          ids.try_emplace({b.segment, index}, static_cast<std::uint32_t>(plan_.allocations.size()));
      if (fresh)
        plan_.allocations.push_back({b.segment, index, b.segment == Segment::arena ? plan_.arena_bytes : b.bytes});
      b.allocation = it->second;
    }
    for (Launch& launch : plan_.launches)
      for_each_buffer(launch, [&](BufferId id) { ++plan_.allocations[plan_.buffers[id].allocation].hits; });
    for (UndoLaunch& undo : plan_.undo)
      for_each_buffer(undo.launch, [&](BufferId id) { ++plan_.allocations[plan_.buffers[id].allocation].hits; });
    for (const Launch& launch : plan_.launches)
      for (const Tensor& t : launch.outputs)
        if (plan_.buffers[t.buffer].segment == Segment::state) plan_.state_bytes_written += written_bytes(launch, t);
  }

  void list_aliases() {
    for (const PlanOutput& out : plan_.outputs)
      if (out.kind == ir::OutputKind::input_mutation && out.is_tensor)
        plan_.allocations[plan_.buffers[out.buffer].allocation].mutated = true;
    find_lifetimes();
    for (const Buffer& out : plan_.buffers) {
      if (out.segment != Segment::output || out.first_use < 0) continue;
      for (const Buffer& in : plan_.buffers) {
        if (in.segment != Segment::input || plan_.allocations[in.allocation].mutated) continue;
        const bool exact = in.last_use == out.first_use;
        if (in.last_use < out.first_use ||
            (exact && writes_in_place(plan_.launches[at(exact ? in.last_use : 0)], out, in)))
          plan_.aliases.push_back({out.allocation, in.allocation, exact});
      }
    }
  }

  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

  // The launch reads element by element what it writes at the same place.
  bool writes_in_place(const Launch& launch, const Buffer& out, const Buffer& in) const {
    const Tensor& to = launch.outputs[0];
    if (&plan_.buffers[to.buffer] != &out || !to.desc.contiguous() || to.offset != 0) return false;
    int uses = 0;
    bool same = false;
    for (std::size_t k = 0; k < launch.inputs.size(); ++k) {
      const Tensor& from = launch.inputs[k];
      if (&plan_.buffers[from.buffer] != &in) continue;
      ++uses;
      same = ((launch.inplace >> k) & 1u) && from.shape() == to.shape() && from.offset == 0 && from.desc.contiguous() &&
             byte_size(from.dtype()) == byte_size(to.dtype()) && in.bytes == out.bytes;
    }
    return uses == 1 && same;
  }

  const ir::Program& program_;
  const ir::Method& method_;
  Lowering lowering_;
  int threads_;
  const DeviceOps* device_;
  const StoredPlan* stored_;
  PlanLimits limits_;
  KvOptions kv_;
  std::vector<Binding> bindings_;
  Plan plan_;
};

}  // namespace

std::size_t user_input_count(const ir::Method& method) {
  std::size_t count = method.user_input_names.size();
  for (const ir::Input& input : method.inputs)
    if (input.kind == ir::InputKind::user) count = std::max<std::size_t>(count, input.index + 1);
  return count;
}

void check_inputs(const ir::Method& method, std::span<const InputDesc> inputs) {
  const std::size_t count = user_input_count(method);
  GRAFT_CHECK(InvalidArgument, inputs.size() == count, "method '", method.name, "' takes ", count, " inputs, got ",
              inputs.size());
  // Dimensions with the same symbolic expression must have the same size.
  std::map<std::string_view, std::pair<std::int64_t, std::string>> sizes;
  for (const ir::Input& input : method.inputs) {
    if (input.kind != ir::InputKind::user) continue;
    const ir::Value& value = method.values[input.value];
    const InputDesc& given = inputs[input.index];
    if (value.kind != ir::ValueKind::tensor) {
      GRAFT_CHECK(InvalidArgument, !given.is_tensor, input_name(method, input.index), " must be a number, got ",
                  given.desc.str());
      GRAFT_CHECK(InvalidArgument, !given.scalar.is_real() || value.kind == ir::ValueKind::real,
                  input_name(method, input.index), " must be ", value.str(), ", got ", given.scalar.f);
      if (value.dims.size() == 1 && !given.scalar.is_real())
        GRAFT_CHECK(InvalidArgument, given.scalar.i >= value.dims[0].min && given.scalar.i <= value.dims[0].max,
                    input_name(method, input.index), " must be in ", value.dims[0].min, "..", value.dims[0].max,
                    ", got ", given.scalar.i);
      continue;
    }
    GRAFT_CHECK(InvalidArgument, given.is_tensor, input_name(method, input.index), " must be a tensor ", value.str(),
                ", got a number");
    GRAFT_CHECK(InvalidArgument, given.desc.dtype == value.dtype, input_name(method, input.index), " must have dtype ",
                name(value.dtype), ", got ", name(given.desc.dtype));
    GRAFT_CHECK(InvalidArgument, given.desc.rank() == value.rank(), input_name(method, input.index), " must be ",
                value.str(), " (rank ", value.rank(), "), got ", given.desc.str(), " (rank ", given.desc.rank(), ")");
    for (int d = 0; d < value.rank(); ++d) {
      const ir::Dim& dim = value.dims[static_cast<std::size_t>(d)];
      const std::int64_t size = given.desc.shape[d];
      GRAFT_CHECK(InvalidArgument, size >= dim.min && size <= dim.max, input_name(method, input.index),
                  ": size of dimension ", d, " must be ",
                  dim.is_static()             ? str(dim.min)
                  : dim.max == ir::kUnbounded ? str("at least ", dim.min)
                                              : str("in ", dim.min, "..", dim.max),
                  ", got ", size);
      if (dim.is_static() || dim.expr.empty()) continue;
      const auto [it, fresh] =
          sizes.try_emplace(dim.expr, size, str("dimension ", d, " of ", input_name(method, input.index)));
      GRAFT_CHECK(InvalidArgument, it->second.first == size, input_name(method, input.index), ": size of dimension ", d,
                  " must be ", it->second.first, " as that of ", it->second.second, ", got ", size);
    }
  }
}

std::vector<std::int64_t> plan_key(std::span<const InputDesc> inputs) {
  std::vector<std::int64_t> key;
  for (const InputDesc& input : inputs) {
    if (input.is_tensor) {
      for (std::int64_t size : input.desc.shape.sizes()) key.push_back(size);
    } else {
      key.push_back(input.scalar.is_real() ? std::bit_cast<std::int64_t>(input.scalar.f) : input.scalar.i);
    }
  }
  return key;
}

void append_kv_key(const KvOptions& kv, std::vector<std::int64_t>& key) {
  key.insert(key.end(), {kv.rows, kv.length, static_cast<std::int64_t>(kv.type), kv.room, kv.source_length});
}

bool has_kv_cache(std::span<const ir::State> states) {
  return std::ranges::any_of(states, [](const ir::State& s) { return s.kind != ir::StateKind::plain; });
}

Plan make_plan(const ir::Program& program, const ir::Method& method, std::span<const InputDesc> inputs,
               const PlanOptions& options) {
  check_inputs(method, inputs);
  return Planner(program, method, options).run(inputs);
}

}  // namespace graft
