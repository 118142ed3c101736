#include "session/segment_runner.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "op/host.h"
#include "session/call_values.h"

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

// A bool of one element; the predicate (op/host.h) accepts no others.
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

bool same_data(const Value& a, const Value& b) {
  return a.kind == Value::Kind::tensor && b.kind == Value::Kind::tensor && a.tensor.data == b.tensor.data;
}

// Outputs of a step that the caller has memory for are written there directly.
std::vector<Value> placed_by_caller(const LoadedMethod& method, const Step& step, std::span<const Value> outputs) {
  std::vector<Value> made(step.outputs.size());
  for (std::size_t i = 0; i < made.size(); ++i)
    for (std::size_t o = 0; o < outputs.size() && !made[i].tensor.data; ++o) {
      const ir::Arg& arg = method.signature.outputs[o];
      if (arg.is_value() && arg.value() == step.outputs[i] && has_memory(outputs[o]))
        made[i] = Value::of(outputs[o].tensor);
    }
  return made;
}

}  // namespace

SegmentRunner::SegmentRunner(const ProgramImpl& program, PlanRunner& plans, StateStore& states,
                             std::shared_ptr<BlockPool> blocks, Counters& counters)
    : program_(program), plans_(plans), blocks_(std::move(blocks)), counters_(counters), undo_(states) {}

void* SegmentRunner::place(Value& output, DType dtype, const Shape& shape) {
  if (!has_memory(output)) {
    output = blocks_->tensor(dtype, shape);
  } else {
    GRAFT_CHECK(InvalidArgument, output.tensor.dtype == dtype && output.tensor.shape == shape,
                "the memory given for an output is ", TensorDesc(output.tensor.dtype, output.tensor.shape).str(),
                ", the run makes ", TensorDesc(dtype, shape).str());
  }
  return output.tensor.data;
}

std::vector<Value> SegmentRunner::outputs(const PreparedCall& call) {
  const LoadedMethod& method = *call.method;
  const auto size_of = [&](const DimInfo& dim) -> std::optional<std::int64_t> {
    if (dim.min == dim.max) return dim.min;
    if (dim.expr.empty()) return std::nullopt;
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      for (std::size_t d = 0; d < method.info.inputs[i].dims.size(); ++d)
        if (call.inputs[i].is_tensor && method.info.inputs[i].dims[d].expr == dim.expr &&
            static_cast<int>(d) < call.inputs[i].desc.rank())
          return call.given[i].tensor.shape[static_cast<int>(d)];  // not the padded size
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

void SegmentRunner::run(const PreparedCall& call, std::span<Value> outputs, const RunOptions& options,
                        const Planned& planned) {
  const LoadedMethod& method = *call.method;
  const std::span<const Value> inputs = call.given;
  check_output_count(method, outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorView& out = outputs[i].tensor;
    if (!has_memory(outputs[i])) continue;
    check_output_alignment(method, i, out);
    // A segment writes outputs while later ones still read inputs.
    for (std::size_t k = 0; k < inputs.size(); ++k)
      GRAFT_CHECK(InvalidArgument, inputs[k].kind != Value::Kind::tensor || !overlap(out, inputs[k].tensor), "output ",
                  i, " of method '", method.info.name, "' must not share memory with input ", k,
                  ": it runs in segments");
  }
  ++counters_.runs;
  if (options.profile) options.profile->clear();
  Values in(0), out(0);
  in.cut.assign(inputs.begin(), inputs.end());
  in.padded = call.padded() ? plans_.pad(call) : std::vector<Value>(inputs.size());
  out.cut.assign(outputs.begin(), outputs.end());
  out.padded.resize(outputs.size());
  planned_ = planned ? &planned : nullptr;
  const Step& end = method.steps.back();
  sizes_ = plans_.run_sizes(call);
  last_.reset();
  if (end.kind == Step::Kind::plan) last_ = end.parts[0];
  undo_.clear();
  try {
    run_steps(method, in, out, options);
  } catch (...) {
    undo_.restore();
    throw;
  }
  std::ranges::move(out.cut, outputs.begin());
}

void SegmentRunner::run_method(std::uint32_t index, const Values& inputs, Values& outputs, const RunOptions& options) {
  const LoadedMethod& method = program_.methods[index];
  if (!method.steps.empty()) return run_steps(method, inputs, outputs, options);
  PreparedCall& call = plans_.prepare(index, inputs.cut, options, &sizes_);
  if (planned_) (*planned_)(call);
  if (index != last_) undo_.keep(method, call.plan(), options.kv_rows);
  for (std::size_t i = 0; i < outputs.cut.size(); ++i) {
    if (!call.output(i).is_tensor) continue;
    const TensorDesc desc = plans_.output_desc(call, i);
    place(outputs.cut[i], desc.dtype, desc.shape);
  }
  PlanRunner::Padded padded{inputs.padded, {}};
  // The times of one segment begin where those before it ended.
  std::vector<NodeTiming> timings;
  RunOptions segment_options = options;
  if (options.profile) segment_options.profile = &timings;
  plans_.run(call, outputs.cut, segment_options, PlanRunner::Part::segment, &padded);
  if (!padded.outputs.empty()) outputs.padded = std::move(padded.outputs);
  if (!options.profile) return;
  const std::int64_t start = options.profile->empty() ? 0 : options.profile->back().end_ns;
  for (NodeTiming& timing : timings) {
    timing.start_ns += start;
    timing.end_ns += start;
    options.profile->push_back(std::move(timing));
  }
}

void SegmentRunner::run_steps(const LoadedMethod& method, const Values& inputs, Values& outputs,
                              const RunOptions& options) {
  Values slots(method.signature.values);
  for (const ir::Input& input : method.signature.inputs) {
    slots.cut[input.value] = inputs.cut[input.index];
    slots.padded[input.value] = inputs.padded[input.index];
  }
  for (const Step& step : method.steps) {
    Values in(step.inputs.size());
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      in.cut[i] = argument(step.inputs[i], slots.cut);
      if (step.inputs[i].is_value()) in.padded[i] = slots.padded[step.inputs[i].value()];
    }
    Values made(step.outputs.size());
    made.cut = placed_by_caller(method, step, outputs.cut);
    switch (step.kind) {
      case Step::Kind::plan:
        run_method(step.parts[0], in, made, options);
        break;
      case Step::Kind::cond:
        run_method(step.parts[truth(argument(step.predicate, slots.cut)) ? 0 : 1], in, made, options);
        break;
      case Step::Kind::loop:
        run_loop(step, std::move(in), made, options);
        break;
      case Step::Kind::host:
        run_host(step, slots.cut, made.cut);
        break;
    }
    for (std::size_t i = 0; i < made.cut.size(); ++i) {
      slots.cut[step.outputs[i]] = std::move(made.cut[i]);
      slots.padded[step.outputs[i]] = std::move(made.padded[i]);
    }
    for (const ir::ValueId id : step.finished) slots.cut[id] = slots.padded[id] = {};
  }
  for (std::size_t o = 0; o < outputs.cut.size(); ++o) {
    const ir::Arg& arg = method.signature.outputs[o];
    if (arg.is_value()) outputs.padded[o] = slots.padded[arg.value()];
    hand_out(argument(arg, slots.cut), inputs.cut, outputs.cut, o);
  }
}

// A result must be the caller's own memory, shared neither with an input nor with another result.
void SegmentRunner::hand_out(Value result, std::span<const Value> inputs, std::span<Value> outputs, std::size_t o) {
  const bool given = has_memory(outputs[o]);
  const auto is_result = [&](const Value& other) { return same_data(other, result); };
  const bool own =
      result.owner && std::ranges::none_of(inputs, is_result) && std::ranges::none_of(outputs.first(o), is_result);
  if (result.kind != Value::Kind::tensor || (!given && own)) {
    outputs[o] = std::move(result);
    return;
  }
  if (given && outputs[o].tensor.data == result.tensor.data) return;
  void* to = place(outputs[o], result.tensor.dtype, result.tensor.shape);
  if (const std::size_t bytes = byte_count(result.tensor); bytes > 0) std::memcpy(to, result.tensor.data, bytes);
}

void SegmentRunner::run_host(const Step& step, std::span<const Value> slots, std::span<Value> outputs) {
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
    if (const HostValue& made = host.outputs()[i]; !made.is_tensor) outputs[i] = to_value(made.scalar);
}

// Each round is a call of the condition and one of the body: when they keep their sizes, no plan is made after the
// first. Deadline and cancel are checked at the latest where a call begins.
void SegmentRunner::run_loop(const Step& step, Values values, Values& outputs, const RunOptions& options) {
  const std::size_t carried = outputs.cut.size();
  for (;;) {
    Values answer(1);
    run_method(step.parts[0], values, answer, options);
    if (!truth(answer.cut[0])) break;
    Values next(carried);
    run_method(step.parts[1], values, next, options);
    std::ranges::move(next.cut, values.cut.begin());
    std::ranges::move(next.padded, values.padded.begin());
  }
  for (std::size_t i = 0; i < carried; ++i) {
    outputs.padded[i] = std::move(values.padded[i]);
    if (!has_memory(outputs.cut[i])) {
      outputs.cut[i] = std::move(values.cut[i]);
      continue;
    }
    void* to = place(outputs.cut[i], values.cut[i].tensor.dtype, values.cut[i].tensor.shape);
    std::memcpy(to, values.cut[i].tensor.data, byte_count(values.cut[i].tensor));
  }
}

}  // namespace graft
