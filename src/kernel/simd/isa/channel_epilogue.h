#pragma once

// What becomes of the sums of a convolution whose channels lie beside each other. As vec.h: isa/*.cpp only.

#include "kernel/simd/isa/tile.h"
#include "kernel/simd/packed_conv.h"

namespace graft::simd::GRAFT_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();

// A ChannelEpilogue with what all channels share in registers: stores of results could change it where it lies.
struct Epilogue {
  const float *bias, *residual;
  float* out;
  i64 residual_row, out_row;
  Activation activation;
  bool clamps;
  vf low, high;  // without bounds the infinities, which change nothing
};

GRAFT_VEC Epilogue in_registers(const ChannelEpilogue& e) {
  return {e.bias,
          e.residual,
          e.out,
          e.residual_row,
          e.out_row,
          e.activation,
          e.clamps,
          splat(e.clamps ? e.low : -kInfinity),
          splat(e.clamps ? e.high : kInfinity)};
}

// Without a bias -0, which changes nothing; n > 0.
GRAFT_VEC vf bias_of(const Epilogue& e, i64 channel, i64 n) {
  return e.bias == nullptr ? splat(-0.f) : load_some<F32>(e.bias + channel, n);
}

// n channels of one position; n > 0.
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

// The sums of some positions and of `width` channels, which fill at most two vectors: those of a position lie `row`
// floats after those of the one before.
template <Activation kActivation>
GRAFT_VEC void put_rows_as(const Epilogue& e, const float* sums, i64 row, i64 positions, i64 first, i64 channel,
                           i64 width) {
  vf bias[2] = {bias_of(e, channel, width), zero()};
  if (width > kLanes) bias[1] = bias_of(e, channel + kLanes, width - kLanes);
  float* out = e.out + first * e.out_row + channel;
  const float* residual = e.residual + first * e.residual_row + channel;
  for (i64 r = 0; r < positions; ++r, sums += row, out += e.out_row, residual += e.residual_row)
    for (i64 n = 0; n < width; n += kLanes) {
      vf x = load(sums + n) + bias[n / kLanes];
      if (e.residual != nullptr) x += load_some<F32>(residual + n, width - n);
      x = activate(x, kActivation);
      if (e.clamps) x = at_most(at_least(x, e.low), e.high);
      store_some<F32>(out + n, x, width - n);
    }
}

GRAFT_LOCAL __attribute__((noinline)) void put_rows(const Epilogue& e, const float* sums, i64 row, i64 positions,
                                                    i64 first, i64 channel, i64 width) {
  const auto as = [&](auto put) { put(e, sums, row, positions, first, channel, width); };
  switch (e.activation) {
    case Activation::none:
      return as(put_rows_as<Activation::none>);
    case Activation::relu:
      return as(put_rows_as<Activation::relu>);
    case Activation::silu:
      return as(put_rows_as<Activation::silu>);
    case Activation::gelu_erf:
      return as(put_rows_as<Activation::gelu_erf>);
    case Activation::gelu_tanh:
      return as(put_rows_as<Activation::gelu_tanh>);
  }
}

}  // namespace
}  // namespace graft::simd::GRAFT_ISA
