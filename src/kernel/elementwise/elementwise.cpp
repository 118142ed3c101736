#include "kernel/elementwise/elementwise.h"
#include "kernel/fusion.h"
#include "kernel/strided.h"

namespace graft {
namespace {

using simd::BlockClass;
using simd::ElementwiseOp;

void run_elementwise(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<ElementwiseAttrs>();
  BlockJob job;
  job.function = simd::elementwise().function(attrs.compute, attrs.op);
  job.inputs = simd::operand_count(attrs.op);
  job.input_class.fill(attrs.compute);
  if (attrs.op == ElementwiseOp::where) job.input_class[0] = BlockClass::b8;
  job.output_class = simd::gives_bool(attrs.op) ? BlockClass::b8 : attrs.compute;
  job.immediate_mask = attrs.immediate_mask;
  for (int k = 0; k < job.inputs; ++k) job.immediates[static_cast<std::size_t>(k)] = attrs.immediates[k];
  job.params = attrs.params;
  if (job.function == nullptr) return ctx.fail(simd::name(attrs.op), ": no function of this class");
  run_or_fail(ctx, job);
}

bool what_of(const KernelContext& ctx, ElementwiseAttrs& what) {
  what = ctx.attrs<ElementwiseAttrs>();
  return true;
}

std::optional<Epilogue> as_epilogue(const AttrBytes& bytes) {
  const auto attrs = attrs_of_bytes<ElementwiseAttrs>(bytes);
  if (attrs.compute != BlockClass::f32) return std::nullopt;
  Epilogue epilogue;
  if (attrs.immediate_mask == 0) {
    switch (attrs.op) {
      case ElementwiseOp::relu:
        epilogue.activation = simd::Activation::relu;
        return epilogue;
      case ElementwiseOp::silu:
        epilogue.activation = simd::Activation::silu;
        return epilogue;
      case ElementwiseOp::gelu_erf:
        epilogue.activation = simd::Activation::gelu_erf;
        return epilogue;
      case ElementwiseOp::gelu_tanh:
        epilogue.activation = simd::Activation::gelu_tanh;
        return epilogue;
      default:
        return std::nullopt;
    }
  }
  const auto bound = [&](int operand) { return static_cast<float>(attrs.immediates[operand].f); };
  epilogue.clamps = true;
  if (attrs.op == ElementwiseOp::clamp && attrs.immediate_mask == 0b110) {
    epilogue.low = bound(1);
    epilogue.high = bound(2);
  } else if (attrs.op == ElementwiseOp::maximum && attrs.immediate_mask == 0b10) {
    epilogue.low = bound(1);
  } else if (attrs.op == ElementwiseOp::minimum && attrs.immediate_mask == 0b10) {
    epilogue.high = bound(1);
  } else {
    return std::nullopt;
  }
  // A NaN bound makes every result NaN, which an epilogue does not do.
  if (epilogue.low != epilogue.low || epilogue.high != epilogue.high) return std::nullopt;
  return epilogue;
}

bool is_sum(const AttrBytes& bytes) {
  const auto attrs = attrs_of_bytes<ElementwiseAttrs>(bytes);
  return attrs.compute == BlockClass::f32 && attrs.op == ElementwiseOp::add && attrs.immediate_mask == 0 &&
         attrs.params[0].f == 1;
}

constexpr Fusion kFusion = {.elementwise = what_of, .as_epilogue = as_epilogue, .is_sum = is_sum};

}  // namespace

const Kernel kElementwise{
    .name = "elementwise", .run = run_elementwise, .parallel_from = kMinParallelElements, .fusion = &kFusion};

}  // namespace graft
