#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "op/host.h"
#include "session/session_impl.h"

// Runs of cut methods (pass/graph/partition.h): one step after another, values in between by their ids.
namespace graft {
namespace {

std::size_t byte_count(const TensorView& tensor) { return TensorDesc(tensor.dtype, tensor.shape).byte_count(); }

// An argument of a step: a value of the method or a number written in the graph.
Value argument(const ir::Arg& arg, std::span<const Value> slots) {
  switch (arg.kind) {
    case ir::Arg::Kind::value:
      return slots[arg.value()];
    case ir::Arg::Kind::integer:
      return Value::of(arg.i);
    case ir::Arg::Kind::boolean:
      return Value::of(arg.i != 0);
    case ir::Arg::Kind::real:
      return Value::of(arg.f);
    case ir::Arg::Kind::string: {
      Value text;
      text.kind = Value::Kind::text;
      text.text = arg.s;
      return text;
    }
    default:
      return {};
  }
}

Scalar to_scalar(const Value& value) {
  switch (value.kind) {
    case Value::Kind::real:
      return Scalar::of(value.f);
    case Value::Kind::boolean:
      return Scalar::of(value.i != 0);
    default:
      return Scalar::of(value.i);
  }
}

// A bool of one element; the predicate (op/host.h) takes no others.
bool truth(const Value& value) {
  if (value.kind != Value::Kind::tensor) return value.i != 0;
  GRAFT_ASSERT(value.tensor.dtype == DType::b8 && value.tensor.shape.numel() == 1);
  return *static_cast<const std::uint8_t*>(value.tensor.data) != 0;
}

bool overlap(const TensorView& a, const TensorView& b) {
  if (!a.data || !b.data) return false;
  const auto *from = static_cast<const std::byte*>(a.data), *to = static_cast<const std::byte*>(b.data);
  return from < to + byte_count(b) && to < from + byte_count(a);
}

// Sets a flag for as long as it lives.
struct Flag {
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  bool& flag_;
};

}  // namespace

std::shared_ptr<void> BlockPool::take(std::size_t bytes) {
  AlignedMemory memory;
  {
    const std::lock_guard lock(mutex_);
    std::size_t best = free_.size();
    for (std::size_t i = 0; i < free_.size(); ++i)
      if (free_[i].size() >= bytes && (best == free_.size() || free_[i].size() < free_[best].size())) best = i;
    // A result may be kept for long: it must not hold a block far larger than itself.
    if (best < free_.size() && free_[best].size() <= 2 * bytes + 4096) {
      memory = std::move(free_[best]);
      free_[best] = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!memory.data()) {
    memory = AlignedMemory(bytes);
  }
  struct Block {
    std::shared_ptr<BlockPool> pool;
    AlignedMemory memory;
    Block(std::shared_ptr<BlockPool> from, AlignedMemory taken) : pool(std::move(from)), memory(std::move(taken)) {}
    ~Block() { pool->give(std::move(memory)); }
  };
  auto block = std::make_shared<Block>(shared_from_this(), std::move(memory));
  void* data = block->memory.data();
  return {std::move(block), data};
}

void BlockPool::give(AlignedMemory memory) noexcept {
  const std::lock_guard lock(mutex_);
  if (free_.capacity() == 0) free_.reserve(kMostFree);
  if (free_.size() < kMostFree) free_.push_back(std::move(memory));
}

void* Session::Impl::place(Value& output, DType dtype, const Shape& shape) {
  if (output.kind == Value::Kind::tensor && output.tensor.data) {
    GRAFT_CHECK(InvalidArgument, output.tensor.dtype == dtype && output.tensor.shape == shape,
                "the memory given for an output is ", TensorDesc(output.tensor.dtype, output.tensor.shape).str(),
                ", the run makes ", TensorDesc(dtype, shape).str());
    return output.tensor.data;
  }
  output = Value::of(TensorView{nullptr, dtype, shape});
  output.owner = blocks->take(byte_count(output.tensor));
  output.tensor.data = output.owner.get();
  return output.tensor.data;
}

// What is known of the outputs before a run: sizes that the program fixes or that an input has.
std::vector<Value> Session::Impl::values_before_run(const LoadedMethod& method, std::span<const Value> inputs) const {
  const auto size_of = [&](const DimInfo& dim) -> std::optional<std::int64_t> {
    if (dim.min == dim.max) return dim.min;
    if (dim.expr.empty()) return std::nullopt;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      for (std::size_t d = 0; d < method.info.inputs[i].dims.size(); ++d)
        if (inputs[i].kind == Value::Kind::tensor && method.info.inputs[i].dims[d].expr == dim.expr &&
            static_cast<int>(d) < inputs[i].tensor.shape.rank())
          return inputs[i].tensor.shape[static_cast<int>(d)];
    return std::nullopt;
  };
  std::vector<Value> out;
  for (std::size_t i = 0; i < method.info.outputs.size(); ++i) {
    const ValueInfo& info = method.info.outputs[i];
    Value& value = out.emplace_back();
    value.kind = info.kind;
    if (info.kind != Value::Kind::tensor) continue;
    Shape shape;
    for (std::size_t d = 0; d < info.dims.size(); ++d) {
      const std::optional<std::int64_t> size = size_of(info.dims[d]);
      GRAFT_CHECK(Unsupported, size, "output ", i, " of method '", method.info.name, "' has a size (dimension ", d,
                  ") that depends on data: it is known after a run alone");
      shape.push_back(*size);
    }
    value.tensor = {nullptr, info.dtype, shape};
  }
  return out;
}

void Session::Impl::run_segments(std::uint32_t index, std::span<const Value> inputs, std::span<Value> outputs,
                                 const RunOptions& run_options) {
  const LoadedMethod& method = loaded().methods[index];
  describe_inputs(method, inputs);
  loaded().check_inputs(index, input_descs);
  check_output_count(method, outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorView& out = outputs[i].tensor;
    if (outputs[i].kind != Value::Kind::tensor || !out.data) continue;
    check_output_alignment(method, i, out);
    // Pieces write outputs while later ones still read inputs.
    for (std::size_t k = 0; k < inputs.size(); ++k)
      GRAFT_CHECK(InvalidArgument, inputs[k].kind != Value::Kind::tensor || !overlap(out, inputs[k].tensor), "output ",
                  i, " of method '", method.info.name, "' must not share memory with input ", k,
                  ": it runs in segments");
  }
  const Flag flag(in_segments);
  ++counters.runs;
  if (run_options.profile) run_options.profile->clear();
  run_steps(method, inputs, outputs, run_options);
}

void Session::Impl::call(std::uint32_t index, std::span<const Value> inputs, std::span<Value> outputs,
                         const RunOptions& run_options) {
  const LoadedMethod& method = loaded().methods[index];
  if (!method.steps.empty()) return run_steps(method, inputs, outputs, run_options);
  describe_inputs(method, inputs);
  const Plan& plan = graph_for(index).executable->plan();
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (const PlanOutput& out = plan.outputs[method.user_outputs[i]]; out.is_tensor)
      place(outputs[i], out.desc.dtype, out.desc.shape);
  if (!run_options.profile) return run_plan(index, inputs, outputs, run_options);
  // The times of one segment begin where those before it ended.
  std::vector<NodeTiming> timings;
  RunOptions segment_options = run_options;
  segment_options.profile = &timings;
  run_plan(index, inputs, outputs, segment_options);
  const std::int64_t start = run_options.profile->empty() ? 0 : run_options.profile->back().end_ns;
  for (NodeTiming& timing : timings) {
    timing.start_ns += start;
    timing.end_ns += start;
    run_options.profile->push_back(std::move(timing));
  }
}

void Session::Impl::run_steps(const LoadedMethod& method, std::span<const Value> inputs, std::span<Value> outputs,
                              const RunOptions& run_options) {
  std::vector<Value> slots(method.signature.values);
  for (const ir::Input& input : method.signature.inputs) slots[input.value] = inputs[input.index];
  for (const Step& step : method.steps) {
    std::vector<Value> in;
    for (const ir::Arg& arg : step.inputs) in.push_back(argument(arg, slots));
    // A result with memory of the caller's is made there.
    std::vector<Value> made(step.outputs.size());
    for (std::size_t i = 0; i < made.size(); ++i)
      for (std::size_t o = 0; o < outputs.size(); ++o)
        if (const ir::Arg& arg = method.signature.outputs[o]; arg.is_value() && arg.value() == step.outputs[i] &&
                                                              outputs[o].kind == Value::Kind::tensor &&
                                                              outputs[o].tensor.data && !made[i].tensor.data)
          made[i] = Value::of(outputs[o].tensor);
    switch (step.kind) {
      case Step::Kind::plan:
        call(step.parts[0], in, made, run_options);
        break;
      case Step::Kind::cond:
        call(step.parts[truth(argument(step.predicate, slots)) ? 0 : 1], in, made, run_options);
        break;
      case Step::Kind::loop:
        run_loop(step, std::move(in), made, run_options);
        break;
      case Step::Kind::host:
        run_host(step, slots, made);
        break;
    }
    for (std::size_t i = 0; i < made.size(); ++i) slots[step.outputs[i]] = std::move(made[i]);
    for (const ir::ValueId id : step.finished) slots[id] = {};
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    Value result = argument(method.signature.outputs[o], slots);
    if (result.kind != Value::Kind::tensor) {
      outputs[o] = std::move(result);
      continue;
    }
    const bool given = outputs[o].kind == Value::Kind::tensor && outputs[o].tensor.data;
    if (given && outputs[o].tensor.data == result.tensor.data) continue;
    const auto shares = [&](const Value& other) {
      return other.kind == Value::Kind::tensor && other.tensor.data == result.tensor.data;
    };
    // Results are the caller's own: not an input, not another result.
    const bool own =
        result.owner && std::ranges::none_of(inputs, shares) && std::ranges::none_of(outputs.first(o), shares);
    if (!given && own) {
      outputs[o] = std::move(result);
      continue;
    }
    void* to = place(outputs[o], result.tensor.dtype, result.tensor.shape);
    if (const std::size_t bytes = byte_count(result.tensor); bytes > 0) std::memcpy(to, result.tensor.data, bytes);
  }
}

void Session::Impl::run_host(const Step& step, std::span<const Value> slots, std::span<Value> outputs) {
  const std::function<HostValue(ir::ValueId)> value = [&](ir::ValueId id) {
    const Value& slot = slots[id];
    return HostValue{slot.kind == Value::Kind::tensor, slot.tensor, to_scalar(slot)};
  };
  const std::function<void*(std::size_t, DType, const Shape&)> allocate =
      [&](std::size_t i, DType dtype, const Shape& shape) { return place(outputs[i], dtype, shape); };
  HostCall host(step.op, step.node, step.results, value, allocate);
  try {
    find_host_operator(step.op.target)->run(host);
  } catch (const InvalidArgument& e) {
    throw InvalidArgument(str("node ", step.node.name, " (", step.op.target, "): ", e.what()));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (const HostValue& made = host.outputs()[i]; !made.is_tensor) outputs[i] = from_scalar(made.scalar);
}

// Each round is a call of the condition and one of the body: when they keep their sizes, no plan is made after the
// first. A deadline or a cancel is met at the latest where a call begins.
void Session::Impl::run_loop(const Step& step, std::vector<Value> values, std::span<Value> outputs,
                             const RunOptions& run_options) {
  for (;;) {
    Value answer;
    call(step.parts[0], values, std::span(&answer, 1), run_options);
    if (!truth(answer)) break;
    std::vector<Value> next(outputs.size());
    call(step.parts[1], values, next, run_options);
    std::ranges::move(next, values.begin());
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool given = outputs[i].kind == Value::Kind::tensor && outputs[i].tensor.data;
    if (!given) {
      outputs[i] = std::move(values[i]);
      continue;
    }
    void* to = place(outputs[i], values[i].tensor.dtype, values[i].tensor.shape);
    std::memcpy(to, values[i].tensor.data, byte_count(values[i].tensor));
  }
}

}  // namespace graft
