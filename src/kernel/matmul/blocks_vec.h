#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/dispatch.h"
#include "weight/panels.h"

// Products with weights in panels: weight/panels.h.
namespace graft::simd {

// A block's sum of products, less than 2^22, begins at the bits of the float 1.5 * 2^23: these and the sum are the bits
// of the float 1.5 * 2^23 + sum.
inline constexpr std::int32_t kSumBegin = 0x4b400000;
inline constexpr float kSumBeginAsFloat = 0x1.8p23f;

// Rows of the other operand, quantized: x = scale * q for blocks of kPanelBlock.
struct QuantizedRows {
  std::int8_t* q = nullptr;  // [rows, depth]
  float* scale = nullptr;    // [rows, depth / kPanelBlock]
  // [rows, depth / kPanelBlock]: -zero * the block's sum of q, plus kSumBegin. Of formats with a scale for half a
  // block: [rows, depth / 16].
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

// Null where none is faster than ggml's own products.
GRAFT_OPTIONAL_TABLE("vnni amxint8", PanelTable, kPanels, panels)
// The target of the table: "avx2", "avx512vnni", "amxint8"; empty where there is none.
inline std::string_view panels_name(Isa isa) {
  const std::optional<Isa> target = target_of<PanelTable>(isa);
  return target ? name(*target) : std::string_view();
}

}  // namespace graft::simd
