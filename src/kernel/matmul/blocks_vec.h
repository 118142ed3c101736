#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/dispatch.h"
#include "weight/panels.h"

// Products with weights in panels: weight/panels.h.
namespace graft::simd {

// Rows of the other operand, quantized: x = scale * q for blocks of kPanelBlock.
struct QuantizedRows {
  std::int8_t* q = nullptr;  // [rows, depth]
  float* scale = nullptr;    // [rows, depth / kPanelBlock]
  // [rows, depth / kPanelBlock]: -zero * the block's sum of q, plus a constant of the tiles. Of formats with a scale
  // for half a block: [rows, depth / 16].
  std::int32_t* sum = nullptr;
  float* scaled_sum = nullptr;  // of formats with minimums, in the place of `sum`: scale * the block's sum of q
};

struct PanelTable {
  // Columns that tiles() takes at once; a task begins at a multiple of it.
  int tile_columns;

  // Quantizes elements [k0, k1) of a row, both multiples of kPanelBlock.
  void (*quantize)(PanelFormat format, const float* from, std::int64_t k0, std::int64_t k1, std::int64_t row,
                   std::int64_t depth, const QuantizedRows& to);

  // O[r, j] = sum_k rows[r, k] * panels[j, k] for all `rows` rows and columns [j0, j1) of `columns`; j0 is a multiple
  // of tile_columns. r and j are those of the epilogue.
  void (*tiles)(PanelFormat format, const std::byte* panels, const QuantizedRows& quantized, std::int64_t rows,
                std::int64_t depth, std::int64_t columns, std::int64_t j0, std::int64_t j1, const Epilogue& epilogue);
};

// "avx512vnni" or "avx2"; empty where there is no table.
std::string_view panels_name(Isa isa);

// The table of an instruction set that is available here; null where there is none that is faster than ggml's own
// products.
const PanelTable* panels(Isa isa);
inline const PanelTable* panels() { return panels(active_isa()); }

namespace avx2 {
extern const PanelTable kPanels;
}
// AVX-512 on a CPU that has VNNI too.
namespace avx512vnni {
extern const PanelTable kPanels;
}

}  // namespace graft::simd
