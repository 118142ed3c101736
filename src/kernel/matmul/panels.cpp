#include "kernel/matmul/panels.h"

#include <ggml.h>

#include <algorithm>
#include <array>
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
constexpr i64 kVectorBytes = kPanelColumns * 4;

float f16_at(const std::byte* p) {
  ggml_fp16_t half;
  std::memcpy(&half, p, sizeof(half));
  return ggml_fp16_to_fp32(half);
}

unsigned u8_at(const std::byte* p) { return std::to_integer<unsigned>(*p); }

i64 ggml_block_bytes(PanelFormat format) {
  switch (format) {
    case PanelFormat::q8_0:
      return kQ8Bytes;
    case PanelFormat::q4_0:
      return kQ4Bytes;
    case PanelFormat::q4_k:
      return kQ4KBytes;
    case PanelFormat::q6_k:
      return kQ6KBytes;
  }
  return 0;
}

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

// Four words of four bytes, consecutive elements of one row each.
typedef std::uint32_t Words __attribute__((vector_size(16)));

Words words_at(const std::byte* p) {
  Words words;
  std::memcpy(&words, p, sizeof(words));
  return words;
}

void put(std::byte* to, Words words) { std::memcpy(to, &words, sizeof(words)); }

using FourWords = std::array<Words, 4>;

FourWords transposed(Words a, Words b, Words c, Words d) {
  const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
          __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
}

// Blocks of four rows beside each other, of as many columns of a panel.
template <typename Byte>
using FourRows = std::array<Byte*, 4>;
using FromRows = FourRows<const std::byte>;
using ToRows = FourRows<std::byte>;

// Word i of each of four rows, from `of(row)`, to vector i of the panel.
template <typename Of>
void transpose(const FromRows& rows, std::byte* to, const Of& of) {
  const FourWords words = transposed(of(rows[0]), of(rows[1]), of(rows[2]), of(rows[3]));
  for (std::size_t i = 0; i < 4; ++i) put(to + static_cast<i64>(i) * kVectorBytes, words[i]);
}

// And back: `take(row, words)` gets the words of each row.
template <typename Take>
void transpose_back(const std::byte* from, const ToRows& rows, const Take& take) {
  const FourWords words = transposed(words_at(from), words_at(from + kVectorBytes), words_at(from + 2 * kVectorBytes),
                                     words_at(from + 3 * kVectorBytes));
  for (std::size_t c = 0; c < 4; ++c) take(rows[c], words[c]);
}

// Halves of bytes: those of `low` and above them those of `high`.
Words halves(Words low, Words high) { return (low & 0x0f0f0f0fU) | (high & 0x0f0f0f0fU) << 4; }

void fill_q8_0(const FromRows& rows, i64 column, const Place& place, std::byte* panel) {
  std::byte* quants = panel + place.quants + column * 4;
  for (i64 half = 0; half < 2; ++half)
    transpose(rows, quants + half * 4 * kVectorBytes,
              [&](const std::byte* from) { return words_at(from + 2 + half * 16) ^ 0x80808080U; });
  for (i64 c = 0; c < 4; ++c) std::memcpy(panel + place.scales + (column + c) * 2, rows[c], 2);
}

void fill_q4_0(const FromRows& rows, i64 column, const Place& place, std::byte* panel) {
  // ggml's bytes hold element i in the low half and i + 16 in the high half, as ours do.
  transpose(rows, panel + place.quants + column * 4, [](const std::byte* from) { return words_at(from + 2); });
  for (i64 c = 0; c < 4; ++c) std::memcpy(panel + place.scales + (column + c) * 2, rows[c], 2);
}

void fill_q4_k(const FromRows& rows, i64 column, const Place& place, std::byte* panel) {
  // 64 elements to 32 bytes: the low halves are one block of 32, the high halves the next.
  const unsigned shift = place.in_group % 2 == 0 ? 0 : 4;
  transpose(rows, panel + place.quants + column * 4, [&](const std::byte* from) {
    const std::byte* quants = from + kQ4KQuants + place.in_group / 2 * 32;
    return halves(words_at(quants) >> shift, words_at(quants + 16) >> shift);
  });
  std::byte* scales = panel + place.scales;
  for (i64 c = 0; c < 4; ++c) {
    unsigned scale = 0, minimum = 0;
    scales_of_q4_k(rows[c] + kQ4KScales, place.in_group, scale, minimum);
    scales[place.in_group * kPanelColumns + column + c] = static_cast<std::byte>(scale);
    scales[128 + place.in_group * kPanelColumns + column + c] = static_cast<std::byte>(minimum);
    if (place.in_group > 0) continue;
    std::memcpy(scales + 256 + (column + c) * 2, rows[c], 2);
    std::memcpy(scales + 288 + (column + c) * 2, rows[c] + 2, 2);
  }
}

void fill_q6_k(const FromRows& rows, i64 column, const Place& place, std::byte* panel) {
  // 128 elements to 64 bytes of four bits and 32 of two: blocks 0 and 1 have the low halves of the former, blocks 2 and
  // 3 the high halves; each has two bits of all of the latter.
  const i64 quarter = place.in_group % 4;
  std::byte* quants = panel + place.quants + column * 4;
  transpose(rows, quants, [&](const std::byte* from) {
    const std::byte* low = from + place.in_group / 4 * 64 + quarter % 2 * 32;
    const unsigned shift = quarter < 2 ? 0 : 4;
    return halves(words_at(low) >> shift, words_at(low + 16) >> shift);
  });
  std::byte* scales = panel + place.scales;
  for (i64 c = 0; c < 4; ++c) {
    const std::byte* high = rows[c] + 128 + place.in_group / 4 * 32;
    for (i64 h = 0; h < 2; ++h) {
      const Words bits = words_at(high + h * 16) >> static_cast<unsigned>(2 * quarter) & 0x03030303U;
      const std::uint32_t word = bits[0] | bits[1] << 2 | bits[2] << 4 | bits[3] << 6;
      std::memcpy(quants + 4 * kVectorBytes + h * kVectorBytes + c * 4, &word, sizeof(word));
      scales[(place.in_group * 2 + h) * kPanelColumns + column + c] = rows[c][192 + place.in_group * 2 + h];
    }
    if (place.in_group == 0) std::memcpy(scales + 256 + (column + c) * 2, rows[c] + 208, 2);
  }
}

// The same blocks from a panel. Blocks of a group of eight share bytes of rows: the first of these to come writes them,
// which clears what the next adds.
void take_q8_0(const ToRows& rows, i64 column, const Place& place, const std::byte* panel) {
  const std::byte* quants = panel + place.quants + column * 4;
  for (i64 half = 0; half < 2; ++half)
    transpose_back(quants + half * 4 * kVectorBytes, rows,
                   [&](std::byte* to, Words words) { put(to + 2 + half * 16, words ^ 0x80808080U); });
  for (i64 c = 0; c < 4; ++c)
    std::memcpy(rows[static_cast<std::size_t>(c)], panel + place.scales + (column + c) * 2, 2);
}

void take_q4_0(const ToRows& rows, i64 column, const Place& place, const std::byte* panel) {
  transpose_back(panel + place.quants + column * 4, rows, [](std::byte* to, Words words) { put(to + 2, words); });
  for (i64 c = 0; c < 4; ++c)
    std::memcpy(rows[static_cast<std::size_t>(c)], panel + place.scales + (column + c) * 2, 2);
}

// The halves of `words` to the low or the high halves of 32 bytes.
void put_halves(std::byte* to, Words words, bool high) {
  const Words first = words & 0x0f0f0f0fU, second = words >> 4 & 0x0f0f0f0fU;
  put(to, high ? words_at(to) | first << 4 : first);
  put(to + 16, high ? words_at(to + 16) | second << 4 : second);
}

void take_q4_k(const ToRows& rows, i64 column, const Place& place, const std::byte* panel) {
  transpose_back(panel + place.quants + column * 4, rows, [&](std::byte* to, Words words) {
    put_halves(to + kQ4KQuants + place.in_group / 2 * 32, words, place.in_group % 2 != 0);
  });
  if (place.in_group > 0) return;
  const std::byte* scales = panel + place.scales;
  for (i64 c = 0; c < 4; ++c) {
    std::byte* to = rows[static_cast<std::size_t>(c)];
    std::memcpy(to, scales + 256 + (column + c) * 2, 2);
    std::memcpy(to + 2, scales + 288 + (column + c) * 2, 2);
    const auto scale = [&](i64 b) { return u8_at(scales + b * kPanelColumns + column + c); };
    const auto minimum = [&](i64 b) { return u8_at(scales + 128 + b * kPanelColumns + column + c); };
    for (i64 b = 0; b < 4; ++b) {
      to[kQ4KScales + b] = static_cast<std::byte>(scale(b) | scale(b + 4) >> 4 << 6);
      to[kQ4KScales + 4 + b] = static_cast<std::byte>(minimum(b) | minimum(b + 4) >> 4 << 6);
      to[kQ4KScales + 8 + b] = static_cast<std::byte>((scale(b + 4) & 15) | (minimum(b + 4) & 15) << 4);
    }
  }
}

void take_q6_k(const ToRows& rows, i64 column, const Place& place, const std::byte* panel) {
  const i64 quarter = place.in_group % 4;
  const std::byte* quants = panel + place.quants + column * 4;
  transpose_back(quants, rows, [&](std::byte* to, Words words) {
    put_halves(to + place.in_group / 4 * 64 + quarter % 2 * 32, words, quarter >= 2);
  });
  const std::byte* scales = panel + place.scales;
  for (i64 c = 0; c < 4; ++c) {
    std::byte* to = rows[static_cast<std::size_t>(c)];
    std::byte* high = to + 128 + place.in_group / 4 * 32;
    for (i64 h = 0; h < 2; ++h) {
      std::uint32_t word = 0;
      std::memcpy(&word, quants + 4 * kVectorBytes + h * kVectorBytes + c * 4, sizeof(word));
      const Words bits = (Words{word, word >> 2, word >> 4, word >> 6} & 0x03030303U)
                         << static_cast<unsigned>(2 * quarter);
      put(high + h * 16, quarter == 0 ? bits : words_at(high + h * 16) | bits);
      to[192 + place.in_group * 2 + h] = scales[(place.in_group * 2 + h) * kPanelColumns + column + c];
    }
    if (place.in_group == 0) std::memcpy(to + 208, scales + 256 + (column + c) * 2, 2);
  }
}

// Calls visit(four rows, column, place, panel) for each block of 32 elements of each four rows of panels [begin, end);
// rows past the last are `nothing`.
template <typename Byte, typename Panel, typename Visit>
void walk(PanelFormat format, Byte* blocks, i64 rows, i64 depth, i64 begin, i64 end, Panel* panels, Byte* nothing,
          const Visit& visit) {
  const i64 bytes = simd::panel_bytes(format, depth);
  const bool by_256 = format == PanelFormat::q4_k || format == PanelFormat::q6_k;
  const i64 block_bytes = ggml_block_bytes(format);
  const i64 row_bytes = depth / (by_256 ? 256 : kPanelBlock) * block_bytes;
  for (i64 p = begin; p < end; ++p) {
    for (i64 b = 0; b < depth / kPanelBlock; ++b) {
      const Place place = place_of(format, depth, b);
      const i64 at = (by_256 ? b / 8 : b) * block_bytes;
      for (i64 column = 0; column < kPanelColumns; column += 4) {
        FourRows<Byte> four;
        for (i64 c = 0; c < 4; ++c) {
          const i64 row = p * kPanelColumns + column + c;
          four[static_cast<std::size_t>(c)] = row < rows ? blocks + row * row_bytes + at : nothing;
        }
        visit(four, column, place, panels + p * bytes);
      }
    }
  }
}

}  // namespace

std::optional<PanelFormat> layout_of(BlockType type) {
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

std::optional<PanelFormat> panel_format(BlockType type) { return simd::panels() ? layout_of(type) : std::nullopt; }

i64 panels_bytes(PanelFormat format, i64 rows, i64 depth) {
  return (rows + kPanelColumns - 1) / kPanelColumns * simd::panel_bytes(format, depth);
}

void fill_panels(PanelFormat format, const std::byte* blocks, i64 rows, i64 depth, i64 begin, i64 end,
                 std::byte* panels) {
  static constexpr std::byte kNothing[kQ6KBytes] = {};  // a block with a scale of 0
  walk(format, blocks, rows, depth, begin, end, panels, kNothing,
       [&](const FromRows& four, i64 column, const Place& place, std::byte* panel) {
         switch (format) {
           case PanelFormat::q8_0:
             return fill_q8_0(four, column, place, panel);
           case PanelFormat::q4_0:
             return fill_q4_0(four, column, place, panel);
           case PanelFormat::q4_k:
             return fill_q4_k(four, column, place, panel);
           case PanelFormat::q6_k:
             return fill_q6_k(four, column, place, panel);
         }
       });
}

void blocks_of_panels(PanelFormat format, const std::byte* panels, i64 rows, i64 depth, i64 begin, i64 end,
                      std::byte* blocks) {
  std::byte nothing[kQ6KBytes] = {};
  walk(format, blocks, rows, depth, begin, end, panels, nothing,
       [&](const ToRows& four, i64 column, const Place& place, const std::byte* panel) {
         switch (format) {
           case PanelFormat::q8_0:
             return take_q8_0(four, column, place, panel);
           case PanelFormat::q4_0:
             return take_q4_0(four, column, place, panel);
           case PanelFormat::q4_k:
             return take_q4_k(four, column, place, panel);
           case PanelFormat::q6_k:
             return take_q6_k(four, column, place, panel);
         }
       });
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

std::string explain_blocks(BlockType type, bool panels) {
  const std::string weight = str("weight ", block_type_name(type));
  if (panels) return str(weight, " packed for ", simd::panels_name(simd::active_isa()));
  return panel_format(type) ? str(weight, " was not packed: ggml's rows")
                            : str(weight, " has no packed layout here: ggml's rows");
}

}  // namespace graft
