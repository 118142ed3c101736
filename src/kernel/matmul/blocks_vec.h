#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/matmul/matmul_vec.h"
#include "kernel/simd/dispatch.h"

// Products with weights in ggml's block formats, laid out in panels of 16 rows of the weight (columns of the product)
// that are read from front to back. Along the depth a panel has blocks of 32 elements; a vector holds four consecutive
// elements of each column, `[16 columns][4]`, unsigned. The value of an element is scale * (stored - zero) - minimum,
// with a scale and a minimum (q4_k) per block and column. Bytes, and what blocks of a pair or of a group of eight
// share:
//   q8_0  a pair of blocks: 2 x [8][64], then 2 x f16 scale[16]; a last block alone likewise. zero = 128
//   q4_0  a pair of blocks: 2 x [4][64], then 2 x f16 scale[16]; likewise. Low halves of the bytes of vector i hold
//         elements 4 i to 4 i + 3 of the block, high halves those 16 on. zero = 8
//   q4_k  eight blocks: 8 x [4][64] as q4_0, then u8 scale[8][16], u8 minimum[8][16], f16 unit of scale[16],
//         f16 unit of minimum[16]. zero = 0
//   q6_k  eight blocks: 8 x ([4][64] the low four bits as q4_0, then [2][64] the high two: vector h has those of
//         elements 16 h to 16 h + 15, four to a byte, the first in the lowest bits), then s8 scale[16][16], each of 16
//         elements, f16 unit of scale[16]. zero = 32
namespace graft::simd {

inline constexpr int kPanelColumns = 16;
inline constexpr int kPanelBlock = 32;

enum class PanelFormat : std::int32_t { q8_0, q4_0, q4_k, q6_k };

// Bytes of a panel of that depth.
constexpr std::int64_t panel_bytes(PanelFormat format, std::int64_t depth) {
  const std::int64_t blocks = depth / kPanelBlock;
  switch (format) {
    case PanelFormat::q8_0:
      return blocks * 544;
    case PanelFormat::q4_0:
      return blocks * 288;
    case PanelFormat::q4_k:
      return blocks / 8 * 2368;
    case PanelFormat::q6_k:
      return blocks / 8 * 3360;
  }
  return 0;
}

// A block's sum of products, less than 2^22, begins at the bits of the float 1.5 * 2^23: these and the sum are the bits
// of the float 1.5 * 2^23 + sum.
inline constexpr std::int32_t kSumBegin = 0x4b400000;
inline constexpr float kSumBeginAsFloat = 0x1.8p23f;

// Rows of the other operand, quantized: x = scale * q for blocks of kPanelBlock.
struct QuantizedRows {
  std::int8_t* q = nullptr;  // [rows, depth]
  float* scale = nullptr;    // [rows, depth / kPanelBlock]
  // [rows, depth / kPanelBlock]: -zero * the block's sum of q, plus kSumBegin. q6_k: [rows, depth / 16],
  // of halves of a block.
  std::int32_t* sum = nullptr;
  float* scaled_sum = nullptr;  // q4_k, in the place of `sum`: scale * the block's sum of q
};

struct PanelTable {
  // Columns that tiles() takes at once; a share of the work begins at a multiple of it.
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
