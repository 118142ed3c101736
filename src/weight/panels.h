#pragma once

#include <ggml.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "weight/stored.h"

// Weights packed for graft's kernels: ggml's block formats in panels of 16 rows of the weight (columns of the product)
// that are read from front to back. Along the depth a panel has blocks of 32 elements; a vector holds four consecutive
// elements of each column, `[16 columns][4]`, unsigned. The value of an element is scale * (stored - zero) - minimum,
// or, where the stored bits are an index, scale * table[stored]. The blocks of a group are contiguous: the quants of
// each, then the scales of all (of fewer blocks at the end of a panel where a group has two).
//   q8_0    [8][64] a block, zero 128; f16 scale[16] a block
//   q4_0    [4][64] a block, zero 8: low halves of the bytes of vector i hold elements 4 i to 4 i + 3 of the block,
//           high halves those 16 on; f16 scale[16] a block
//   iq4_nl  the same bytes, each half an index of kIq4Values
//   q4_k    [4][64] a block as q4_0, zero 0; u8 scale[8][16], u8 minimum[8][16], f16 unit of scale[16], f16 unit of
//           minimum[16]
//   q5_k    the same, and behind the quants of each block [64] with their fifth bits: byte j of a column has in bit i
//           that of element 4 i + j
//   q6_k    [4][64] the low four bits as q4_0, then [2][64] the high two: vector h has those of elements 16 h to
//           16 h + 15, four to a byte, the first in the lowest bits; zero 32; s8 scale[16][16], each of 16 elements,
//           f16 unit of scale[16]
//   iq4_xs  [4][64] a block as iq4_nl; s8 scale[8][16], f16 unit of scale[16]
//   mxfp4   [4][64] a block as q4_0, each half an index of kMxfp4Values; u8 exponent[16] a block: the scale is
//           2^(exponent - 128)
//   q2_k    [2][64] a block, two bits each as the high two of q6_k; zero 0; u8 [16][16], each of 16 elements: scale in
//           the low half, minimum in the high one; f16 unit of scale[16], f16 unit of minimum[16]
//   q3_k    [2][64] the low two bits as q2_k, then [64] the third bits as the fifth of q5_k; zero 4; s8 scale[16][16],
//           each of 16 elements, f16 unit of scale[16]
//   tq2_0   [2][64] a block as q2_k, zero 1; f16 scale[16] of a group
//   tq1_0   the same: five numbers of -1, 0 and 1 that ggml has in a byte take two bits each
// Packages hold panels (schema/graft.fbs, Storage.panels16): the layout of a format never changes.
//
// A new format is a row here, its packing in panels.cpp and its products in kernel/matmul/blocks_vnni.cpp.
namespace graft {

inline constexpr int kPanelColumns = 16;
inline constexpr int kPanelBlock = 32;
inline constexpr int kPanelVectorBytes = 4 * kPanelColumns;

// The values of four bits of iq4_nl and iq4_xs.
inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

// The values of four bits of mxfp4 (E2M1 of the OCP Microscaling Formats specification), doubled.
inline constexpr std::int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

enum class PanelFormat : std::int32_t { q8_0, q4_0, q4_k, q6_k, q5_k, iq4_nl, iq4_xs, mxfp4, q2_k, q3_k, tq2_0, tq1_0 };

struct PanelLayout {
  PanelFormat format;
  ggml_type type;
  int elements, bytes;  // of ggml's block
  int group;            // blocks of kPanelBlock elements whose scales are contiguous: 2, or all of ggml's block
  int quant_bytes;      // of a block of kPanelBlock elements of 16 columns
  int scale_bytes;      // the same: its part of the group's scales
};

inline constexpr PanelLayout kPanelLayouts[] = {
    {PanelFormat::q8_0, GGML_TYPE_Q8_0, 32, 34, 2, 512, 32},
    {PanelFormat::q4_0, GGML_TYPE_Q4_0, 32, 18, 2, 256, 32},
    {PanelFormat::q4_k, GGML_TYPE_Q4_K, 256, 144, 8, 256, 40},
    {PanelFormat::q6_k, GGML_TYPE_Q6_K, 256, 210, 8, 384, 36},
    {PanelFormat::q5_k, GGML_TYPE_Q5_K, 256, 176, 8, 320, 40},
    {PanelFormat::iq4_nl, GGML_TYPE_IQ4_NL, 32, 18, 2, 256, 32},
    {PanelFormat::iq4_xs, GGML_TYPE_IQ4_XS, 256, 136, 8, 256, 20},
    {PanelFormat::mxfp4, GGML_TYPE_MXFP4, 32, 17, 2, 256, 16},
    {PanelFormat::q2_k, GGML_TYPE_Q2_K, 256, 84, 8, 128, 40},
    {PanelFormat::q3_k, GGML_TYPE_Q3_K, 256, 110, 8, 192, 36},
    {PanelFormat::tq2_0, GGML_TYPE_TQ2_0, 256, 66, 8, 128, 4},
    {PanelFormat::tq1_0, GGML_TYPE_TQ1_0, 256, 54, 8, 128, 4},
};
static_assert([] {
  int at = 0;
  return std::ranges::all_of(kPanelLayouts, [&](const PanelLayout& row) {
    return static_cast<int>(row.format) == at++ && (row.group == 2 || row.group * kPanelBlock == row.elements);
  });
}());

constexpr const PanelLayout& layout_of(PanelFormat format) { return kPanelLayouts[static_cast<std::size_t>(format)]; }

// Bytes of a panel of that depth.
constexpr std::int64_t panel_bytes(PanelFormat format, std::int64_t depth) {
  return depth / kPanelBlock * (layout_of(format).quant_bytes + layout_of(format).scale_bytes);
}

constexpr std::int64_t panel_count(std::int64_t rows) { return (rows + kPanelColumns - 1) / kPanelColumns; }

// Bytes of a weight [rows, depth], with its rows padded to whole panels.
constexpr std::int64_t panels_bytes(PanelFormat format, std::int64_t rows, std::int64_t depth) {
  return panel_count(rows) * panel_bytes(format, depth);
}

// The format that a block type is packed to; nullopt if there is none.
std::optional<PanelFormat> panel_format_of(BlockType type);

// Packs a weight [rows, depth] of ggml's blocks with that many threads. Writes every byte of the panels.
void pack_panels(PanelFormat format, const std::byte* blocks, std::int64_t rows, std::int64_t depth, std::byte* panels,
                 int threads);

// Unpacks, bit for bit; bytes of tq1_0 that no quantizer writes (13 of 256 stand for the same numbers as others, as do
// all digits but four of the last four bytes) become those that one writes.
void unpack_panels(PanelFormat format, const std::byte* panels, std::int64_t rows, std::int64_t depth,
                   std::byte* blocks, int threads);

// The values of one row, equal to those of ggml's blocks.
void unpack_row(PanelFormat format, const std::byte* panels, std::int64_t depth, std::int64_t row, float* to);

}  // namespace graft
