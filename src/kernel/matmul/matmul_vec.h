#pragma once

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Building blocks of the f32-accumulating matrix product; kernel/matmul/matmul.cpp puts them together. Element types
// are f32, f16 and bf16; everything is accumulated in f32 and rounded once.
//
// Tiles compute O[r, j] = sum_k S[r, k] * V[k, j]: S ("scalar" operand) is broadcast element by element, V ("vector"
// operand) is read as rows of vectors from packed panels. Either operand of a product can be S or V.
namespace graft::simd {

enum class Activation : std::int32_t { none, relu, silu, gelu_erf, gelu_tanh };

// What happens to a finished sum x at O[r, j]: out = activation(alpha * x + beta * bias[r, j]). Strides in elements.
struct Epilogue {
  float alpha = 1;
  float beta = 1;
  const void* bias = nullptr;  // may be null
  DType bias_dtype = DType::f32;
  std::int64_t bias_r = 0, bias_j = 0;
  Activation activation = Activation::none;
  void* out = nullptr;
  DType out_dtype = DType::f32;
  std::int64_t out_r = 0, out_j = 0;
};

// A strided matrix; strides in elements.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t row = 0, col = 0;
};

// Products of bf16 (f32 is rounded to it), two steps of k at once: products are exact, sums are f32, subnormal numbers
// count as zero. Steps 2i and 2i + 1 of a column form one 32-bit word, the first in the low half; an odd depth is
// padded with a zero.
struct PairProducts {
  // MatmulTable::pack into panels of panel_width pairs for every two steps: panel `panel` is at
  // packed + panel * panel_width * ceil(depth / 2). k0 is even, and k1 is even or the depth.
  void (*pack)(const MatrixView& v, std::int64_t depth, std::int64_t columns, std::int64_t panel, std::int64_t k0,
               std::int64_t k1, std::uint32_t* packed);

  // MatmulTable::tiles of such panels.
  void (*tiles)(const MatrixView& s, const std::uint32_t* packed, std::int64_t depth, std::int64_t columns,
                std::int64_t r0, std::int64_t r1, std::int64_t p0, std::int64_t p1, const Epilogue& epilogue);
};

struct MatmulTable {
  int panel_width;  // columns j of a panel
  int tile_rows;    // rows r of a tile
  // Up to how many rows a product by an operand of 16 bits takes no longer as dot products, which widen a value in a
  // register, than as tiles, which widen it into memory first.
  int half_dot_rows;

  // Packs k in [k0, k1) of panel `panel` of v (k is its row, j its column) as f32. The panel is at
  // packed + panel * panel_width * depth, its row k at k * panel_width. Columns past `columns` are zero.
  void (*pack)(const MatrixView& v, std::int64_t depth, std::int64_t columns, std::int64_t panel, std::int64_t k0,
               std::int64_t k1, float* packed);

  // Computes O for rows [r0, r1) and panels [p0, p1) of `columns` columns. `packed` as pack() wrote it; when it is
  // null, v is read in place (f32 with column stride 1).
  void (*tiles)(const MatrixView& s, const MatrixView& v, const float* packed, std::int64_t depth, std::int64_t columns,
                std::int64_t r0, std::int64_t r1, std::int64_t p0, std::int64_t p1, const Epilogue& epilogue);

  // GEMV and skinny GEMM, whose M = `rows` is at most kMaxDotRows, or half_dot_rows where `wide` is f16 or bf16:
  // O[q, p] = sum_k wide[q, k] * skinny[p, k] for q in [q0, q1) and p in [0, rows). `skinny` holds f32 rows
  // `skinny_stride` apart; `wide` has column stride 1. In the epilogue r is q and j is p.
  void (*dot)(const float* skinny, std::int64_t skinny_stride, int rows, const MatrixView& wide, std::int64_t depth,
              std::int64_t q0, std::int64_t q1, const Epilogue& epilogue);

  // The epilogue alone: writes rows x width sums, rows panel_width apart, to O[r0 + r, j0 + j]; width is at most
  // panel_width. Overwrites `sums`.
  void (*finish)(const Epilogue& epilogue, float* sums, std::int64_t r0, int rows, std::int64_t j0, int width);

  // Converts n elements to f32.
  void (*widen)(const void* from, DType dtype, std::int64_t stride, std::int64_t n, float* to);
};

inline constexpr int kMaxDotRows = 8;

GRAFT_TABLE("vec", MatmulTable, kMatmul, matmul)
GRAFT_OPTIONAL_TABLE("bf16", PairProducts, kPairProducts, pair_products)

}  // namespace graft::simd
