#pragma once

// The epilogue of a channels-last convolution. Included only by vector sources: see vec.h.

#include "kernel/conv/packed_conv_vec.h"
#include "kernel/matmul/tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();

// A ChannelEpilogue in registers: read through the pointer, its fields would be reloaded after each store of a result.
struct Epilogue {
  const float *bias, *residual;
  float* out;
  i64 residual_row, out_row;
  Activation activation;
  vf low, high;  // infinities without clamping: no effect
};

GRAFT_VEC Epilogue in_registers(const ChannelEpilogue& e) {
  return {e.bias,
          e.residual,
          e.out,
          e.residual_row,
          e.out_row,
          e.activation,
          splat(e.clamps ? e.low : -kInfinity),
          splat(e.clamps ? e.high : kInfinity)};
}

// The bias of n > 0 channels; -0 without a bias, which changes nothing.
GRAFT_VEC vf bias_of(const Epilogue& e, i64 channel, i64 n) {
  return e.bias == nullptr ? splat(-0.f) : load_some<F32>(e.bias + channel, n);
}

// Writes n > 0 channels of one position.
GRAFT_VEC void put(const Epilogue& e, vf x, vf bias, i64 position, i64 channel, i64 n) {
  float* to = e.out + position * e.out_row + channel;
  x += bias;
  if (e.residual != nullptr) x += load_some<F32>(e.residual + position * e.residual_row + channel, n);
  if (e.activation != Activation::none) x = activate(x, e.activation);
  x = at_most(at_least(x, e.low), e.high);
  if (n >= kLanes) {
    store(to, x);
  } else {
    store_n(to, x, static_cast<int>(n));
  }
}

}  // namespace
}  // namespace graft::simd::GRAFT_ISA
