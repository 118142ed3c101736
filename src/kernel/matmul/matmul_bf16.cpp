// Compiled for AVX-512 with BF16 only: see cmake/GraftLibrary.cmake.
#include "kernel/matmul/matmul_vec.h"

#include "kernel/matmul/pair_tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// n elements from `index` on, `stride` apart, rounded to bf16.
void take(const MatrixView& m, i64 index, i64 stride, i64 n, std::uint16_t* to) {
  if (m.dtype == DType::f32) {
    const float* from = static_cast<const float*>(m.data) + index;
    if (stride == 1) return round_row(from, n, to);
    for (i64 i = 0; i < n; ++i) to[i] = float_to_bf16(from[i * stride]);
    return;
  }
  const std::uint16_t* from = static_cast<const std::uint16_t*>(m.data) + index;
  if (stride == 1) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(*to));
    return;
  }
  for (i64 i = 0; i < n; ++i) to[i] = from[i * stride];
}

void pack_pairs(const MatrixView& v, i64 depth, i64 columns, i64 panel, i64 k0, i64 k1, Pair* packed) {
  Pair* to = packed + panel * kPanel * ((depth + 1) / 2);
  const i64 j0 = panel * kPanel;
  const i64 width = smaller(kPanel, columns - j0);
  if (v.row == 1 && v.col != 1) {
    // V's columns are contiguous: transpose pairs as 32-bit words.
    constexpr i64 kStep = 128;
    alignas(64) std::uint16_t lines[kPanel][kStep];
    for (i64 k = k0; k < k1; k += kStep) {
      const i64 n = smaller(kStep, k1 - k);
      for (i64 j = 0; j < width; ++j) {
        take(v, k + (j0 + j) * v.col, 1, n, lines[j]);
        if (n % 2 != 0) lines[j][n] = 0;
      }
      pack({lines, DType::f32, 1, kStep / 2}, 0, width, 0, 0, (n + 1) / 2,
           reinterpret_cast<float*>(to + k / 2 * kPanel));
    }
    return;
  }
  alignas(64) std::uint16_t rows[2][kPanel];
  for (i64 k = k0; k < k1; k += 2) {
    const bool both = k + 1 < k1;
    for (i64 i = 0; i <= (both ? 1 : 0); ++i) take(v, (k + i) * v.row + j0 * v.col, v.col, width, rows[i]);
    Pair* pairs = to + k / 2 * kPanel;
    pair_rows(rows[0], both ? rows[1] : nullptr, width, pairs);
    for (i64 j = width; j < kPanel; ++j) pairs[j] = 0;
  }
}

void pair_tiles(const MatrixView& s, const Pair* packed, i64 depth, i64 columns, i64 r0, i64 r1, i64 p0, i64 p1,
                const Epilogue& e) {
  constexpr i64 kBlock = 2 * kDepthBlock;
  alignas(64) std::uint16_t s_block[kTileRows * kBlock];
  const char* sp = nullptr;
  i64 s_row = 0, next_rows = 0;
  const auto take_rows = [&](i64 r, int rows, i64 k, i64 n) {
    if (s.dtype == DType::bf16 && s.col == 1 && n % 2 == 0) {
      sp = static_cast<const char*>(s.data) + (r * s.row + k) * 2;
      s_row = s.row * 2;
      next_rows = kTileRows * s_row;
      return;
    }
    for (int i = 0; i < rows; ++i) {
      take(s, (r + i) * s.row + k * s.col, s.col, n, s_block + i * kBlock);
      if (n % 2 != 0) s_block[i * kBlock + n] = 0;
    }
    sp = reinterpret_cast<const char*>(s_block);
    s_row = kBlock * 2;
    next_rows = 0;
  };
  const auto multiply = [&](int rows, i64 p, int width, i64 k, i64 n, float* acc) {
    kPairTiles[width > kLanes][rows - 1](sp, s_row, sizeof(Pair), packed + (p * ((depth + 1) / 2) + k / 2) * kPanel,
                                         (n + 1) / 2, acc, k > 0, 1.f, p == p0 ? next_rows : 0);
  };
  for_each_tile(depth, kBlock, columns, r0, r1, p0, p1, e, take_rows, multiply);
}

}  // namespace

const PairProducts kPairProducts = {pack_pairs, pair_tiles};

}  // namespace graft::simd::GRAFT_ISA
