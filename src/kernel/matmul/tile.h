#pragma once

// Register tiles of matrix products, used by matmul.cpp and attention.cpp. Included only by vector sources: see vec.h.

#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/vec.h"

#define GRAFT_LOCAL static __attribute__((unused))

namespace graft::simd::GRAFT_ISA {
namespace {

// A tile of kTileRows x 2 vectors fills the register file: 24 + 2 + broadcasts of 32 with AVX-512, 12 + 2 of 16 else.
constexpr int kTileRows = kVectorRegisters == 32 ? 12 : 6;
constexpr int kPanel = 2 * kLanes;
GRAFT_VEC float get(const void* data, DType dtype, i64 index) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[index];
  const std::uint16_t h = static_cast<const std::uint16_t*>(data)[index];
  return dtype == DType::bf16 ? bf16_to_float(h) : f16_to_float(h);
}

GRAFT_VEC void put(void* data, DType dtype, i64 index, float x) {
  if (dtype == DType::f32) {
    static_cast<float*>(data)[index] = x;
  } else if (dtype == DType::bf16) {
    static_cast<std::uint16_t*>(data)[index] = float_to_bf16(x);
  } else {
    static_cast<std::uint16_t*>(data)[index] = float_to_f16(x);
  }
}

GRAFT_VEC const void* at(const void* data, DType dtype, i64 index) {
  return static_cast<const char*>(data) + index * (dtype == DType::f32 ? 4 : 2);
}

template <typename T>
GRAFT_VEC void widen_as(const typename T::Stored* from, i64 stride, i64 n, float* to) {
  i64 i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) store(to + i, T::load(from + i));
  }
  for (; i < n; ++i) to[i] = T::get(from + i * stride);
}

GRAFT_LOCAL void widen(const void* from, DType dtype, i64 stride, i64 n, float* to) {
  if (dtype == DType::f32) {
    widen_as<F32>(static_cast<const float*>(from), stride, n, to);
  } else if (dtype == DType::bf16) {
    widen_as<BF16>(static_cast<const std::uint16_t*>(from), stride, n, to);
  } else {
    widen_as<F16>(static_cast<const std::uint16_t*>(from), stride, n, to);
  }
}

// --- packing ---

GRAFT_VEC v4 load4(const float* p) { return *reinterpret_cast<const v4_unaligned*>(p); }
GRAFT_VEC void store4(float* p, v4 v) { *reinterpret_cast<v4_unaligned*>(p) = v; }

GRAFT_VEC void transpose4(v4& a, v4& b, v4& c, v4& d) {
  const v4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const v4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const v4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const v4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  b = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  c = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  d = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

GRAFT_LOCAL void pack(const MatrixView& v, i64 depth, i64 columns, i64 panel, i64 k0, i64 k1, float* packed) {
  float* to = packed + panel * kPanel * depth;
  const i64 j0 = panel * kPanel;
  const int width = static_cast<int>(columns - j0 < kPanel ? columns - j0 : kPanel);
  if (v.row == 1 && v.col != 1) {
    // V's columns are contiguous: transpose in blocks of 4 x 4.
    constexpr i64 kStep = 64;
    float lines[4][kStep];
    for (i64 k = k0; k < k1; k += kStep) {
      const i64 n = k1 - k < kStep ? k1 - k : kStep;
      for (int j = 0; j < kPanel; j += 4) {
        const float* line[4];
        for (int i = 0; i < 4; ++i) {
          line[i] = lines[i];
          if (j + i >= width) {
            for (i64 x = 0; x < n; ++x) lines[i][x] = 0;
          } else if (v.dtype == DType::f32) {
            line[i] = static_cast<const float*>(v.data) + (j0 + j + i) * v.col + k;
          } else {
            widen(at(v.data, v.dtype, (j0 + j + i) * v.col + k), v.dtype, 1, n, lines[i]);
          }
        }
        float* column = to + k * kPanel + j;
        i64 x = 0;
        for (; x + 4 <= n; x += 4) {
          v4 a = load4(line[0] + x), b = load4(line[1] + x), c = load4(line[2] + x), d = load4(line[3] + x);
          transpose4(a, b, c, d);
          store4(column + x * kPanel, a);
          store4(column + (x + 1) * kPanel, b);
          store4(column + (x + 2) * kPanel, c);
          store4(column + (x + 3) * kPanel, d);
        }
        for (; x < n; ++x) {
          for (int i = 0; i < 4; ++i) column[x * kPanel + i] = line[i][x];
        }
      }
    }
    return;
  }
  for (i64 k = k0; k < k1; ++k) {
    float* row = to + k * kPanel;
    widen(at(v.data, v.dtype, k * v.row + j0 * v.col), v.dtype, v.col, width, row);
    for (int j = width; j < kPanel; ++j) row[j] = 0;
  }
}

// --- tiles ---

// Steps of k that tiles of one to three rows sum independently, to hide the latency of the fma. Larger ones do not, not
// even those of one vector: a row's bits are the same in each of them, and so whatever rows a product of nine or more
// rows is divided into.
constexpr int independent_steps(int r, int nv) { return r > 3 ? 1 : r * nv <= 2 ? 4 : 2; }

// The sums of R rows of NV vectors. They stay in registers only where every loop over them is unrolled.
template <int R, int NV, int kSteps = independent_steps(R, NV)>
struct TileSums {
  vf c[kSteps][R][NV];
};

template <int R, int NV, int kSteps>
GRAFT_VEC void clear(TileSums<R, NV, kSteps>& sums) {
#pragma GCC unroll 4
  for (int x = 0; x < kSteps; ++x) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) sums.c[x][r][n] = zero();
    }
  }
}

template <int R, int NV, int kSteps>
GRAFT_VEC vf total(const TileSums<R, NV, kSteps>& sums, int r, int n) {
  vf sum = sums.c[0][r][n];
#pragma GCC unroll 4
  for (int x = 1; x < kSteps; ++x) sum += sums.c[x][r][n];
  return sum;
}

// Rows of S that a tile prefetches while it computes; the first is `offset` elements past the tile's own.
struct RowsAhead {
  i64 offset = 0, rows = 0;
};

// sums[r] += S[r, k] * V[k, ...] over `depth` steps of k; S has k stride 1. Advances v to the end.
template <int R, int NV, int kSteps>
GRAFT_VEC void add_products(const float* s, i64 s_row, const float*& v, i64 v_row, i64 depth,
                            TileSums<R, NV, kSteps>& sums, RowsAhead ahead = {}) {
  // Rows in groups of three, so that one pointer and one stride address a group (x86 has 16 general registers).
  const float* group[(R + 2) / 3];
  group[0] = s;
#pragma GCC unroll 4
  for (int g = 1; g < (R + 2) / 3; ++g) group[g] = group[g - 1] + 3 * s_row;
  const auto step = [&](vf(&c)[R][NV]) __attribute__((always_inline)) {
    vf x[NV];
#pragma GCC unroll 2
    for (int n = 0; n < NV; ++n) x[n] = load(v + n * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const vf b = splat(group[r / 3][(r % 3) * s_row]);
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) c[r][n] = fma(b, x[n], c[r][n]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < (R + 2) / 3; ++g) ++group[g];
    v += v_row;
  };
  i64 k = 0;
  const auto steps_to = [&](i64 end) __attribute__((always_inline)) {
    for (; k + kSteps <= end; k += kSteps) {
#pragma GCC unroll 4
      for (int x = 0; x < kSteps; ++x) step(sums.c[x]);
    }
  };
  constexpr i64 kLine = 16;  // f32 of a cache line
  if (ahead.rows > 0) {
    while (k + kLine <= depth) {
      // Into the second-level cache: panels of V stream through the first before these rows are needed.
      for (i64 r = 0; r < ahead.rows; ++r) __builtin_prefetch(s + ahead.offset + r * s_row + k, 0, 2);
      steps_to(k + kLine);
    }
  }
  steps_to(depth);
  for (; k < depth; ++k) step(sums.c[0]);
}

// acc[r][0 .. NV vectors) (+)= S[r, k] * V[k, ...] over `depth` steps of k; acc rows are kPanel apart.
template <int R, int NV, int kSteps = independent_steps(R, NV)>
void tile(const float* s, i64 s_row, const float* v, i64 v_row, i64 depth, float* acc, bool accumulate,
          RowsAhead ahead) {
  TileSums<R, NV, kSteps> sums;
  clear(sums);
  add_products(s, s_row, v, v_row, depth, sums, ahead);
  // A block is summed on its own first, so that the rounding error does not grow with the sums before it.
  const auto put = [&](bool add) __attribute__((always_inline)) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < NV; ++n) {
        float* to = acc + r * kPanel + n * kLanes;
        store(to, add ? load(to) + total(sums, r, n) : total(sums, r, n));
      }
    }
  };
  if (accumulate) {
    put(true);
  } else {
    put(false);
  }
}

using Tile = void (*)(const float*, i64, const float*, i64, i64, float*, bool, RowsAhead);

// Indexed by the number of vectors of columns, then by rows.
constexpr ByRows<Tile, kTileRows> kTiles[2] = {by_rows<Tile, kTileRows>([]<int R>() -> Tile { return tile<R, 1>; }),
                                               by_rows<Tile, kTileRows>([]<int R>() -> Tile { return tile<R, 2>; })};

// --- epilogue ---

GRAFT_VEC vf activate(vf x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return relu(x);
    case Activation::silu:
      return silu(x);
    case Activation::gelu_erf:
      return gelu_erf(x);
    case Activation::gelu_tanh:
      return gelu_tanh(x);
  }
  return x;
}

// kLanes values of the bias at (r, j ... j + n), lanes beyond n unspecified.
GRAFT_VEC vf bias_at(const Epilogue& e, i64 r, i64 j, i64 n) {
  const i64 index = r * e.bias_r + j * e.bias_j;
  if (e.bias_j == 0) return splat(get(e.bias, e.bias_dtype, index));
  if (e.bias_j == 1 && e.bias_dtype == DType::f32) {
    return load_some<F32>(static_cast<const float*>(e.bias) + index, n);
  }
  vf v{};
  for (int i = 0; i < (n < kLanes ? static_cast<int>(n) : kLanes); ++i) {
    v[i] = get(e.bias, e.bias_dtype, index + i * e.bias_j);
  }
  return v;
}

GRAFT_VEC vf apply(const Epilogue& e, vf x, i64 r, i64 j, i64 n) {
  if (e.alpha != 1.f) x *= e.alpha;
  if (e.bias != nullptr) {
    const vf b = bias_at(e, r, j, n);
    x = e.beta == 1.f ? x + b : fma(splat(e.beta), b, x);
  }
  return activate(x, e.activation);
}

// Writes rows x width values of `acc` (rows kPanel apart) to O[r0 + r, j0 + j].
GRAFT_LOCAL void finish(const Epilogue& e, float* acc, i64 r0, int rows, i64 j0, int width) {
  if (e.alpha != 1.f || e.bias != nullptr || e.activation != Activation::none) {
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < width; j += kLanes) {
        float* p = acc + r * kPanel + j;
        store(p, apply(e, load(p), r0 + r, j0 + j, width - j));
      }
    }
  }
  if (e.out_j == 1) {
    for (int r = 0; r < rows; ++r) {
      const float* from = acc + r * kPanel;
      const i64 index = (r0 + r) * e.out_r + j0;
      if (e.out_dtype == DType::f32) {
        float* to = static_cast<float*>(e.out) + index;
        for (int j = 0; j < width; j += kLanes) store_some<F32>(to + j, load(from + j), width - j);
      } else if (e.out_dtype == DType::bf16) {
        std::uint16_t* to = static_cast<std::uint16_t*>(e.out) + index;
        for (int j = 0; j < width; j += kLanes) store_some<BF16>(to + j, load(from + j), width - j);
      } else {
        std::uint16_t* to = static_cast<std::uint16_t*>(e.out) + index;
        for (int j = 0; j < width; j += kLanes) store_some<F16>(to + j, load(from + j), width - j);
      }
    }
    return;
  }
  int r = 0;
  if (e.out_r == 1 && e.out_dtype == DType::f32) {
    float* out = static_cast<float*>(e.out) + r0;
    for (; r + 4 <= rows; r += 4) {
      const float* from = acc + r * kPanel;
      int j = 0;
      for (; j + 4 <= width; j += 4) {
        v4 a = load4(from + j), b = load4(from + kPanel + j), c = load4(from + 2 * kPanel + j);
        v4 d = load4(from + 3 * kPanel + j);
        transpose4(a, b, c, d);
        float* to = out + (j0 + j) * e.out_j + r;
        store4(to, a);
        store4(to + e.out_j, b);
        store4(to + 2 * e.out_j, c);
        store4(to + 3 * e.out_j, d);
      }
      for (; j < width; ++j) {
        for (int i = 0; i < 4; ++i) out[(j0 + j) * e.out_j + r + i] = from[i * kPanel + j];
      }
    }
  }
  for (; r < rows; ++r) {
    for (int j = 0; j < width; ++j) {
      put(e.out, e.out_dtype, (r0 + r) * e.out_r + (j0 + j) * e.out_j, acc[r * kPanel + j]);
    }
  }
}

GRAFT_VEC i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

// --- matrices of tiles ---

// A block of S of kTileRows x kDepthBlock f32 stays in the first-level cache while panels of V stream past it.
constexpr i64 kDepthBlock = 512;
// Partial sums of a chunk of tiles live on the stack between blocks of k: 48 x 256 f32 is 48 KiB.
constexpr i64 kChunkRows = 48;
constexpr i64 kChunkPanels = 256 / kPanel;

// Computes O for rows [r0, r1) and panels [p0, p1) of `columns` columns, in blocks of `block` steps of k:
// take_rows(r, rows, k, n) prepares S[r ... r + rows, k ... k + n], multiply(rows, p, width, k, n, acc) adds its
// product with panel p to acc (sets acc where k is 0). finish() is the epilogue.
template <typename TakeRows, typename Multiply>
GRAFT_VEC void for_each_tile(i64 depth, i64 block, i64 columns, i64 r0, i64 r1, i64 p0, i64 p1, const Epilogue& e,
                             TakeRows take_rows, Multiply multiply) {
  alignas(64) float acc[kChunkRows / kTileRows * kChunkPanels][kTileRows * kPanel];
  for (i64 row = r0; row < r1; row += kChunkRows) {
    const i64 row_end = smaller(row + kChunkRows, r1);
    for (i64 panel = p0; panel < p1; panel += kChunkPanels) {
      const i64 panel_end = smaller(panel + kChunkPanels, p1);
      for (i64 k = 0; k < depth; k += block) {
        const i64 n = smaller(block, depth - k);
        const bool last = k + n == depth;
        i64 slot = 0;
        for (i64 r = row; r < row_end; r += kTileRows) {
          const int rows = static_cast<int>(smaller(kTileRows, row_end - r));
          take_rows(r, rows, k, n);
          for (i64 p = panel; p < panel_end; ++p, ++slot) {
            const int width = static_cast<int>(smaller(kPanel, columns - p * kPanel));
            multiply(rows, p, width, k, n, acc[slot]);
            if (last) finish(e, acc[slot], r, rows, p * kPanel, width);
          }
        }
      }
    }
  }
}

// --- GEMV and skinny GEMM: dot products ---

constexpr int kDotColumns = kVectorRegisters == 32 ? 6 : 3;
constexpr int kDotRows = 4;
// A GEMV keeps more columns, and so more sums and reads, in flight.
constexpr int kDotColumnsOfOne = 8;
// Columns of one dot_block_of() block, for `rows` rows in all.
GRAFT_VEC int dot_columns(i64 rows) { return rows == 1 ? kDotColumnsOfOne : kDotColumns; }
constexpr int kDotSums = 4 * kDotColumns > kDotColumnsOfOne ? 4 * kDotColumns : kDotColumnsOfOne;
static_assert(kDotSums % 4 == 0);

// sums[p * Q + q] = skinny[p] . wide[q] over `depth`, for P rows and Q columns; up to three more floats are
// overwritten.
template <typename T, int P, int Q>
GRAFT_VEC void dot_tile(const float* skinny, i64 skinny_stride, const typename T::Stored* wide, i64 wide_stride,
                        i64 depth, float* sums) {
  vf c[P][Q];
  for (int p = 0; p < P; ++p) {
    for (int q = 0; q < Q; ++q) c[p][q] = zero();
  }
  i64 k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    vf a[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) a[p] = load(skinny + p * skinny_stride + k);
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      // A GEMV is bound by memory: the next block is prefetched (into the second-level cache: a prefetch into the first
      // costs as much as a read).
      if constexpr (Q > 1) __builtin_prefetch(wide + (q + Q) * wide_stride + k, 0, 2);
      const vf b = T::load(wide + q * wide_stride + k);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) c[p][q] = fma(a[p], b, c[p][q]);
    }
  }
  if (k < depth) {
    const int n = static_cast<int>(depth - k);
    vf a[P];
    for (int p = 0; p < P; ++p) a[p] = load_n(skinny + p * skinny_stride + k, n);
    for (int q = 0; q < Q; ++q) {
      const vf b = load_some<T>(wide + q * wide_stride + k, n);
      for (int p = 0; p < P; ++p) c[p][q] = fma(a[p], b, c[p][q]);
    }
  }
  // Always by fours: the order in which the lanes of a sum are added must not depend on the block that it is part of.
  constexpr int kLast = P * Q - 1;
#pragma GCC unroll 8
  for (int i = 0; i <= kLast; i += 4) {
    const int i1 = i + 1 < kLast ? i + 1 : kLast, i2 = i + 2 < kLast ? i + 2 : kLast,
              i3 = i + 3 < kLast ? i + 3 : kLast;
    store4(sums + i, sum_lanes4(c[i / Q][i % Q], c[i1 / Q][i1 % Q], c[i2 / Q][i2 % Q], c[i3 / Q][i3 % Q]));
  }
}

template <typename T, int P, int Q>
void dot_block(const float* skinny, i64 skinny_stride, const void* wide, i64 wide_stride, i64 depth, i64 q,
               float* sums) {
  dot_tile<T, P, Q>(skinny, skinny_stride, static_cast<const typename T::Stored*>(wide) + q * wide_stride, wide_stride,
                    depth, sums);
}

using DotBlock = void (*)(const float*, i64, const void*, i64, i64, i64, float*);

// The function for a block of p rows and 1 or dot_columns() columns.
template <typename T>
GRAFT_VEC DotBlock dot_block_of(int p, int columns) {
  switch (p) {
    case 1:
      return columns == 1             ? dot_block<T, 1, 1>
             : columns == kDotColumns ? dot_block<T, 1, kDotColumns>
                                      : dot_block<T, 1, kDotColumnsOfOne>;
    case 2:
      return columns == 1 ? dot_block<T, 2, 1> : dot_block<T, 2, kDotColumns>;
    case 3:
      return columns == 1 ? dot_block<T, 3, 1> : dot_block<T, 3, kDotColumns>;
    default:
      return columns == 1 ? dot_block<T, 4, 1> : dot_block<T, 4, kDotColumns>;
  }
}

}  // namespace
}  // namespace graft::simd::GRAFT_ISA
