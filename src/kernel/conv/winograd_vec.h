#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv_vec.h"

// The input and output transforms of Winograd's F(2 x 2, 3 x 3) on channels-last tensors.
namespace graft::simd {

inline constexpr int kWinogradProducts = 16;  // of a tile: [4, 4]

struct WinogradTable {
  // v[k * step + c] = (B^T d B)[k, c] of the inputs d[k][c] of a tile, k in [4, 4]. False if an input is not finite or
  // a result is too large.
  bool (*input)(const float* const* d, std::int64_t channels, float* v, std::int64_t step);

  // Outputs (A^T m A)[i, c] of the products m[k * step + c], c < width: output i in [2, 2] goes to position
  // positions[i], or is dropped if that is negative. Its channels start at `channel`.
  void (*output)(const float* m, std::int64_t step, const std::int64_t* positions, std::int64_t channel,
                 std::int64_t width, const ChannelEpilogue& epilogue);
};

GRAFT_TABLE("vec", WinogradTable, kWinograd, winograd)

}  // namespace graft::simd
