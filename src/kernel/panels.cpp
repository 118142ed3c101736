#include "kernel/panels.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace graft {
namespace {

using i64 = std::int64_t;
using simd::kPanelBlock;
using simd::kPanelColumns;
using simd::PanelFormat;

// ggml's blocks.
constexpr i64 kQ8Bytes = 34, kQ4Bytes = 18, kQ4KBytes = 144;  // of 32, 32 and 256 elements
constexpr i64 kQ6KBytes = 210;                                // of 256
constexpr i64 kQ4KScales = 4, kQ4KQuants = 16;                // where they begin

float f16_at(const std::byte* p) {
  ggml_fp16_t half;
  std::memcpy(&half, p, sizeof(half));
  return ggml_fp16_to_fp32(half);
}

unsigned u8_at(const std::byte* p) { return std::to_integer<unsigned>(*p); }

// Six bits each of scale and minimum of block `b` of eight, as ggml packs them.
void scales_of_q4_k(const std::byte* packed, i64 b, unsigned& scale, unsigned& minimum) {
  if (b < 4) {
    scale = u8_at(packed + b) & 63;
    minimum = u8_at(packed + b + 4) & 63;
  } else {
    scale = (u8_at(packed + b + 4) & 15) | (u8_at(packed + b - 4) >> 6 << 4);
    minimum = (u8_at(packed + b + 4) >> 4) | (u8_at(packed + b) >> 6 << 4);
  }
}

// Element e of 256, as ggml packs them: 0 to 63.
unsigned q6_k_at(const std::byte* block, i64 e) {
  const i64 half = e / 128, quarter = e % 128 / 32, l = e % 32;
  const unsigned low = u8_at(block + half * 64 + quarter % 2 * 32 + l) >> (quarter < 2 ? 0 : 4) & 15;
  const unsigned high = u8_at(block + 128 + half * 32 + l) >> (2 * quarter) & 3;
  return low | high << 4;
}

// Where the parts of a block lie in a panel.
struct Place {
  i64 quants = 0;
  i64 scales = 0;    // of the block; q4_k: of the group
  i64 in_group = 0;  // which block of its group
};

Place place_of(PanelFormat format, i64 depth, i64 block) {
  const i64 blocks = depth / kPanelBlock;
  const bool by_256 = format == PanelFormat::q4_k || format == PanelFormat::q6_k;
  const i64 group = by_256 ? 8 : 2;
  const i64 block_bytes = format == PanelFormat::q8_0 ? 512 : format == PanelFormat::q6_k ? 384 : 256;
  const i64 first = block / group * group, count = std::min(group, blocks - first);
  const i64 start = simd::panel_bytes(format, first * kPanelBlock);
  Place place;
  place.in_group = block - first;
  place.quants = start + place.in_group * block_bytes;
  place.scales = start + count * block_bytes + (by_256 ? 0 : place.in_group * 32);
  return place;
}

void fill_q8_0(const std::byte* from, i64 column, const Place& place, std::byte* panel) {
  std::memcpy(panel + place.scales + column * 2, from, 2);
  for (i64 i = 0; i < kPanelBlock; ++i)
    panel[place.quants + i / 4 * 64 + column * 4 + i % 4] = from[2 + i] ^ std::byte{0x80};
}

void fill_q4_0(const std::byte* from, i64 column, const Place& place, std::byte* panel) {
  std::memcpy(panel + place.scales + column * 2, from, 2);
  // ggml's bytes hold element i in the low half and i + 16 in the high half, as ours do.
  for (i64 i = 0; i < kPanelBlock / 2; ++i) panel[place.quants + i / 4 * 64 + column * 4 + i % 4] = from[2 + i];
}

void fill_q4_k(const std::byte* from, i64 column, const Place& place, std::byte* panel) {
  // 64 elements to 32 bytes: the low halves are one block of 32, the high halves the next.
  const std::byte* quants = from + kQ4KQuants + place.in_group / 2 * 32;
  const unsigned shift = place.in_group % 2 == 0 ? 0 : 4;
  for (i64 i = 0; i < kPanelBlock / 2; ++i) {
    const unsigned low = u8_at(quants + i) >> shift & 15, high = u8_at(quants + i + 16) >> shift & 15;
    panel[place.quants + i / 4 * 64 + column * 4 + i % 4] = static_cast<std::byte>(low | high << 4);
  }
  unsigned scale = 0, minimum = 0;
  scales_of_q4_k(from + kQ4KScales, place.in_group, scale, minimum);
  std::byte* scales = panel + place.scales;
  scales[place.in_group * kPanelColumns + column] = static_cast<std::byte>(scale);
  scales[128 + place.in_group * kPanelColumns + column] = static_cast<std::byte>(minimum);
  std::memcpy(scales + 256 + column * 2, from, 2);
  std::memcpy(scales + 288 + column * 2, from + 2, 2);
}

void fill_q6_k(const std::byte* from, i64 column, const Place& place, std::byte* panel) {
  std::byte* quants = panel + place.quants + column * 4;
  for (i64 i = 0; i < kPanelBlock / 2; ++i) {
    const unsigned a = q6_k_at(from, place.in_group * 32 + i), b = q6_k_at(from, place.in_group * 32 + 16 + i);
    quants[i / 4 * 64 + i % 4] = static_cast<std::byte>((a & 15) | (b & 15) << 4);
  }
  for (i64 vector = 0; vector < 2; ++vector)
    for (i64 j = 0; j < 4; ++j) {
      unsigned bits = 0;
      for (unsigned quad = 0; quad < 4; ++quad)
        bits |= q6_k_at(from, place.in_group * 32 + vector * 16 + quad * 4 + j) >> 4 << (2 * quad);
      quants[256 + vector * 64 + j] = static_cast<std::byte>(bits);
    }
  std::byte* scales = panel + place.scales;
  for (i64 h = 0; h < 2; ++h)
    scales[(place.in_group * 2 + h) * kPanelColumns + column] = from[192 + place.in_group * 2 + h];
  std::memcpy(scales + 256 + column * 2, from + 208, 2);
}

}  // namespace

std::optional<PanelFormat> panel_format(BlockType type) {
  if (!simd::panels()) return std::nullopt;
  switch (static_cast<int>(type)) {
    case GGML_TYPE_Q8_0:
      return PanelFormat::q8_0;
    case GGML_TYPE_Q4_0:
      return PanelFormat::q4_0;
    case GGML_TYPE_Q4_K:
      return PanelFormat::q4_k;
    case GGML_TYPE_Q6_K:
      return PanelFormat::q6_k;
    default:
      return std::nullopt;
  }
}

i64 panels_bytes(PanelFormat format, i64 rows, i64 depth) {
  return (rows + kPanelColumns - 1) / kPanelColumns * simd::panel_bytes(format, depth);
}

void fill_panels(PanelFormat format, const std::byte* blocks, i64 rows, i64 depth, i64 begin, i64 end,
                 std::byte* panels) {
  const i64 bytes = simd::panel_bytes(format, depth);
  const bool by_256 = format == PanelFormat::q4_k || format == PanelFormat::q6_k;
  constexpr i64 kBytes[] = {kQ8Bytes, kQ4Bytes, kQ4KBytes, kQ6KBytes};
  const i64 block_bytes = kBytes[static_cast<int>(format)];
  const i64 row_bytes = depth / (by_256 ? 256 : kPanelBlock) * block_bytes;
  for (i64 p = begin; p < end; ++p) {
    std::byte* panel = panels + p * bytes;
    const i64 columns = std::min<i64>(kPanelColumns, rows - p * kPanelColumns);
    if (columns < kPanelColumns) std::memset(panel, 0, static_cast<std::size_t>(bytes));  // scales of 0
    for (i64 b = 0; b < depth / kPanelBlock; ++b) {
      const Place place = place_of(format, depth, b);
      for (i64 c = 0; c < columns; ++c) {
        const std::byte* row = blocks + (p * kPanelColumns + c) * row_bytes;
        if (format == PanelFormat::q8_0) {
          fill_q8_0(row + b * block_bytes, c, place, panel);
        } else if (format == PanelFormat::q4_0) {
          fill_q4_0(row + b * block_bytes, c, place, panel);
        } else if (format == PanelFormat::q4_k) {
          fill_q4_k(row + b / 8 * block_bytes, c, place, panel);
        } else {
          fill_q6_k(row + b / 8 * block_bytes, c, place, panel);
        }
      }
    }
  }
}

void row_of_panels(PanelFormat format, const std::byte* panels, i64 depth, i64 row, float* to) {
  const std::byte* panel = panels + row / kPanelColumns * simd::panel_bytes(format, depth);
  const i64 column = row % kPanelColumns;
  for (i64 b = 0; b < depth / kPanelBlock; ++b, to += kPanelBlock) {
    const Place place = place_of(format, depth, b);
    const std::byte* quants = panel + place.quants + column * 4;
    const std::byte* scales = panel + place.scales;
    float scale = 0, minimum = 0;
    if (format == PanelFormat::q4_k) {
      const i64 at = place.in_group * kPanelColumns + column;
      scale = f16_at(scales + 256 + column * 2) * static_cast<float>(u8_at(scales + at));
      minimum = f16_at(scales + 288 + column * 2) * static_cast<float>(u8_at(scales + 128 + at));
    } else if (format != PanelFormat::q6_k) {
      scale = f16_at(scales + column * 2);
    }
    for (i64 i = 0; i < kPanelBlock; ++i) {
      if (format == PanelFormat::q8_0) {
        to[i] = scale * static_cast<float>(static_cast<int>(u8_at(quants + i / 4 * 64 + i % 4)) - 128);
        continue;
      }
      const i64 half = i % 16;
      const unsigned byte = u8_at(quants + half / 4 * 64 + half % 4);
      auto q = static_cast<int>(i < 16 ? byte & 15 : byte >> 4);
      if (format == PanelFormat::q6_k) {
        q |= static_cast<int>(u8_at(quants + 256 + i / 16 * 64 + i % 4) >> (i % 16 / 4 * 2) & 3) << 4;
        const std::byte s = scales[(place.in_group * 2 + i / 16) * kPanelColumns + column];
        to[i] = f16_at(scales + 256 + column * 2) * static_cast<float>(static_cast<std::int8_t>(s)) *
                static_cast<float>(q - 32);
        continue;
      }
      to[i] = format == PanelFormat::q4_0 ? scale * static_cast<float>(q - 8) : scale * static_cast<float>(q) - minimum;
    }
  }
}

}  // namespace graft
