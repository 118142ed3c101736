#include "pass/launch/fuse.h"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "kernel/conv/packed_conv.h"
#include "kernel/conv/winograd_conv.h"
#include "kernel/elementwise/elementwise.h"
#include "kernel/matmul/block_matmul.h"
#include "kernel/matmul/matmul.h"
#include "kernel/matmul/packed_pairs.h"
#include "lowering/lowering.h"
#include "lowering/uses.h"

namespace graft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What is done to each element of a sum.
struct Finish {
  simd::Activation activation = simd::Activation::none;
  bool clamps = false;
  float low = -kInfinity, high = kInfinity;
};

std::optional<ElementwiseAttrs> elementwise_f32(const Launch& launch) {
  if (launch.kernel != &kElementwise) return std::nullopt;
  const auto attrs = attrs_of<ElementwiseAttrs>(launch);
  if (attrs.compute != simd::BlockClass::f32) return std::nullopt;
  return attrs;
}

std::optional<Finish> finish_of(const Launch& launch) {
  const auto attrs = elementwise_f32(launch);
  if (!attrs || launch.inputs.size() != 1) return std::nullopt;
  const auto bound = [&](int operand) { return static_cast<float>(attrs->immediates[operand].f); };
  if (attrs->immediate_mask == 0) {
    switch (attrs->op) {
      case simd::ElementwiseOp::relu:
        return Finish{simd::Activation::relu};
      case simd::ElementwiseOp::silu:
        return Finish{simd::Activation::silu};
      case simd::ElementwiseOp::gelu_erf:
        return Finish{simd::Activation::gelu_erf};
      case simd::ElementwiseOp::gelu_tanh:
        return Finish{simd::Activation::gelu_tanh};
      default:
        return std::nullopt;
    }
  }
  Finish finish;
  finish.clamps = true;
  if (attrs->op == simd::ElementwiseOp::clamp && attrs->immediate_mask == 0b110) {
    finish.low = bound(1);
    finish.high = bound(2);
  } else if (attrs->op == simd::ElementwiseOp::maximum && attrs->immediate_mask == 0b10) {
    finish.low = bound(1);
  } else if (attrs->op == simd::ElementwiseOp::minimum && attrs->immediate_mask == 0b10) {
    finish.high = bound(1);
  } else {
    return std::nullopt;
  }
  // With a bound that is NaN everything is.
  return finish.low == finish.low && finish.high == finish.high ? std::optional(finish) : std::nullopt;
}

bool is_whole(const Tensor& tensor, const Buffer& buffer) {
  return tensor.offset == 0 && tensor.dtype() == DType::f32 && is_dense(tensor.desc) &&
         static_cast<std::int64_t>(tensor.desc.byte_count()) == buffer.bytes;
}

bool same_layout(const TensorDesc& a, const TensorDesc& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  for (int d = 0; d < a.rank(); ++d)
    if (a.shape[d] != 1 && a.strides[static_cast<std::size_t>(d)] != b.strides[static_cast<std::size_t>(d)])
      return false;
  return true;
}

bool is_product(const Launch& launch) { return launch.kernel == &kMatmul || launch.kernel == &kBlockMatmul; }
bool is_packed_conv(const Launch& launch) {
  return launch.kernel == &kPackedConv || launch.kernel == &kPackedDepthwiseConv || launch.kernel == &kWinogradConv ||
         launch.kernel == &kPackedLinear || launch.kernel == &kPackedPairs;
}

class Fuser {
 public:
  explicit Fuser(LaunchSequence& sequence) : sequence_(sequence), uses_(uses_of(sequence)) {}

  void run() {
    for (std::size_t i = 0; i < sequence_.launches.size(); ++i)
      if (!add_residual(i)) finish(i);
  }

 private:
  // The launch that wrote all of `from`, when it is read for `to` alone and both lie in memory in the same way: then
  // nothing can tell whether that launch writes `to` instead.
  Launch* source(const Tensor& from, const Tensor& to) const {
    const BufferUses& sum = uses_[from.buffer];
    if (sequence_.buffers[from.buffer].segment != Segment::arena || sum.reads != 1 || sum.writes != 1) return nullptr;
    const Segment target = sequence_.buffers[to.buffer].segment;
    if ((target != Segment::arena && target != Segment::output) || uses_[to.buffer].writes != 1) return nullptr;
    Launch& launch = sequence_.launches[sum.writer];
    if (launch.outputs.size() != 1 || launch.outputs[0].buffer != from.buffer) return nullptr;
    const bool whole = is_whole(from, sequence_.buffers[from.buffer]) && is_whole(to, sequence_.buffers[to.buffer]) &&
                       is_whole(launch.outputs[0], sequence_.buffers[from.buffer]) && same_layout(from.desc, to.desc);
    return whole ? &launch : nullptr;
  }

  void finish(std::size_t i) {
    Launch& launch = sequence_.launches[i];
    const std::optional<Finish> what = finish_of(launch);
    if (!what) return;
    Launch* sum = source(launch.inputs[0], launch.outputs[0]);
    if (sum == nullptr) return;
    if (is_product(*sum) && !what->clamps) {
      auto attrs = attrs_of<MatmulAttrs>(*sum);  // the attributes of both kernels begin with these
      if (attrs.activation != simd::Activation::none) return;
      attrs.activation = what->activation;
      set_attrs(*sum, attrs);
    } else if (is_packed_conv(*sum)) {
      auto attrs = attrs_of<PackedConvAttrs>(*sum);
      if (attrs.activation != simd::Activation::none || attrs.clamps != 0) return;
      attrs.activation = what->activation;
      attrs.clamps = what->clamps ? 1 : 0;
      attrs.low = what->low;
      attrs.high = what->high;
      set_attrs(*sum, attrs);
    } else {
      return;
    }
    take_output(*sum, launch);
  }

  void take_output(Launch& sum, Launch& launch) {
    const BufferId to = launch.outputs[0].buffer;
    uses_[to].writer = static_cast<std::size_t>(&sum - sequence_.launches.data());
    sum.outputs[0].buffer = to;
    launch.outputs.clear();
  }

  // A sum of a convolution's result and another tensor: the convolution adds that on the way out, in the place of the
  // addition, where the other tensor is there.
  bool add_residual(std::size_t i) {
    Launch& launch = sequence_.launches[i];
    const auto add = elementwise_f32(launch);
    if (!add || add->op != simd::ElementwiseOp::add || add->immediate_mask != 0 || add->params[0].f != 1) return false;
    if (launch.inputs[0].buffer == launch.inputs[1].buffer) return false;
    // The later of the two: the other one is then there.
    std::size_t first = uses_[launch.inputs[0].buffer].writer > uses_[launch.inputs[1].buffer].writer ? 0 : 1;
    for (int tries = 0; tries < 2; ++tries, first = 1 - first) {
      Launch* sum = source(launch.inputs[first], launch.outputs[0]);
      const Tensor other = launch.inputs[1 - first];
      if (sum == nullptr || !is_packed_conv(*sum) || !same_layout(other.desc, launch.outputs[0].desc)) continue;
      auto attrs = attrs_of<PackedConvAttrs>(*sum);
      if (attrs.activation != simd::Activation::none || attrs.clamps != 0 || attrs.has_residual != 0) continue;
      if (overwritten(*sum, i)) continue;
      attrs.has_residual = 1;
      set_attrs(*sum, attrs);
      Launch moved = *sum;
      moved.inputs.push_back(other);
      moved.outputs[0].buffer = launch.outputs[0].buffer;
      sum->outputs.clear();
      launch = std::move(moved);
      return true;
    }
    return false;
  }

  // Whether a launch before `end` writes what this one reads.
  bool overwritten(const Launch& launch, std::size_t end) const {
    for (auto i = static_cast<std::size_t>(&launch - sequence_.launches.data()) + 1; i < end; ++i)
      for (const Tensor& written : sequence_.launches[i].outputs)
        for (const Tensor& read : launch.inputs)
          if (written.buffer == read.buffer) return true;
    return false;
  }

  LaunchSequence& sequence_;
  std::vector<BufferUses> uses_;
};

}  // namespace

void fuse_sums(LaunchSequence& sequence) { Fuser(sequence).run(); }

}  // namespace graft
