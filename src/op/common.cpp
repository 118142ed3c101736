#include "op/common.h"

#include <algorithm>

#include "base/check.h"
#include "kernel/elementwise/elementwise.h"
#include "kernel/strided.h"
#include "lowering/lowering.h"
#include "op/ggml_ops.h"

namespace graft {

using simd::BlockClass;
using simd::ElementwiseOp;
using simd::Number;

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out;
  for (int d = 0; d < rank; ++d) {
    const int da = d - (rank - a.rank());
    const int db = d - (rank - b.rank());
    const std::int64_t sa = da >= 0 ? a[da] : 1;
    const std::int64_t sb = db >= 0 ? b[db] : 1;
    GRAFT_CHECK(InvalidArgument, sa == sb || sa == 1 || sb == 1, "The size of tensor a (", sa,
                ") must match the size of tensor b (", sb, ") at non-singleton dimension ", d);
    out.push_back(sa == 1 ? sb : sa);
  }
  return out;
}

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);  // floats come first in DType, bool last
  if (b == DType::b8) return a;
  if (is_float(a) && is_float(b)) {
    if (b == DType::f64) return b;
    return DType::f32;  // of f32, f16 and bf16, two different ones
  }
  if (is_float(a)) return a;
  // Integers in the order i8, u8, i16, i32, i64: only i8 with u8 needs a type wider than both.
  return a == DType::i8 && b == DType::u8 ? DType::i16 : b;
}

void ResultType::Slot::add(DType other) {
  dtype = any ? promote_types(dtype, other) : other;
  any = true;
}

void ResultType::add_tensor(DType dtype, int rank) { (rank > 0 ? dimensioned_ : zero_dim_).add(dtype); }

void ResultType::add_number(ir::ValueKind kind) {
  switch (kind) {
    case ir::ValueKind::real:
      return numbers_.add(DType::f32);
    case ir::ValueKind::boolean:
      return numbers_.add(DType::b8);
    default:
      return numbers_.add(DType::i64);
  }
}

ResultType::Slot ResultType::combined(const Slot& higher, const Slot& lower) {
  if (!higher.any) return lower;
  if (!lower.any || is_float(higher.dtype)) return higher;
  if (higher.dtype == DType::b8 || is_float(lower.dtype)) return {true, promote_types(higher.dtype, lower.dtype)};
  return higher;
}

DType ResultType::dtype() const { return combined(dimensioned_, combined(zero_dim_, numbers_)).dtype; }

Binding operand(const Call& call, std::string_view name) {
  Binding binding;
  if (call.is_tensor(name)) {
    binding.tensor = call.tensor(name);
  } else {
    binding.scalar = call.scalar(name);
  }
  return binding;
}

DType result_type(std::span<const Binding> operands) {
  ResultType type;
  for (const Binding& b : operands) {
    if (b.tensor) {
      type.add_tensor(b.tensor->dtype(), b.tensor->rank());
    } else {
      type.add_number(b.scalar.kind);
    }
  }
  return type.dtype();
}

DType result_type(const NodeView& node, std::span<const std::string_view> names) {
  ResultType type;
  for (const std::string_view name : names) {
    if (name.empty() || !node.has(name)) continue;
    const ir::Arg& arg = node.arg(name);
    if (node.is_tensor(name)) {
      type.add_tensor(node.tensor(name).dtype, node.tensor(name).rank());
    } else if (arg.is_value()) {
      type.add_number(node.value_kind(name));
    } else {
      type.add_number(arg.kind == ir::Arg::Kind::real      ? ir::ValueKind::real
                      : arg.kind == ir::Arg::Kind::boolean ? ir::ValueKind::boolean
                                                           : ir::ValueKind::integer);
    }
  }
  return type.dtype();
}

Number number_of(const Scalar& scalar, DType dtype) {
  const simd::ConvertFns& convert = *simd::elementwise(simd::Isa::baseline).convert;
  const auto column = static_cast<std::size_t>(dtype);
  const auto f64 = static_cast<std::size_t>(BlockClass::f64);
  const auto i64 = static_cast<std::size_t>(BlockClass::i64);
  alignas(8) std::byte element[8];
  if (scalar.is_real()) {
    convert.store[f64][column](&scalar.f, 0, 1, element);
  } else {
    convert.store[i64][column](&scalar.i, 0, 1, element);
  }
  Number number;
  convert.load[f64][column](element, 0, 1, &number.f);
  if (!is_float(dtype)) convert.load[i64][column](element, 0, 1, &number.i);
  return number;
}

namespace {

// bool has its own functions for logic; arithmetic on it goes through integers.
BlockClass compute_class(ElementwiseOp op, DType compute) {
  const BlockClass c = block_class(compute);
  if (c == BlockClass::b8 && simd::elementwise(simd::Isa::baseline).function(c, op) == nullptr) return BlockClass::i64;
  return c;
}

// Whether loading elements into blocks of the compute dtype's class equals a cast to that dtype.
bool exact_in(DType from, DType compute) {
  if (from == compute || from == DType::b8 || compute == DType::b8) return true;
  if (is_float(from) && !is_float(compute)) return false;
  switch (compute) {
    case DType::f32:
    case DType::f64:
    case DType::i64:
      return true;
    case DType::f16:
    case DType::bf16:
      return from == DType::i8 || from == DType::u8;
    default:
      return byte_size(from) < byte_size(compute);
  }
}

}  // namespace

namespace {

// Allocates the result with the memory order of the dimensions that PyTorch chooses: that of the first operand of full
// size, unless one of them is contiguous.
Tensor allocate_result(Lowering& lowering, DType dtype, std::span<const Binding> operands, const Shape& shape) {
  const Tensor* like = nullptr;
  for (const Binding& operand : operands) {
    if (!operand.tensor || operand.tensor->shape() != shape) continue;
    if (operand.tensor->desc.contiguous()) return lowering.allocate(dtype, shape);
    if (like == nullptr && is_dense(operand.tensor->desc)) like = &*operand.tensor;
  }
  if (like == nullptr || lowering.has_device()) return lowering.allocate(dtype, shape);
  return lowering.allocate_like(dtype, *like);
}

}  // namespace

Tensor emit(Lowering& lowering, const Elementwise& what, std::span<const Binding> operands, const Shape& shape) {
  GRAFT_ASSERT(static_cast<int>(operands.size()) == simd::operand_count(what.op));
  const Tensor out = allocate_result(lowering, what.output, operands, shape);
  if (out.numel() == 0 || device::elementwise(lowering, what, operands, out)) return out;

  ElementwiseAttrs attrs;
  attrs.op = what.op;
  attrs.compute = compute_class(what.op, what.compute);
  std::copy(what.params.begin(), what.params.end(), attrs.params);
  std::vector<Tensor> inputs;
  std::uint32_t inplace = 0;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const bool condition = what.op == ElementwiseOp::where && k == 0;
    const DType compute = condition ? DType::b8 : what.compute;
    const bool wide = what.opmath && (compute == DType::f16 || compute == DType::bf16);
    if (!operands[k].tensor) {
      attrs.immediate_mask |= 1u << k;
      attrs.immediates[k] = number_of(operands[k].scalar, wide ? DType::f64 : compute);
      continue;
    }
    Tensor tensor = *operands[k].tensor;
    // PyTorch's kernels treat only a second 0-d operand as a number.
    if (!exact_in(tensor.dtype(), compute) && !(wide && k == 1 && tensor.rank() == 0))
      tensor = lowering.cast(tensor, compute);
    if (tensor.dtype() == what.output && tensor.shape() == shape && tensor.desc.strides == out.desc.strides)
      inplace |= 1u << inputs.size();
    inputs.push_back(tensor);
  }
  lowering.launch(kElementwise, std::move(inputs), {out}, attrs, 0, inplace);
  return out;
}

Refusal refuse_elementwise(ElementwiseOp op, DType compute) {
  if (simd::elementwise(simd::Isa::baseline).function(compute_class(op, compute), op) != nullptr) return {};
  return str(simd::name(op), " is not defined for ", name(compute));
}

Refusal refuse_rank_of(const ir::Value& value) {
  if (value.rank() <= kMaxRank) return {};
  return str("tensor ", value.name, " has rank ", value.rank(), ", at most ", kMaxRank, " is supported");
}

Refusal refuse_spec(const ElementwiseSpec& spec, const NodeView& node) {
  for (const std::string_view name : spec.operands) {
    if (name.empty() || !node.is_tensor(name)) continue;
    if (Refusal r = refuse_rank_of(node.tensor(name)); !r.empty()) return r;
  }
  switch (spec.rule) {
    case ComputeRule::logical:
      return {};
    case ComputeRule::promoted:
      return refuse_elementwise(spec.op, result_type(node, spec.operands));
    default:
      return refuse_elementwise(spec.op, node.output().dtype);
  }
}

std::vector<Shape> shape_of_spec(const ElementwiseSpec& spec, const Call& call) {
  Shape shape;
  for (const std::string_view name : spec.operands)
    if (!name.empty() && call.is_tensor(name)) shape = broadcast_shapes(shape, call.tensor(name).shape());
  return {shape};
}

std::vector<Tensor> lower_spec(const ElementwiseSpec& spec, const Call& call, std::span<const Shape> shapes,
                               Lowering& lowering) {
  std::vector<Binding> operands;
  for (const std::string_view name : spec.operands)
    if (!name.empty()) operands.push_back(operand(call, name));
  Elementwise what;
  what.op = spec.op;
  what.output = call.output_dtype();
  what.opmath = spec.opmath;
  what.params[0] = {1, 1};
  if (spec.params != nullptr) spec.params(call, what.params.data());
  switch (spec.rule) {
    case ComputeRule::output:
      what.compute = what.output;
      break;
    case ComputeRule::promoted:
      what.compute = result_type(operands);
      break;
    case ComputeRule::logical:
      what.compute = DType::b8;
      break;
  }
  return {emit(lowering, what, operands, shapes[0])};
}

std::vector<Shape> shape_of_self(const Call& call) { return {call.tensor("self").shape()}; }

}  // namespace graft
