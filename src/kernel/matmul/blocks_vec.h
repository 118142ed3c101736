#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/dispatch.h"
#include "weight/panels.h"

// Products with weights in panels: weight/panels.h.
namespace graft::simd {

// Bias of a block's integer sum: the bits of the float 1.5 * 2^23. As the sum is less than 2^22, bias plus sum are the
// bits of the float 1.5 * 2^23 + sum, which saves a conversion.
inline constexpr std::int32_t kSumBegin = 0x4b400000;
inline constexpr float kSumBeginAsFloat = 0x1.8p23f;

// Quantized rows of the other operand: x = scale * q, per block of kPanelBlock.
struct QuantizedRows {
  std::int8_t* q = nullptr;  // [rows, depth]
  float* scale = nullptr;    // [rows, depth / kPanelBlock]
  // [rows, depth / kPanelBlock]: kSumBegin - zero * the block's sum of q. Formats with a scale for half a block:
  // [rows, depth / 16]; of q3_k without kSumBegin, the low 16 bits.
  std::int32_t* sum = nullptr;
  float* scaled_sum = nullptr;  // of formats with minimums, instead of `sum`: scale * the sum of q
};

struct PanelTable {
  // Columns of one step of tiles(); tasks begin at multiples of it.
  int tile_columns;

  // Quantizes elements [k0, k1) of a row, both multiples of kPanelBlock.
  void (*quantize)(PanelFormat format, const float* from, std::int64_t k0, std::int64_t k1, std::int64_t row,
                   std::int64_t depth, const QuantizedRows& to);

  // O[r, j] = sum_k rows[r, k] * panels[j, k] for all `rows` rows and columns [j0, j1) of `columns`; j0 is a multiple
  // of tile_columns. The epilogue is indexed by the same r and j.
  void (*tiles)(PanelFormat format, const std::byte* panels, const QuantizedRows& quantized, std::int64_t rows,
                std::int64_t depth, std::int64_t columns, std::int64_t j0, std::int64_t j1, const Epilogue& epilogue);
};

// Null where no target is faster than ggml's own products.
GRAFT_OPTIONAL_TABLE("vnni amxint8", PanelTable, kPanels, panels)
// The table's target: "avx2", "avx512vnni", "amxint8"; empty where there is none.
inline std::string_view panels_name(Isa isa) {
  const std::optional<Isa> target = target_of<PanelTable>(isa);
  return target ? name(*target) : std::string_view();
}

}  // namespace graft::simd
