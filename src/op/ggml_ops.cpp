#include "op/ggml_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ggml.h"
#include "kernel/attention/attention.h"
#include "kernel/elementwise/elementwise.h"
#include "kernel/index/index.h"
#include "lowering/lowering.h"
#include "op/ggml_operands.h"

namespace graft::device {
namespace {

using simd::ElementwiseOp;

bool is_narrow(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
bool is_small_float(DType dtype) { return dtype == DType::f32 || is_narrow(dtype); }

Tensor transposed(const Tensor& tensor) {
  Tensor result = tensor;
  const int last = tensor.rank() - 1;
  result.desc.shape[last] = tensor.size(last - 1);
  result.desc.shape[last - 1] = tensor.size(last);
  std::swap(result.desc.strides[static_cast<std::size_t>(last)],
            result.desc.strides[static_cast<std::size_t>(last - 1)]);
  return result;
}

// Contiguous rows without repeated elements, which all of ggml's backends can read.
Tensor readable(Lowering& lowering, const Tensor& tensor) {
  const int last = tensor.rank() - 1;
  bool plain = tensor.rank() > 0 && (tensor.size(last) == 1 || tensor.stride(last) == 1) && is_aligned(tensor);
  for (int d = 0; plain && d < tensor.rank(); ++d) plain = tensor.size(d) == 1 || tensor.stride(d) > 0;
  if (plain) return tensor;
  return tensor.desc.contiguous() ? moved(lowering, tensor) : lowering.contiguous(tensor);
}

// An operand of a product: its matrices are contiguous and lie at one distance. ggml's Vulkan backend rounds others to
// f16 first.
Tensor factor(Lowering& lowering, const Tensor& tensor) {
  const int rank = tensor.rank();
  const auto follows = [&](int outer) {
    return outer < 0 || tensor.size(outer) == 1 ||
           tensor.stride(outer) == tensor.stride(outer + 1) * tensor.size(outer + 1);
  };
  if (lowering.plain() || (follows(rank - 2) && (rank < GGML_MAX_DIMS || follows(0))))
    return readable(lowering, tensor);
  return readable(lowering, lowering.contiguous(tensor));
}

// Contiguous, as rows of the last dim.
Tensor as_rows(const Tensor& tensor) {
  return tensor.rank() == 0 ? *try_reshape(tensor, Shape{1, 1}) : collapsed(tensor, 1);
}

// --- functions of one operand: contiguous f32 rows in and out ---

bool unary(Lowering& lowering, ggml_unary_op op, const Tensor& x, const Tensor& out) {
  return lowering.launch_device(GGML_OP_UNARY, {x}, out, Params{op}, 1);
}
bool scale(Lowering& lowering, const Tensor& x, double factor, double offset, const Tensor& out) {
  return lowering.launch_device(GGML_OP_SCALE, {x}, out, Params{bits(factor), bits(offset)}, 1);
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), from ops that all backends compute in f32: ggml's own GELU reads a
// table of f16 on the CPU.
bool gelu_tanh(Lowering& lowering, const Tensor& x, const Tensor& out) {
  constexpr double kSlope = 0.7978845608028654;  // sqrt(2 / pi)
  std::array<Tensor, 5> t;
  for (Tensor& step : t) step = lowering.allocate(DType::f32, x.shape());
  return lowering.launch_device(GGML_OP_SQR, {x}, t[0]) && scale(lowering, t[0], 0.044715 * kSlope, kSlope, t[1]) &&
         lowering.launch_device(GGML_OP_MUL, {t[1], x}, t[2], {}, 1) &&
         unary(lowering, GGML_UNARY_OP_TANH, t[2], t[3]) && scale(lowering, t[3], 0.5, 0.5, t[4]) &&
         lowering.launch_device(GGML_OP_MUL, {t[4], x}, out, {}, 1);
}

// value / x
bool divide_number(Lowering& lowering, double value, const Tensor& x, const Tensor& out) {
  const Tensor filled = lowering.allocate(DType::f32, x.shape());
  return lowering.launch_device(GGML_OP_FILL, {x}, filled, Params{bits(value)}) &&
         lowering.launch_device(GGML_OP_DIV, {filled, x}, out, {}, 1);
}

bool rsqrt(Lowering& lowering, const Tensor& x, const Tensor& out) {
  const Tensor root = lowering.allocate(DType::f32, x.shape());
  return lowering.launch_device(GGML_OP_SQRT, {x}, root) && divide_number(lowering, 1, root, out);
}

// ggml's RELU gives 0 for NaN, where PyTorch gives NaN; devices are documented so.
bool one_operand(Lowering& lowering, ElementwiseOp op, const Tensor& x, const Tensor& out) {
  switch (op) {
    case ElementwiseOp::neg:
      return unary(lowering, GGML_UNARY_OP_NEG, x, out);
    case ElementwiseOp::abs:
      return unary(lowering, GGML_UNARY_OP_ABS, x, out);
    case ElementwiseOp::exp:
      return unary(lowering, GGML_UNARY_OP_EXP, x, out);
    case ElementwiseOp::tanh:
      return unary(lowering, GGML_UNARY_OP_TANH, x, out);
    case ElementwiseOp::sigmoid:
      return unary(lowering, GGML_UNARY_OP_SIGMOID, x, out);
    case ElementwiseOp::relu:
      return unary(lowering, GGML_UNARY_OP_RELU, x, out);
    case ElementwiseOp::silu:
      return unary(lowering, GGML_UNARY_OP_SILU, x, out);
    case ElementwiseOp::gelu_erf:
      return unary(lowering, GGML_UNARY_OP_GELU_ERF, x, out);
    case ElementwiseOp::gelu_tanh:
      return gelu_tanh(lowering, x, out);
    case ElementwiseOp::sqrt:
      return lowering.launch_device(GGML_OP_SQRT, {x}, out);
    case ElementwiseOp::square:
      return lowering.launch_device(GGML_OP_SQR, {x}, out);
    case ElementwiseOp::rsqrt:
      return rsqrt(lowering, x, out);
    case ElementwiseOp::reciprocal:
      return divide_number(lowering, 1, x, out);
    default:
      return false;
  }
}

// --- functions of two operands ---

int binary_op(ElementwiseOp op) {
  switch (op) {
    case ElementwiseOp::add:
      return GGML_OP_ADD;
    case ElementwiseOp::sub:
      return GGML_OP_SUB;
    case ElementwiseOp::mul:
      return GGML_OP_MUL;
    case ElementwiseOp::div:
      return GGML_OP_DIV;
    default:
      return -1;
  }
}

// ggml's CLAMP gives a bound for NaN, as its RELU does. PyTorch's gives `high` where the bounds are the wrong way
// around.
bool clamp(Lowering& lowering, const Tensor& x, double low, double high, const Tensor& out) {
  if (!(low <= high)) return false;
  return lowering.launch_device(GGML_OP_CLAMP, {x}, out, Params{bits(low), bits(high)}, 1);
}

// A tensor and a number: x op value, or value op x when the number comes first. `alpha` is that of add and sub.
bool with_number(Lowering& lowering, ElementwiseOp op, const Tensor& x, double value, bool number_first, double alpha,
                 const Tensor& out) {
  if (!std::isfinite(static_cast<float>(value))) return false;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (op) {
    case ElementwiseOp::maximum:
      return clamp(lowering, x, value, kInfinity, out);
    case ElementwiseOp::minimum:
      return clamp(lowering, x, -kInfinity, value, out);
    case ElementwiseOp::mul:
      return scale(lowering, x, value, 0, out);
    case ElementwiseOp::add:
      return number_first ? scale(lowering, x, alpha, value, out) : scale(lowering, x, 1, alpha * value, out);
    case ElementwiseOp::sub:
      return number_first ? scale(lowering, x, -alpha, value, out) : scale(lowering, x, 1, -alpha * value, out);
    case ElementwiseOp::div:
      if (number_first) return divide_number(lowering, value, x, out);
      // Like PyTorch on devices: multiply by the reciprocal.
      if (!std::isnormal(static_cast<float>(1 / value))) return false;
      return scale(lowering, x, 1 / value, 0, out);
    case ElementwiseOp::pow:
      if (number_first) return false;
      if (value == 2) return lowering.launch_device(GGML_OP_SQR, {x}, out);
      return value == -0.5 && rsqrt(lowering, x, out);
    default:
      return false;
  }
}

// A state's memory may have changed since an earlier launch read it.
bool may_have_changed(Lowering& lowering, const Tensor& tensor) {
  return lowering.sequence().buffers[tensor.buffer].memory == MemoryKind::state;
}

// The operand of an earlier silu whose result this is; none if there is no such launch.
const Tensor* operand_of_silu(Lowering& lowering, const Tensor& result) {
  const std::vector<Launch>& launches = lowering.sequence().launches;
  for (auto launch = launches.rbegin(); launch != launches.rend(); ++launch) {
    if (launch->outputs.empty() || launch->outputs[0].buffer != result.buffer) continue;
    const bool silu = !launch->kernel && launch->ggml_op == GGML_OP_UNARY && launch->params[0] == GGML_UNARY_OP_SILU;
    return silu && launch->outputs[0].offset == result.offset && launch->outputs[0].numel() == result.numel()
               ? &launch->inputs[0]
               : nullptr;
  }
  return nullptr;
}

// silu(gate) * up in one: ggml's backends make it part of the products before it.
bool gated(Lowering& lowering, const Tensor& activated, const Tensor& up, const Tensor& out) {
  if (!activated.desc.contiguous() || !up.desc.contiguous() || activated.shape() != out.shape() ||
      up.shape() != out.shape())
    return false;
  const Tensor* gate = operand_of_silu(lowering, activated);
  if (!gate || !gate->desc.contiguous() || may_have_changed(lowering, *gate)) return false;
  const Tensor rows = as_rows(out);
  return lowering.launch_device(GGML_OP_GLU, {*try_reshape(*gate, rows.shape()), as_rows(up)}, rows,
                                Params{GGML_GLU_OP_SWIGLU}, 3);
}

// ggml repeats the second operand to the size of the first, never the first one.
bool with_tensor(Lowering& lowering, int op, Tensor a, Tensor b, const Tensor& out) {
  const bool commutes = op == GGML_OP_ADD || op == GGML_OP_MUL;
  if (op == GGML_OP_MUL && (gated(lowering, a, b, out) || gated(lowering, b, a, out))) return true;
  // As rows, as products and norms have them: ggml's backends make sums part of what they follow.
  if (a.shape() == out.shape() && b.shape() == out.shape() && a.desc.contiguous() && b.desc.contiguous() &&
      is_aligned(a))
    return lowering.launch_device(op, {as_rows(a), as_rows(b)}, as_rows(out), {}, 1);
  if (commutes && a.shape() != out.shape()) std::swap(a, b);
  if (a.shape() != out.shape()) {
    const Tensor whole = lowering.allocate(DType::f32, out.shape());
    lowering.copy(expanded(a, out.shape()), whole);
    a = whole;
  }
  a = readable(lowering, a);
  b = expanded(b, out.shape());
  merge_dims(a, b);
  if (a.rank() > GGML_MAX_DIMS) return false;
  for (int d = 0; d < b.rank(); ++d) {
    if (b.stride(d) < 0) return false;
    if (b.stride(d) == 0) b.desc.shape[d] = 1;
  }
  const int last = b.rank() - 1;
  if (b.size(last) != 1 && b.stride(last) != 1) return false;
  return lowering.launch_device(op, {a, b}, *try_reshape(out, a.shape()), {}, a.desc.contiguous() ? 1u : 0u);
}

Tensor widened(Lowering& lowering, const Tensor& tensor) { return lowering.cast(tensor, DType::f32); }

}  // namespace

bool elementwise(Lowering& lowering, const Elementwise& what, std::span<const Binding> operands, const Tensor& out) {
  const bool clamps = what.op == ElementwiseOp::clamp && operands.size() == 3 && operands[0].tensor &&
                      !operands[1].tensor && !operands[2].tensor;
  if (!lowering.has_device() || out.numel() == 0 || (operands.size() > 2 && !clamps)) return false;
  if (!is_small_float(what.output) || what.compute != what.output)
    return lowering.refused("ggml computes f32 elements alone, of one type in and out");
  for (const Binding& operand : operands)
    if (operand.tensor && operand.tensor->dtype() != what.compute) return false;
  const Tensor target = f32_target(lowering, out);
  const double alpha = what.op == ElementwiseOp::add || what.op == ElementwiseOp::sub ? what.params[0].f : 1;
  bool done = false;
  if (operands.size() == 2 && operands[0].tensor && operands[1].tensor) {
    const int op = binary_op(what.op);
    done = op >= 0 && alpha == 1 &&
           with_tensor(lowering, op, widened(lowering, *operands[0].tensor), widened(lowering, *operands[1].tensor),
                       target);
  } else {
    const bool number_first = !operands[0].tensor;
    const Binding& tensor = operands[number_first ? 1 : 0];
    if (!tensor.tensor || tensor.tensor->shape() != out.shape()) return false;
    const Tensor x = as_rows(lowering.contiguous(widened(lowering, *tensor.tensor)));
    if (clamps) {
      done = clamp(lowering, x, operands[1].scalar.to_double(), operands[2].scalar.to_double(), as_rows(target));
    } else if (operands.size() == 1) {
      done = one_operand(lowering, what.op, x, as_rows(target));
    } else {
      const Scalar& number = operands[number_first ? 0 : 1].scalar;
      done = with_number(lowering, what.op, x, number.to_double(), number_first, alpha, as_rows(target));
    }
  }
  if (done) finish(lowering, target, out);
  return done;
}

bool matmul(Lowering& lowering, const Tensor& a, const Tensor& b, const Tensor* bias, const Tensor& out) {
  if (!lowering.has_device() || out.numel() == 0 || a.numel() == 0 || b.numel() == 0) return false;
  if (!is_small_float(out.dtype())) return lowering.refused("ggml's MUL_MAT takes f32, f16 and bf16");
  if (out.rank() > GGML_MAX_DIMS) return lowering.refused("ggml has four dimensions");
  if (!out.desc.contiguous() || !is_aligned(out))
    return lowering.refused("ggml's MUL_MAT writes a contiguous result at the beginning of a buffer");
  // ggml contracts the last dim of both. The second operand is read as it is stored, f16 and bf16 too; the first one
  // and the result are f32.
  const Tensor weight = factor(lowering, transposed(b));
  Tensor rows = factor(lowering, widened(lowering, a));
  const Tensor target = f32_target(lowering, out);
  const Tensor product = bias ? lowering.allocate(DType::f32, out.shape()) : target;
  Tensor result = product;
  // One matrix for all batches: their rows are those of one product.
  if (const bool one = weight.numel() == weight.size(weight.rank() - 1) * weight.size(weight.rank() - 2);
      one && rows.desc.contiguous() && rows.rank() >= 2) {
    rows = as_rows(rows);
    result = as_rows(product);
  }
  const bool may_round = lowering.matmul_precision() == MatmulPrecision::medium;
  if (!lowering.launch_device(GGML_OP_MUL_MAT, {weight, rows}, result,
                              Params{may_round ? GGML_PREC_DEFAULT : GGML_PREC_F32}))
    return false;
  if (bias && !with_tensor(lowering, GGML_OP_ADD, product, widened(lowering, *bias), target)) return false;
  finish(lowering, target, out);
  return true;
}

bool norm(Lowering& lowering, Norm kind, const Tensor& input, const Tensor* weight, const Tensor* bias,
          std::int64_t row, double eps, const Tensor& out) {
  if (!lowering.has_device() || out.numel() == 0 || !is_small_float(input.dtype())) return false;
  const Tensor target = f32_target(lowering, out);
  // Heads of tokens are a dimension, as rotary positions want it.
  const bool heads = out.rank() == 4 && out.size(3) == row;
  const Shape rows = heads ? Shape{out.size(0) * out.size(1), out.size(2), row} : Shape{out.numel() / row, row};
  const Shape row_means = heads ? Shape{rows[0], rows[1], 1} : Shape{rows[0], 1};
  Tensor current = *try_reshape(widened(lowering, input), rows);
  const Tensor last = *try_reshape(target, rows);
  const auto next = [&](bool is_last) { return is_last ? last : lowering.allocate(DType::f32, rows); };
  const Tensor normed = next(!weight && !bias);
  const int op = kind == Norm::layer ? GGML_OP_NORM : GGML_OP_RMS_NORM;
  // ggml's Vulkan backend takes the variance as the mean of squares less the square of the mean, which cancels where
  // the mean is large: it gets rows whose mean is 0.
  if (kind == Norm::layer && !lowering.plain()) {
    const Tensor mean = lowering.allocate(DType::f32, row_means);
    const Tensor centered = lowering.allocate(DType::f32, rows);
    if (!lowering.launch_device(GGML_OP_MEAN, {current}, mean) ||
        !lowering.launch_device(GGML_OP_SUB, {current, mean}, centered, {}, 1))
      return false;
    current = centered;
  }
  if (!lowering.launch_device(op, {current}, normed, Params{bits(eps)})) return false;
  current = normed;
  // ggml's backends fuse these with the norm if they follow it directly.
  const auto then = [&](int step, const Tensor* operand, bool is_last) {
    if (!operand) return true;
    const Tensor to = next(is_last);
    const Tensor factor = *try_reshape(widened(lowering, *operand), heads ? Shape{1, 1, row} : Shape{1, row});
    const bool done = lowering.launch_device(step, {current, factor}, to, {}, 1);
    current = to;
    return done;
  };
  if (!then(GGML_OP_MUL, weight, !bias) || !then(GGML_OP_ADD, bias, true)) return false;
  finish(lowering, target, out);
  return true;
}

bool reduce(Lowering& lowering, Reduction kind, const Tensor& input, const Tensor& out) {
  if (!lowering.has_device() || input.numel() == 0 || !is_small_float(input.dtype()) || !is_small_float(out.dtype()))
    return false;
  const Tensor target = f32_target(lowering, out);
  const std::int64_t count = out.numel();
  const Tensor whole = lowering.contiguous(widened(lowering, input));
  Tensor rows = *try_reshape(whole, Shape{count, input.numel() / count});
  const Tensor column = *try_reshape(target, Shape{count, 1});
  if (kind == Reduction::norm) {
    const Tensor squares = lowering.allocate(DType::f32, rows.shape());
    const Tensor sums = lowering.allocate(DType::f32, column.shape());
    if (!lowering.launch_device(GGML_OP_SQR, {rows}, squares) ||
        !lowering.launch_device(GGML_OP_SUM_ROWS, {squares}, sums) ||
        !lowering.launch_device(GGML_OP_SQRT, {sums}, column, {}, 1))
      return false;
  } else if (!lowering.launch_device(kind == Reduction::sum ? GGML_OP_SUM_ROWS : GGML_OP_MEAN, {rows}, column)) {
    return false;
  }
  finish(lowering, target, out);
  return true;
}

bool softmax(Lowering& lowering, const Tensor& input, const Tensor& out) {
  if (!lowering.has_device() || out.numel() == 0 || !is_small_float(input.dtype()) || !is_small_float(out.dtype()))
    return false;
  const Tensor target = f32_target(lowering, out);
  const Tensor rows = as_rows(widened(lowering, input));
  // The second parameter, the slope of ALiBi, stays 0.
  if (!lowering.launch_device(GGML_OP_SOFT_MAX, {rows}, as_rows(target), Params{bits(1)})) return false;
  finish(lowering, target, out);
  return true;
}

bool gather_rows(Lowering& lowering, const Tensor& table, const Tensor& indices, int dim, bool wrap,
                 const Tensor& out) {
  if (!lowering.has_device() || out.numel() == 0 || !is_small_float(table.dtype()) || table.numel() == 0) return false;
  const std::int64_t outer = table.rank() == 3 ? table.size(0) : 1;
  const std::int64_t size = table.size(table.rank() - 2), row = table.size(table.rank() - 1);
  if (outer * size > std::numeric_limits<std::int32_t>::max()) return false;
  if (is_narrow(table.dtype()) && row % 2 != 0)
    return lowering.refused("ggml's Vulkan backend reads rows of halves in pairs");
  const Tensor rows = lowering.allocate(DType::i32, Shape{outer * indices.numel()});
  const Tensor target = f32_target(lowering, out);
  lowering.launch(kCheckIndex, {indices}, {rows}, CheckIndexAttrs{size, outer, dim, wrap});
  const Tensor flat = table.rank() == 3 ? *try_reshape(table, Shape{outer * size, row}) : table;
  const Tensor taken = *try_reshape(target, Shape{outer * indices.numel(), row});
  if (!lowering.launch_device(GGML_OP_GET_ROWS, {readable(lowering, flat), rows}, taken)) return false;
  finish(lowering, target, out);
  return true;
}

namespace {

// With leading dims of size 1 up to rank 4.
Tensor to_rank4(const Tensor& tensor) {
  Shape shape;
  for (int d = tensor.rank(); d < GGML_MAX_DIMS; ++d) shape.push_back(1);
  for (const std::int64_t size : tensor.shape().sizes()) shape.push_back(size);
  return *try_reshape(tensor, shape);
}

struct MaskOperands {
  Tensor added, seen;
};

// What SOFT_MAX adds, and which rows see a key: made once for all layers that have the mask.
MaskOperands mask_operands(Lowering& lowering, const Tensor& mask) {
  if (!may_have_changed(lowering, mask))
    for (const Launch& earlier : lowering.sequence().launches)
      if (earlier.kernel == &kAttentionMask && same_tensor(earlier.inputs[0], mask))
        return {earlier.outputs[0], earlier.outputs[1]};
  Shape rows = mask.shape();
  rows[3] = 1;
  const MaskOperands out{lowering.allocate(DType::f32, mask.shape()), lowering.allocate(DType::f32, rows)};
  lowering.launch(kAttentionMask, {mask}, {out.added, out.seen}, std::byte{});
  return out;
}

}  // namespace

bool attention(Lowering& lowering, const Attention& what, const Tensor& out) {
  if (!lowering.has_device() || out.numel() == 0 || what.k.numel() == 0 || out.rank() > GGML_MAX_DIMS) return false;
  if (!is_small_float(out.dtype())) return lowering.refused("ggml's products take f32, f16 and bf16");
  if (what.causal && what.mask) return lowering.refused("ggml masks causally or by a tensor, not both");
  // A score of -inf must stay -inf after scaling.
  if (what.causal && !(what.scale > 0)) return false;
  if (what.mask && what.mask->rank() > GGML_MAX_DIMS) return false;
  for (const Tensor* t : {&what.q, &what.k, &what.v})
    if (t->rank() > GGML_MAX_DIMS) return false;
  const Tensor q = factor(lowering, to_rank4(widened(lowering, what.q)));
  const Tensor k = factor(lowering, to_rank4(what.k));
  const Tensor v = to_rank4(what.v);
  const Shape product = to_rank4(out).shape();
  // ggml shares heads of a product's first operand only, and keys and values must have equal heads.
  if (q.size(0) != product[0] || q.size(1) != product[1] || k.size(0) != v.size(0) || k.size(1) != v.size(1))
    return false;
  const std::int64_t t = q.size(2), s = k.size(2);
  const auto f32 = [&](const Shape& shape) { return lowering.allocate(DType::f32, shape); };
  const Shape square{product[0], product[1], t, s};
  Tensor scores = f32(square);
  if (!lowering.launch_device(GGML_OP_MUL_MAT, {k, q}, scores, Params{GGML_PREC_F32})) return false;
  if (what.causal) {
    const Tensor visible = f32(square);
    // Query i sees keys 0 .. i: no keys precede the first query.
    if (!lowering.launch_device(GGML_OP_DIAG_MASK_INF, {scores}, visible, Params{0}, 1)) return false;
    scores = visible;
  }
  std::vector<Tensor> operands{scores};
  Tensor seen;
  if (what.mask) {
    Shape sizes = to_rank4(*what.mask).shape();
    sizes[2] = t;
    sizes[3] = s;
    const Tensor mask = expanded(to_rank4(*what.mask), sizes);
    const MaskOperands made = mask_operands(lowering, mask);
    operands.push_back(made.added);
    seen = made.seen;
  }
  const Tensor weights = f32(square);
  if (!lowering.launch_device(GGML_OP_SOFT_MAX, operands, weights, Params{bits(what.scale)})) return false;
  const Tensor columns = f32(Shape{v.size(0), v.size(1), v.size(3), v.size(2)});
  lowering.copy(transposed(v), columns);
  const Tensor target = f32_target(lowering, out);
  const Tensor result = what.mask ? f32(product) : to_rank4(target);
  if (!lowering.launch_device(GGML_OP_MUL_MAT, {columns, weights}, result, Params{GGML_PREC_F32})) return false;
  if (what.mask && !lowering.launch_device(GGML_OP_MUL, {result, seen}, to_rank4(target), {}, 1)) return false;
  finish(lowering, target, out);
  return true;
}

namespace {

// Once for all layers.
Tensor as_i32(Lowering& lowering, const Tensor& position) {
  const bool changes = may_have_changed(lowering, position);
  for (const Launch& earlier : lowering.sequence().launches)
    if (!changes && earlier.kernel == &kCopy && same_tensor(earlier.inputs[0], position) &&
        earlier.outputs[0].dtype() == DType::i32 && earlier.outputs[0].desc.contiguous())
      return *try_reshape(earlier.outputs[0], Shape{position.numel()});
  return *try_reshape(lowering.cast(position, DType::i32), Shape{position.numel()});
}

}  // namespace

bool rope(Lowering& lowering, const Tensor& x, const Tensor& position, const Tensor& period, double scale,
          const Tensor& out) {
  if (!lowering.has_device() || position.numel() > std::numeric_limits<std::int32_t>::max()) return false;
  const Shape& sizes = out.shape();
  const Shape heads_of_tokens{sizes[0] * sizes[2], sizes[1], sizes[3]};
  const auto flat = [&](const Tensor& t) { return *try_reshape(t, heads_of_tokens); };
  const Tensor swapped = permuted(x, kSwapMiddle);
  const Tensor rows = swapped.desc.contiguous() ? swapped : lowering.contiguous(swapped);
  const Tensor at = as_i32(lowering, position);
  Params params{};
  params[1] = static_cast<std::int32_t>(sizes[3]);
  params[2] = GGML_ROPE_TYPE_NEOX;
  params[5] = params[6] = bits(1);  // the base and the factor of frequencies, which the periods have in them
  params[8] = bits(scale);
  return lowering.launch_device(GGML_OP_ROPE, {flat(rows), at, readable(lowering, period)},
                                flat(permuted(out, kSwapMiddle)), params);
}

bool convolution(Lowering& lowering, const Tensor& x, const Tensor& weight, const Tensor* bias, const ConvAttrs& attrs,
                 const Tensor& out) {
  if (!lowering.has_device() || out.numel() == 0) return false;
  if (x.dtype() != DType::f32) return lowering.refused("ggml's CONV_2D takes f32");
  if (attrs.transposed != 0) return lowering.refused("ggml's transposed convolutions have no padding, groups or bias");
  if (x.size(2) != 1 || weight.size(2) != 1) return lowering.refused("ggml's CONV_3D takes f16 weights");
  const std::int64_t channels = x.size(1);
  const bool depthwise = attrs.groups > 1 && attrs.groups == channels && weight.size(0) == channels;
  if (attrs.groups > 1 && !depthwise) return lowering.refused("ggml's CONV_2D has no groups");
  // ggml's im2col has 16 MB of scratch, for whole patches.
  constexpr std::int64_t kMostElements = 1 << 18;
  if (weight.numel() / weight.size(0) + weight.size(0) > kMostElements)
    return lowering.refused("a patch is too large for ggml's scratch");
  const auto flat = [](const Tensor& t) { return *try_reshape(t, Shape{t.size(0), t.size(1), t.size(3), t.size(4)}); };
  const auto at = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  const Params params{at(attrs.stride[2]),  at(attrs.stride[1]),   at(attrs.padding[2]),
                      at(attrs.padding[1]), at(attrs.dilation[2]), at(attrs.dilation[1])};
  const Tensor target = flat(out);
  const Tensor result = bias ? lowering.allocate(DType::f32, target.shape()) : target;
  if (!lowering.launch_device(depthwise ? GGML_OP_CONV_2D_DW : GGML_OP_CONV_2D,
                              {flat(weight), lowering.contiguous(flat(x))}, result, params))
    return false;
  return !bias ||
         with_tensor(lowering, GGML_OP_ADD, result, *try_reshape(*bias, Shape{1, bias->numel(), 1, 1}), target);
}

}  // namespace graft::device
