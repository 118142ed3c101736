#include "kernel/conv/winograd_vec.h"

#include "kernel/conv/channel_epilogue.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// Multiplies by B^T: (a - c, b + c, c - b, b - d).
GRAFT_VEC void spread(vf& a, vf& b, vf& c, vf& d) {
  const vf second = b;
  a -= c;
  b += c;
  c -= second;
  d = second - d;
}

bool input(const float* const* d, i64 channels, float* v, i64 step) {
  vf wrong = zero();
  for (i64 c = 0; c < channels; c += kLanes) {
    const i64 n = channels - c;
    vf x[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) x[i][j] = load_some<F32>(d[4 * i + j] + c, n);
      spread(x[i][0], x[i][1], x[i][2], x[i][3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) spread(x[0][j], x[1][j], x[2][j], x[3][j]);
    // Every input is part of one of the corners, so their sum is finite only if all inputs are.
    const vf corners = (x[0][0] + x[0][3]) + (x[3][0] + x[3][3]);
    wrong += corners - corners;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) store_some<F32>(v + (4 * i + j) * step + c, x[i][j], n);
    }
  }
  return sum_lanes(wrong) == 0;
}

void output(const float* m, i64 step, const i64* positions, i64 channel, i64 width, const ChannelEpilogue& epilogue) {
  const Epilogue e = in_registers(epilogue);
  for (i64 c = 0; c < width; c += kLanes) {
    const i64 n = width - c;
    vf x[2][4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      vf column[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) column[i] = load_some<F32>(m + (4 * i + j) * step + c, n);
      x[0][j] = column[0] + column[1] + column[2];
      x[1][j] = column[1] - column[2] - column[3];
    }
    const vf bias = bias_of(e, channel + c, n);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      if (positions[2 * i] >= 0) put(e, x[i][0] + x[i][1] + x[i][2], bias, positions[2 * i], channel + c, n);
      if (positions[2 * i + 1] >= 0) put(e, x[i][1] - x[i][2] - x[i][3], bias, positions[2 * i + 1], channel + c, n);
    }
  }
}

}  // namespace

const WinogradTable kWinograd = {input, output};

}  // namespace graft::simd::GRAFT_ISA
