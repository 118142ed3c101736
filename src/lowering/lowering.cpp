#include "lowering/lowering.h"

#include <algorithm>

#include "base/check.h"
#include "ggml.h"
#include "kernel/elementwise/elementwise.h"
#include "lowering/tasks.h"

namespace graft {

std::string_view name(MemoryKind kind) {
  constexpr std::string_view names[] = {"weight", "constant", "state", "arena", "input", "output"};
  return names[static_cast<std::size_t>(kind)];
}

std::string kernel_name(const Launch& launch) {
  if (launch.kernel == nullptr) return std::string("ggml ") + ggml_op_name(static_cast<ggml_op>(launch.ggml_op));
  const std::string name = "graft " + std::string(launch.kernel->name);
  return launch.kernel->label ? name + ": " + launch.kernel->label(DescribedLaunch(launch).context()) : name;
}

bool is_dense(const TensorDesc& desc) {
  std::vector<int> order;
  for (int d = 0; d < desc.rank(); ++d)
    if (desc.shape[d] != 1) order.push_back(d);
  const auto stride = [&](int d) { return desc.strides[static_cast<std::size_t>(d)]; };
  std::ranges::sort(order, {}, stride);
  std::int64_t expected = 1;
  for (const int d : order) {
    if (stride(d) != expected) return false;
    expected *= desc.shape[d];
  }
  return true;
}

ByteSpan byte_span(const TensorDesc& desc) {
  ByteSpan span;
  if (desc.numel() == 0) return span;
  const auto element = static_cast<std::int64_t>(byte_size(desc.dtype));
  for (int d = 0; d < desc.rank(); ++d) {
    const std::int64_t reach = (desc.shape[d] - 1) * desc.strides[static_cast<std::size_t>(d)] * element;
    (reach < 0 ? span.low : span.high) += reach;
  }
  span.high += element;
  return span;
}

BufferId Lowering::add_buffer(const Buffer& buffer) {
  GRAFT_CHECK(
      Unsupported,
      buffer.bytes <= limits_.bytes || (buffer.memory != MemoryKind::arena && buffer.memory != MemoryKind::output),
      "a tensor takes ", buffer.bytes, " bytes, at most ", limits_.bytes, " are allowed (max_plan_bytes)");
  sequence_.buffers.push_back(buffer);
  return static_cast<BufferId>(sequence_.buffers.size() - 1);
}

Tensor Lowering::allocate(DType dtype, const Shape& shape) {
  Tensor tensor;
  tensor.desc = TensorDesc(dtype, shape);
  Buffer buffer;
  buffer.bytes = static_cast<std::int64_t>(tensor.desc.byte_count());
  tensor.buffer = add_buffer(buffer);
  return tensor;
}

Tensor Lowering::allocate_like(DType dtype, const Tensor& like) {
  GRAFT_ASSERT(is_dense(like.desc));
  Tensor tensor = allocate(dtype, like.shape());
  if (tensor.numel() > 0) tensor.desc.strides = like.desc.strides;
  return tensor;
}

void Lowering::add_launch(Launch launch) {
  for (const std::vector<Tensor>* tensors : {&launch.inputs, &launch.outputs}) {
    for (const Tensor& t : *tensors) {
      GRAFT_ASSERT(t.buffer < sequence_.buffers.size());
      if (t.stored) {
        GRAFT_ASSERT(!launch.kernel && t.stored->kind == Stored::Kind::blocks);
        continue;
      }
      const ByteSpan span = byte_span(t.desc);
      GRAFT_ASSERT(t.offset + span.low >= 0 && t.offset + span.high <= sequence_.buffers[t.buffer].bytes);
    }
  }
  // A launch that writes nothing is dropped.
  const bool writes =
      std::any_of(launch.outputs.begin(), launch.outputs.end(), [](const Tensor& t) { return t.numel() > 0; });
  if (!writes) return;
  GRAFT_CHECK(Unsupported, static_cast<std::int64_t>(sequence_.launches.size()) < limits_.launches,
              "its plan has more than ", limits_.launches, " launches, the most that are allowed (max_plan_launches)");
  launch.node = node_;
  sequence_.launches.push_back(std::move(launch));
}

void Lowering::launch_bytes(const Kernel& kernel, std::vector<Tensor> inputs, std::vector<Tensor> outputs,
                            std::vector<std::byte> attrs, std::int64_t scratch_bytes, std::uint32_t inplace) {
  GRAFT_ASSERT(!outputs.empty());
  // ggml keeps the operands in the node's src: all inputs, and the outputs after the first.
  GRAFT_ASSERT(inputs.size() + outputs.size() - 1 <= GGML_MAX_SRC);
  Launch launch;
  launch.ggml_op = GGML_OP_CUSTOM;
  launch.kernel = &kernel;
  launch.inputs = std::move(inputs);
  launch.outputs = std::move(outputs);
  launch.attrs = std::move(attrs);
  launch.inplace = inplace;
  if (device_) launch.refused = refusal_.empty() ? "ggml has no op that computes this as PyTorch does" : refusal_;
  launch.serial = has_little_work(launch);
  if (scratch_bytes > 0) {
    launch.scratch_bytes = scratch_bytes;
    Buffer scratch;
    scratch.bytes = scratch_bytes;
    launch.scratch = add_buffer(scratch);
  }
  add_launch(std::move(launch));
}

void Lowering::launch(const Kernel& kernel, std::vector<Tensor> inputs, std::vector<Tensor> outputs) {
  launch_bytes(kernel, std::move(inputs), std::move(outputs), {}, 0, 0);
}

namespace {

Launch ggml_launch(int ggml_op, std::vector<Tensor> inputs, const Tensor& output,
                   const std::array<std::int32_t, 16>& params, std::uint32_t inplace) {
  for ([[maybe_unused]] const Tensor& t : inputs) GRAFT_ASSERT(t.rank() <= GGML_MAX_DIMS && t.numel() > 0);
  GRAFT_ASSERT(output.rank() <= GGML_MAX_DIMS && inputs.size() <= GGML_MAX_SRC);
  Launch launch;
  launch.ggml_op = ggml_op;
  launch.params = params;
  launch.inputs = std::move(inputs);
  launch.outputs = {output};
  launch.inplace = inplace;
  return launch;
}

}  // namespace

bool Lowering::launch_device(int ggml_op, std::vector<Tensor> inputs, const Tensor& output,
                             const std::array<std::int32_t, 16>& params, std::uint32_t inplace) {
  if (!device_ || output.numel() == 0) return false;
  Launch launch = ggml_launch(ggml_op, std::move(inputs), output, params, inplace);
  for (const Tensor& input : launch.inputs)
    if (!device_holds(input)) return refused("the device has no room for its weight");
  if (!device_holds(output)) return refused("the device has no room for the state");
  if (!device_->supports(launch)) return refused("ggml's op does not take these types or strides");
  launch.on_device = !plain();
  launch.on_host_too = launch.on_device && (is_ggml_copy(launch) || device_->host_supports(launch));
  add_launch(std::move(launch));
  return true;
}

bool Lowering::device_has(int ggml_op, std::vector<Tensor> inputs, const Tensor& output,
                          const std::array<std::int32_t, 16>& params) {
  const auto holds = [&](const Tensor& tensor) { return device_holds(tensor); };
  return device_ && holds(output) && std::ranges::all_of(inputs, holds) &&
         device_->supports(ggml_launch(ggml_op, std::move(inputs), output, params, 0));
}

void Lowering::keep_on_device(const Tensor& all) {
  Buffer& buffer = sequence_.buffers[all.buffer];
  GRAFT_ASSERT(buffer.memory == MemoryKind::state && all.offset == 0 && all.desc.contiguous());
  const std::uint64_t bytes = all.stored ? stored_bytes(*all.stored, all.shape()) : all.desc.byte_count();
  buffer.bytes = std::max(buffer.bytes, static_cast<std::int64_t>(bytes));
  buffer.kept_on_device = true;
}

// Floating-point copies that ggml has: the same dtype, or to and from f32; rank at most 4 once dimensions are merged.
// Repeated elements (stride 0) go through ggml's REPEAT, which takes the sizes before the repetition.
bool Lowering::copy_on_device(const Tensor& from, const Tensor& to) {
  if (!device_ || from.numel() == 0 || !is_float(from.dtype()) || !is_float(to.dtype())) return false;
  if (from.dtype() == DType::f64 || to.dtype() == DType::f64) return false;
  if (from.dtype() != to.dtype() && from.dtype() != DType::f32 && to.dtype() != DType::f32) return false;
  Tensor source = from, target = to;
  merge_dims(source, target);
  if (source.rank() > GGML_MAX_DIMS) return false;
  bool repeats = false;
  for (int d = 0; d < source.rank(); ++d) {
    if (source.stride(d) < 0 || target.stride(d) <= 0) return false;
    if (source.stride(d) != 0) continue;
    repeats = true;
    source.desc.shape[d] = 1;
  }
  if (!repeats) return launch_device(GGML_OP_CPY, {source}, target);
  const int last = source.rank() - 1;
  if (from.dtype() != DType::f32 || to.dtype() != DType::f32 || !to.desc.contiguous()) return false;
  if (source.size(last) != 1 && source.stride(last) != 1) return false;
  return launch_device(GGML_OP_REPEAT, {source}, target);
}

Tensor Lowering::contiguous(const Tensor& tensor) {
  if (tensor.desc.contiguous()) return tensor;
  for (const auto& [from, copied] : contiguous_copies_)
    if (from.buffer == tensor.buffer && from.offset == tensor.offset && from.dtype() == tensor.dtype() &&
        from.shape() == tensor.shape() && from.desc.strides == tensor.desc.strides)
      return copied;
  const Tensor copied = allocate(tensor.dtype(), tensor.shape());
  copy(tensor, copied);
  contiguous_copies_.emplace_back(tensor, copied);
  return copied;
}

Tensor Lowering::with_contiguous_rows(const Tensor& tensor) {
  const int last = tensor.rank() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1 ? tensor : contiguous(tensor);
}

Tensor Lowering::writable(const Tensor& tensor) {
  if (updates_state_ && in_state(tensor)) return tensor;
  const Tensor copied = allocate(tensor.dtype(), tensor.shape());
  copy(tensor, copied);
  return copied;
}

void Lowering::undo_copy(const Tensor& kept, const Tensor& target) {
  const std::size_t mark = sequence_.launches.size();
  launch(kCopy, {kept}, {target});  // never ggml's: an undo runs outside of a graph
  take_undo(mark);
}

void Lowering::take_undo(std::size_t mark) {
  GRAFT_ASSERT(updates_state_);
  if (sequence_.launches.size() == mark) return;  // nothing to write
  GRAFT_ASSERT(sequence_.launches.size() == mark + 1);
  sequence_.undo.push_back({std::move(sequence_.launches.back()), static_cast<std::uint32_t>(mark)});
  sequence_.launches.pop_back();
}

void Lowering::hold_back(std::size_t mark) {
  std::move(sequence_.launches.begin() + static_cast<std::ptrdiff_t>(mark), sequence_.launches.end(),
            std::back_inserter(held_back_));
  sequence_.launches.resize(mark);
}

void Lowering::launch_held_back() {
  std::move(held_back_.begin(), held_back_.end(), std::back_inserter(sequence_.launches));
  held_back_.clear();
}

Tensor Lowering::bytes_of(const Tensor& tensor) const {
  return {tensor.buffer, 0, TensorDesc(DType::u8, Shape{sequence_.buffers[tensor.buffer].bytes})};
}

Tensor Lowering::cast(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  const Tensor out = allocate(dtype, tensor.shape());
  copy(tensor, out);
  return out;
}

void Lowering::copy(const Tensor& from, const Tensor& to) {
  GRAFT_ASSERT(from.shape() == to.shape());
  if (copy_on_device(from, to)) return;
  launch(kCopy, {from}, {to});
}

bool is_ggml_copy(const Launch& launch) {
  return !launch.kernel && (launch.ggml_op == GGML_OP_CPY || launch.ggml_op == GGML_OP_REPEAT);
}

void copy_on_host(Launch& launch) {
  launch.on_device = false;
  launch.ggml_op = GGML_OP_CUSTOM;
  launch.kernel = &kCopy;
  launch.inputs[0] = expanded(launch.inputs[0], launch.outputs[0].shape());  // was REPEAT's unexpanded input
  launch.serial = has_little_work(launch);
}

Tensor Lowering::full(DType dtype, const Shape& shape, const Scalar& value) {
  const Tensor out = allocate(dtype, shape);
  FillAttrs attrs{};
  if (is_float(dtype)) {
    attrs.f = value.to_double();
  } else if (dtype == DType::b8) {
    attrs.i = value.is_real() ? value.f != 0 : value.i != 0;
  } else {
    // As in PyTorch; a NaN compares false.
    GRAFT_CHECK(InvalidArgument, !value.is_real() || (value.f >= -0x1p63 && value.f < 0x1p63), "value ", value.f,
                " cannot be converted to ", name(dtype), " without overflow");
    attrs.i = value.is_real() ? static_cast<std::int64_t>(value.f) : value.i;
  }
  launch(kFill, {}, {out}, attrs);
  return out;
}

}  // namespace graft
