#include "kernel/matmul/low_rank_vec.h"

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

template <typename T>
using Stored = typename T::Stored;

// Sums per row, which hide the latency of the fma where there is one row.
constexpr int kChains = 4;
constexpr i64 kStep = kChains * kLanes;

template <typename T, int R>
GRAFT_VEC void down_rows(const Stored<T>* x, i64 x_stride, i64 depth, const float* a, i64 q0, i64 q1, float* t,
                         i64 t_stride) {
  for (i64 q = q0; q < q1; ++q) {
    const float* row = a + q * depth;
    vf s[R][kChains];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) s[r][c] = zero();
    }
    i64 k = 0;
    for (; k + kStep <= depth; k += kStep) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        const vf some = load(row + k + c * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) s[r][c] = fma(T::load(x + r * x_stride + k + c * kLanes), some, s[r][c]);
      }
    }
    for (; k < depth; k += kLanes) {
      const vf some = load_some<F32>(row + k, depth - k);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) s[r][0] = fma(load_some<T>(x + r * x_stride + k, depth - k), some, s[r][0]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) t[r * t_stride + q] = sum_lanes((s[r][0] + s[r][1]) + (s[r][2] + s[r][3]));
  }
}

template <typename T, int R>
GRAFT_VEC void up_rows(const Stored<T>* y, i64 y_stride, Stored<T>* out, i64 out_stride, const float* t, i64 t_stride,
                       i64 rank, const float* b, i64 columns, i64 j0, i64 j1) {
  for (i64 j = j0; j < j1; j += kLanes) {
    vf sum[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[r] = zero();
    for (i64 q = 0; q < rank; ++q) {
      const vf row = load_some<F32>(b + q * columns + j, j1 - j);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r] = fma(splat(t[r * t_stride + q]), row, sum[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      store_some<T>(out + r * out_stride + j, load_some<T>(y + r * y_stride + j, j1 - j) + sum[r], j1 - j);
  }
}

template <typename T>
void down_as(const Stored<T>* x, i64 x_stride, int rows, i64 depth, const float* a, i64 q0, i64 q1, float* t,
             i64 t_stride) {
  // As many at once as there are registers for sums.
  int r = 0;
  if constexpr (kVectorRegisters == 32) {
    for (; r + 4 <= rows; r += 4)
      down_rows<T, 4>(x + r * x_stride, x_stride, depth, a, q0, q1, t + r * t_stride, t_stride);
  }
  for (; r + 2 <= rows; r += 2)
    down_rows<T, 2>(x + r * x_stride, x_stride, depth, a, q0, q1, t + r * t_stride, t_stride);
  if (r < rows) down_rows<T, 1>(x + r * x_stride, x_stride, depth, a, q0, q1, t + r * t_stride, t_stride);
}

template <typename T>
void up_as(const Stored<T>* y, i64 y_stride, Stored<T>* out, i64 out_stride, int rows, const float* t, i64 t_stride,
           i64 rank, const float* b, i64 columns, i64 j0, i64 j1) {
  if (rows == 4) return up_rows<T, 4>(y, y_stride, out, out_stride, t, t_stride, rank, b, columns, j0, j1);
  for (int r = 0; r < rows; ++r)
    up_rows<T, 1>(y + r * y_stride, y_stride, out + r * out_stride, out_stride, t + r * t_stride, t_stride, rank, b,
                  columns, j0, j1);
}

void down(const void* x, DType dtype, i64 x_stride, int rows, i64 depth, const float* a, i64 q0, i64 q1, float* t,
          i64 t_stride) {
  if (dtype == DType::f32) {
    down_as<F32>(static_cast<const float*>(x), x_stride, rows, depth, a, q0, q1, t, t_stride);
  } else if (dtype == DType::bf16) {
    down_as<BF16>(static_cast<const std::uint16_t*>(x), x_stride, rows, depth, a, q0, q1, t, t_stride);
  } else {
    down_as<F16>(static_cast<const std::uint16_t*>(x), x_stride, rows, depth, a, q0, q1, t, t_stride);
  }
}

void up(const void* y, i64 y_stride, void* out, i64 out_stride, DType dtype, int rows, const float* t, i64 t_stride,
        i64 rank, const float* b, i64 columns, i64 j0, i64 j1) {
  if (dtype == DType::f32) {
    up_as<F32>(static_cast<const float*>(y), y_stride, static_cast<float*>(out), out_stride, rows, t, t_stride, rank, b,
               columns, j0, j1);
  } else if (dtype == DType::bf16) {
    up_as<BF16>(static_cast<const std::uint16_t*>(y), y_stride, static_cast<std::uint16_t*>(out), out_stride, rows, t,
                t_stride, rank, b, columns, j0, j1);
  } else {
    up_as<F16>(static_cast<const std::uint16_t*>(y), y_stride, static_cast<std::uint16_t*>(out), out_stride, rows, t,
               t_stride, rank, b, columns, j0, j1);
  }
}

}  // namespace

const LowRankTable kLowRank = {down, up};

}  // namespace graft::simd::GRAFT_ISA
