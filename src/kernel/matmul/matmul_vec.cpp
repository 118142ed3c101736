#include "kernel/matmul/matmul_vec.h"

#include "kernel/matmul/tile.h"

namespace graft::simd::GRAFT_ISA {
namespace {

void tiles(const MatrixView& s, const MatrixView& v, const float* packed, i64 depth, i64 columns, i64 r0, i64 r1,
           i64 p0, i64 p1, const Epilogue& e) {
  alignas(64) float s_block[kTileRows * kDepthBlock];
  alignas(64) float v_block[kDepthBlock * kPanel];
  const bool s_in_place = s.dtype == DType::f32 && s.col == 1;
  const float* sp = s_block;
  const i64 s_row = s_in_place ? s.row : kDepthBlock;
  const auto take_rows = [&](i64 r, int rows, i64 k, i64 n) {
    if (s_in_place) {
      sp = static_cast<const float*>(s.data) + r * s.row + k;
      return;
    }
    for (int i = 0; i < rows; ++i) {
      widen(at(s.data, s.dtype, (r + i) * s.row + k * s.col), s.dtype, s.col, n, s_block + i * kDepthBlock);
    }
  };
  const auto multiply = [&](int rows, i64 p, int width, i64 k, i64 n, float* acc) {
    const float* vp;
    i64 v_row = kPanel;
    if (packed != nullptr) {
      vp = packed + p * kPanel * depth + k * kPanel;
    } else if (width == kPanel) {
      vp = static_cast<const float*>(v.data) + k * v.row + p * kPanel;
      v_row = v.row;
    } else {
      // Whole vectors read in place would pass the end of the matrix: the last panel is copied.
      const float* from = static_cast<const float*>(v.data) + k * v.row + p * kPanel;
      for (i64 x = 0; x < n; ++x) {
        for (int j = 0; j < kPanel; ++j) v_block[x * kPanel + j] = j < width ? from[x * v.row + j] : 0.f;
      }
      vp = v_block;
    }
    // The first panel would wait for memory on rows of S: each panel of the row before prefetches a part of them.
    RowsAhead ahead;
    if (s_in_place && p - p0 < kChunkPanels) {
      const i64 panels = smaller(p1 - p0, kChunkPanels), each = (kTileRows + panels - 1) / panels;
      const i64 first = smaller((p - p0) * each, kTileRows);
      ahead = {(kTileRows + first) * s_row, smaller((p - p0 + 1) * each, kTileRows) - first};
    }
    kTiles[width > kLanes][rows - 1](sp, s_row, vp, v_row, n, acc, k > 0, ahead);
  };
  for_each_tile(depth, kDepthBlock, columns, r0, r1, p0, p1, e, take_rows, multiply);
}

// --- GEMV and skinny GEMM ---

// Measured (Zen 4): a product of 12, 24 and 40 rows by bf16 takes 0.57, 0.72 and 0.84 of tiles with AVX-512; of 12, 24
// and 32 rows 0.67, 0.94 and 1.08 with AVX2.
constexpr int kHalfDotRows = kVectorRegisters == 32 ? 40 : 24;
static_assert(kHalfDotRows >= kMaxDotRows);

void dot(const float* skinny, i64 skinny_stride, int rows, const MatrixView& wide, i64 depth, i64 q0, i64 q1,
         const Epilogue& epilogue) {
  // Results are gathered so that the epilogue works on whole vectors along q: there r is p and j is q.
  constexpr i64 kGather = 2 * kPanel;
  alignas(64) float gathered[kHalfDotRows][kGather];
  alignas(16) float sums[kDotSums];
  Epilogue e = epilogue;
  e.bias_r = epilogue.bias_j;
  e.bias_j = epilogue.bias_r;
  e.out_r = epilogue.out_j;
  e.out_j = epilogue.out_r;
  for (i64 start = q0; start < q1; start += kGather) {
    const i64 end = smaller(start + kGather, q1);
    for (i64 q = start; q < end;) {
      const int step = end - q >= dot_columns(rows) ? dot_columns(rows) : 1;
      for (int p = 0; p < rows; p += kDotRows) {
        const int count = static_cast<int>(smaller(kDotRows, rows - p));
        const DotBlock block = wide.dtype == DType::f32    ? dot_block_of<F32>(count, step)
                               : wide.dtype == DType::bf16 ? dot_block_of<BF16>(count, step)
                                                           : dot_block_of<F16>(count, step);
        block(skinny + p * skinny_stride, skinny_stride, wide.data, wide.row, depth, q, sums);
        for (int i = 0; i < count; ++i) {
          for (int x = 0; x < step; ++x) gathered[p + i][q - start + x] = sums[i * step + x];
        }
      }
      q += step;
    }
    for (int p = 0; p < rows; ++p) {
      for (i64 q = start; q < end; q += kPanel) {
        finish(e, gathered[p] + (q - start), p, 1, q, static_cast<int>(smaller(kPanel, end - q)));
      }
    }
  }
}

}  // namespace

const MatmulTable kMatmul = {kPanel, kTileRows, kHalfDotRows, pack, tiles, dot, finish, widen};

}  // namespace graft::simd::GRAFT_ISA
