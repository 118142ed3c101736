#include "plan/fuse.h"

#include <cstring>
#include <optional>

#include "kernel/block_matmul.h"
#include "kernel/kernels.h"
#include "kernel/matmul.h"

namespace graft {
namespace {

std::optional<simd::Activation> activation_of(const Launch& launch) {
  if (launch.kernel != &kElementwise || launch.inputs.size() != 1) return std::nullopt;
  ElementwiseAttrs attrs;
  std::memcpy(&attrs, launch.attrs.data(), sizeof(attrs));
  if (attrs.compute != simd::BlockClass::f32 || attrs.immediate_mask != 0) return std::nullopt;
  switch (attrs.op) {
    case simd::ElementwiseOp::relu:
      return simd::Activation::relu;
    case simd::ElementwiseOp::silu:
      return simd::Activation::silu;
    case simd::ElementwiseOp::gelu_erf:
      return simd::Activation::gelu_erf;
    case simd::ElementwiseOp::gelu_tanh:
      return simd::Activation::gelu_tanh;
    default:
      return std::nullopt;
  }
}

bool is_whole(const Tensor& tensor, const Buffer& buffer) {
  return tensor.offset == 0 && tensor.dtype() == DType::f32 && tensor.desc.contiguous() &&
         static_cast<std::int64_t>(tensor.desc.byte_count()) == buffer.bytes;
}

}  // namespace

void fuse_activations(Plan& plan) {
  struct Uses {
    std::size_t count = 0;
    std::size_t writer = 0;  // the last launch that writes it
    std::size_t writes = 0;
  };
  std::vector<Uses> uses(plan.buffers.size());
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    for (const Tensor& t : plan.launches[i].inputs) ++uses[t.buffer].count;
    for (const Tensor& t : plan.launches[i].outputs) {
      ++uses[t.buffer].count;
      ++uses[t.buffer].writes;
      uses[t.buffer].writer = i;
    }
  }
  for (const UndoLaunch& undo : plan.undo)
    for (const Tensor& t : undo.launch.inputs) ++uses[t.buffer].count;

  for (Launch& launch : plan.launches) {
    const std::optional<simd::Activation> activation = activation_of(launch);
    if (!activation) continue;
    const Tensor& from = launch.inputs[0];
    const Tensor& to = launch.outputs[0];
    const Uses& sum = uses[from.buffer];
    // Written once, read here alone, and the result is new memory too: nothing in between can tell the difference.
    if (plan.buffers[from.buffer].segment != Segment::arena || sum.count != 2 || sum.writes != 1) continue;
    const Segment target = plan.buffers[to.buffer].segment;
    if ((target != Segment::arena && target != Segment::output) || uses[to.buffer].writes != 1) continue;
    Launch& product = plan.launches[sum.writer];
    // The attributes of both kernels begin with those of a product.
    if ((product.kernel != &kMatmul && product.kernel != &kBlockMatmul) || product.outputs[0].buffer != from.buffer)
      continue;
    const bool whole = is_whole(from, plan.buffers[from.buffer]) && is_whole(to, plan.buffers[to.buffer]) &&
                       is_whole(product.outputs[0], plan.buffers[from.buffer]);
    if (!whole) continue;
    MatmulAttrs attrs;
    std::memcpy(&attrs, product.attrs.data(), sizeof(attrs));
    if (attrs.activation != simd::Activation::none) continue;
    attrs.activation = *activation;
    std::memcpy(product.attrs.data(), &attrs, sizeof(attrs));
    product.outputs[0].buffer = to.buffer;
    launch.outputs.clear();
  }
}

}  // namespace graft
