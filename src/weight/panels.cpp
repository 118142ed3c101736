#include "weight/panels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/parallel.h"

namespace graft {
namespace {

using i64 = std::int64_t;

float f16_at(const std::byte* p) {
  ggml_fp16_t half;
  std::memcpy(&half, p, sizeof(half));
  return ggml_fp16_to_fp32(half);
}

unsigned u8_at(const std::byte* p) { return std::to_integer<unsigned>(*p); }
float s8_at(const std::byte* p) { return static_cast<float>(std::to_integer<std::int8_t>(*p)); }

// Offsets of the parts of a block in a panel.
struct BlockOffsets {
  i64 quants = 0;
  i64 scales = 0;    // of the group
  i64 in_group = 0;  // which block of its group
};

constexpr BlockOffsets block_offsets(PanelFormat format, i64 depth, i64 block) {
  const PanelLayout& layout = layout_of(format);
  const i64 first = block / layout.group * layout.group;
  const i64 count = std::min<i64>(layout.group, depth / kPanelBlock - first);
  const i64 start = panel_bytes(format, first * kPanelBlock);
  return {start + (block - first) * layout.quant_bytes, start + count * layout.quant_bytes, block - first};
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

// Pointers to blocks of four consecutive rows, which are columns of a panel.
template <typename Byte>
using FourRows = std::array<Byte*, 4>;
using FromRows = FourRows<const std::byte>;
using ToRows = FourRows<std::byte>;

// Transposes word i of each of four rows, from `of(row)`, to vector i of the panel.
template <typename Of>
void transpose(const FromRows& rows, std::byte* to, const Of& of) {
  const FourWords words = transposed(of(rows[0]), of(rows[1]), of(rows[2]), of(rows[3]));
  for (std::size_t i = 0; i < 4; ++i) put(to + static_cast<i64>(i) * kPanelVectorBytes, words[i]);
}

// The inverse: `take(row, words)` gets the words of each row.
template <typename Take>
void transpose_back(const std::byte* from, const ToRows& rows, const Take& take) {
  const FourWords words = transposed(words_at(from), words_at(from + kPanelVectorBytes),
                                     words_at(from + 2 * kPanelVectorBytes), words_at(from + 3 * kPanelVectorBytes));
  for (std::size_t c = 0; c < 4; ++c) take(rows[c], words[c]);
}

// Packs nibbles: those of `low` below those of `high`.
Words halves(Words low, Words high) { return (low & 0x0f0f0f0fU) | (high & 0x0f0f0f0fU) << 4; }

// Copies 16-bit numbers, at offset `from` in each block, to or from a vector of scales.
void pack_f16(const FromRows& rows, i64 from, i64 column, std::byte* scales) {
  for (i64 c = 0; c < 4; ++c) std::memcpy(scales + (column + c) * 2, rows[static_cast<std::size_t>(c)] + from, 2);
}
void unpack_f16(const ToRows& rows, i64 to, i64 column, const std::byte* scales) {
  for (i64 c = 0; c < 4; ++c) std::memcpy(rows[static_cast<std::size_t>(c)] + to, scales + (column + c) * 2, 2);
}

// Copies two bytes of each block, one for each 16 elements, at offset `from` of ggml's.
void pack_two_bytes(const FromRows& rows, i64 from, i64 column, i64 block, std::byte* scales) {
  for (i64 c = 0; c < 4; ++c) {
    for (i64 s = 2 * block; s < 2 * block + 2; ++s)
      scales[s * kPanelColumns + column + c] = rows[static_cast<std::size_t>(c)][from + s];
  }
}
void unpack_two_bytes(const ToRows& rows, i64 to, i64 column, i64 block, const std::byte* scales) {
  for (i64 c = 0; c < 4; ++c) {
    for (i64 s = 2 * block; s < 2 * block + 2; ++s)
      rows[static_cast<std::size_t>(c)][to + s] = scales[s * kPanelColumns + column + c];
  }
}

// The nibble of element i of a block of a column whose quants begin at `quants`.
int half_at(const std::byte* quants, i64 i) {
  const unsigned byte = u8_at(quants + i % 16 / 4 * kPanelVectorBytes + i % 4);
  return static_cast<int>(i < 16 ? byte & 15 : byte >> 4);
}

// Writes the nibbles of `words` to the low or the high nibbles of 32 bytes.
void put_halves(std::byte* to, Words words, bool high) {
  const Words first = words & 0x0f0f0f0fU, second = words >> 4 & 0x0f0f0f0fU;
  put(to, high ? words_at(to) | first << 4 : first);
  put(to + 16, high ? words_at(to + 16) | second << 4 : second);
}

// Two bits of each element of a block, which ggml has at offset `from` of its own: 32 bytes for each four blocks, two
// bits of a byte for each of those. Here two vectors, each of half a block.
void pack_pairs(const FromRows& rows, i64 from, i64 column, i64 block, std::byte* vectors) {
  for (i64 c = 0; c < 4; ++c) {
    for (i64 h = 0; h < 2; ++h) {
      const Words bits = words_at(rows[static_cast<std::size_t>(c)] + from + block / 4 * 32 + h * 16) >>
                             static_cast<unsigned>(block % 4 * 2) &
                         0x03030303U;
      const std::uint32_t word = bits[0] | bits[1] << 2 | bits[2] << 4 | bits[3] << 6;
      std::memcpy(vectors + h * kPanelVectorBytes + (column + c) * 4, &word, sizeof(word));
    }
  }
}
void unpack_pairs(const ToRows& rows, i64 to, i64 column, i64 block, const std::byte* vectors) {
  for (i64 c = 0; c < 4; ++c) {
    for (i64 h = 0; h < 2; ++h) {
      std::uint32_t word = 0;
      std::memcpy(&word, vectors + h * kPanelVectorBytes + (column + c) * 4, sizeof(word));
      const Words bits = (Words{word, word >> 2, word >> 4, word >> 6} & 0x03030303U)
                         << static_cast<unsigned>(block % 4 * 2);
      std::byte* pairs = rows[static_cast<std::size_t>(c)] + to + block / 4 * 32 + h * 16;
      put(pairs, block % 4 == 0 ? bits : words_at(pairs) | bits);
    }
  }
}

// Those of element i of a block of a column.
int pair_at(const std::byte* vectors, i64 column, i64 i) {
  const unsigned byte = u8_at(vectors + i / 16 * kPanelVectorBytes + column * 4 + i % 4);
  return static_cast<int>(byte >> (i % 16 / 4 * 2) & 3);
}

// One bit of each element, which ggml has at offset `from` of its block: 32 bytes, a bit of a byte for each of eight
// blocks. Here one vector for a block.
void pack_bits(const FromRows& rows, i64 from, i64 column, i64 block, std::byte* vector) {
  for (i64 c = 0; c < 4; ++c) {
    std::uint32_t word = 0;
    for (unsigned i = 0; i < 8; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, rows[static_cast<std::size_t>(c)] + from + i * 4, sizeof(bits));
      word |= (bits >> block & 0x01010101U) << i;
    }
    std::memcpy(vector + (column + c) * 4, &word, sizeof(word));
  }
}
void unpack_bits(const ToRows& rows, i64 to, i64 column, i64 block, const std::byte* vector) {
  for (i64 c = 0; c < 4; ++c) {
    std::uint32_t word = 0;
    std::memcpy(&word, vector + (column + c) * 4, sizeof(word));
    for (unsigned i = 0; i < 8; ++i) {
      std::byte* row = rows[static_cast<std::size_t>(c)] + to + i * 4;
      std::uint32_t bits = 0;
      if (block > 0) std::memcpy(&bits, row, sizeof(bits));
      bits |= (word >> i & 0x01010101U) << block;
      std::memcpy(row, &bits, sizeof(bits));
    }
  }
}

// That of element i of a block of a column.
int bit_at(const std::byte* vector, i64 column, i64 i) {
  return static_cast<int>(u8_at(vector + column * 4 + i % 4) >> (i / 4) & 1);
}

// One struct per format: packs and unpacks a block of 32 elements of four columns, and gives the values of one column
// of it. The blocks of a group of eight share bytes of ggml's rows: the first one to be unpacked overwrites them, the
// others OR into them.
struct Q8_0 {
  static constexpr PanelFormat kFormat = PanelFormat::q8_0;

  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    std::byte* quants = panel + offsets.quants + column * 4;
    for (i64 half = 0; half < 2; ++half)
      transpose(rows, quants + half * 4 * kPanelVectorBytes,
                [&](const std::byte* from) { return words_at(from + 2 + half * 16) ^ 0x80808080U; });
    pack_f16(rows, 0, column, panel + offsets.scales + offsets.in_group * 32);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    const std::byte* quants = panel + offsets.quants + column * 4;
    for (i64 half = 0; half < 2; ++half)
      transpose_back(quants + half * 4 * kPanelVectorBytes, rows,
                     [&](std::byte* to, Words words) { put(to + 2 + half * 16, words ^ 0x80808080U); });
    unpack_f16(rows, 0, column, panel + offsets.scales + offsets.in_group * 32);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const std::byte* quants = panel + offsets.quants + column * 4;
    const float scale = f16_at(panel + offsets.scales + offsets.in_group * 32 + column * 2);
    for (i64 i = 0; i < kPanelBlock; ++i)
      to[i] = scale * static_cast<float>(static_cast<int>(u8_at(quants + i / 4 * kPanelVectorBytes + i % 4)) - 128);
  }
};

struct Q4_0 {
  static constexpr PanelFormat kFormat = PanelFormat::q4_0;

  // ggml's bytes hold element i in the low nibble and i + 16 in the high nibble, like those of panels.
  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    transpose(rows, panel + offsets.quants + column * 4, [](const std::byte* from) { return words_at(from + 2); });
    pack_f16(rows, 0, column, panel + offsets.scales + offsets.in_group * 32);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    transpose_back(panel + offsets.quants + column * 4, rows, [](std::byte* to, Words words) { put(to + 2, words); });
    unpack_f16(rows, 0, column, panel + offsets.scales + offsets.in_group * 32);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const float scale = f16_at(panel + offsets.scales + offsets.in_group * 32 + column * 2);
    for (i64 i = 0; i < kPanelBlock; ++i)
      to[i] = scale * static_cast<float>(half_at(panel + offsets.quants + column * 4, i) - 8);
  }
};

struct IQ4_NL : Q4_0 {
  static constexpr PanelFormat kFormat = PanelFormat::iq4_nl;

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const float scale = f16_at(panel + offsets.scales + offsets.in_group * 32 + column * 2);
    for (i64 i = 0; i < kPanelBlock; ++i)
      to[i] = scale * static_cast<float>(kIq4Values[half_at(panel + offsets.quants + column * 4, i)]);
  }
};

// The scales of q4_k and q5_k: in ggml's block two f16 units, then six bits each of eight scales and minimums.
struct ScalesOfK {
  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    std::byte* scales = panel + offsets.scales;
    for (i64 c = 0; c < 4; ++c) {
      const auto [scale, minimum] = six_bits(rows[static_cast<std::size_t>(c)] + 4, offsets.in_group);
      scales[offsets.in_group * kPanelColumns + column + c] = static_cast<std::byte>(scale);
      scales[128 + offsets.in_group * kPanelColumns + column + c] = static_cast<std::byte>(minimum);
    }
    if (offsets.in_group > 0) return;
    pack_f16(rows, 0, column, scales + 256);
    pack_f16(rows, 2, column, scales + 288);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    if (offsets.in_group > 0) return;
    const std::byte* scales = panel + offsets.scales;
    unpack_f16(rows, 0, column, scales + 256);
    unpack_f16(rows, 2, column, scales + 288);
    for (i64 c = 0; c < 4; ++c) {
      std::byte* to = rows[static_cast<std::size_t>(c)] + 4;
      const auto scale = [&](i64 b) { return u8_at(scales + b * kPanelColumns + column + c); };
      const auto minimum = [&](i64 b) { return u8_at(scales + 128 + b * kPanelColumns + column + c); };
      for (i64 b = 0; b < 4; ++b) {
        to[b] = static_cast<std::byte>(scale(b) | scale(b + 4) >> 4 << 6);
        to[4 + b] = static_cast<std::byte>(minimum(b) | minimum(b + 4) >> 4 << 6);
        to[8 + b] = static_cast<std::byte>((scale(b + 4) & 15) | (minimum(b + 4) & 15) << 4);
      }
    }
  }

  explicit ScalesOfK(i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    const std::byte* scales = panel + offsets.scales;
    const i64 at = offsets.in_group * kPanelColumns + column;
    scale = f16_at(scales + 256 + column * 2) * static_cast<float>(u8_at(scales + at));
    minimum = f16_at(scales + 288 + column * 2) * static_cast<float>(u8_at(scales + 128 + at));
  }
  float scale, minimum;

 private:
  // Scale and minimum of block `b`.
  static std::pair<unsigned, unsigned> six_bits(const std::byte* packed, i64 b) {
    if (b < 4) return {u8_at(packed + b) & 63, u8_at(packed + b + 4) & 63};
    return {(u8_at(packed + b + 4) & 15) | (u8_at(packed + b - 4) >> 6 << 4),
            (u8_at(packed + b + 4) >> 4) | (u8_at(packed + b) >> 6 << 4)};
  }
};

// The low four bits of q4_k and q5_k, at offset `from` of ggml's block: 64 elements to 32 bytes, of which the low
// nibbles are one block of 32, the high nibbles the next.
void pack_halves_of_k(const FromRows& rows, i64 from, i64 column, const BlockOffsets& offsets, std::byte* panel) {
  const unsigned shift = offsets.in_group % 2 == 0 ? 0 : 4;
  transpose(rows, panel + offsets.quants + column * 4, [&](const std::byte* row) {
    const std::byte* quants = row + from + offsets.in_group / 2 * 32;
    return halves(words_at(quants) >> shift, words_at(quants + 16) >> shift);
  });
}
void unpack_halves_of_k(const ToRows& rows, i64 to, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
  transpose_back(panel + offsets.quants + column * 4, rows, [&](std::byte* row, Words words) {
    put_halves(row + to + offsets.in_group / 2 * 32, words, offsets.in_group % 2 != 0);
  });
}

struct Q4_K {
  static constexpr PanelFormat kFormat = PanelFormat::q4_k;

  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    pack_halves_of_k(rows, 16, column, offsets, panel);
    ScalesOfK::pack(rows, column, offsets, panel);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    unpack_halves_of_k(rows, 16, column, offsets, panel);
    ScalesOfK::unpack(rows, column, offsets, panel);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const ScalesOfK s(column, offsets, panel);
    for (i64 i = 0; i < kPanelBlock; ++i)
      to[i] = s.scale * static_cast<float>(half_at(panel + offsets.quants + column * 4, i)) - s.minimum;
  }
};

struct Q5_K {
  static constexpr PanelFormat kFormat = PanelFormat::q5_k;
  static constexpr i64 kHigh = 4 * kPanelVectorBytes;  // offset of the fifth bits, after the nibbles

  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    pack_halves_of_k(rows, 48, column, offsets, panel);
    pack_bits(rows, 16, column, offsets.in_group, panel + offsets.quants + kHigh);
    ScalesOfK::pack(rows, column, offsets, panel);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    unpack_halves_of_k(rows, 48, column, offsets, panel);
    unpack_bits(rows, 16, column, offsets.in_group, panel + offsets.quants + kHigh);
    ScalesOfK::unpack(rows, column, offsets, panel);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const ScalesOfK s(column, offsets, panel);
    const std::byte* quants = panel + offsets.quants;
    for (i64 i = 0; i < kPanelBlock; ++i) {
      const int q = half_at(quants + column * 4, i) | bit_at(quants + kHigh, column, i) << 4;
      to[i] = s.scale * static_cast<float>(q) - s.minimum;
    }
  }
};

struct Q6_K {
  static constexpr PanelFormat kFormat = PanelFormat::q6_k;
  static constexpr i64 kHigh = 4 * kPanelVectorBytes;  // offset of the high two bits

  // 128 elements take 64 bytes of four bits and 32 of two: blocks 0 and 1 have the low nibbles of the former, blocks 2
  // and 3 the high ones; each has two bits of all of the latter.
  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    const i64 quarter = offsets.in_group % 4;
    std::byte* quants = panel + offsets.quants;
    transpose(rows, quants + column * 4, [&](const std::byte* from) {
      const std::byte* low = from + offsets.in_group / 4 * 64 + quarter % 2 * 32;
      const unsigned shift = quarter < 2 ? 0 : 4;
      return halves(words_at(low) >> shift, words_at(low + 16) >> shift);
    });
    pack_pairs(rows, 128, column, offsets.in_group, quants + kHigh);
    std::byte* scales = panel + offsets.scales;
    pack_two_bytes(rows, 192, column, offsets.in_group, scales);
    if (offsets.in_group == 0) pack_f16(rows, 208, column, scales + 256);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    const i64 quarter = offsets.in_group % 4;
    const std::byte* quants = panel + offsets.quants;
    transpose_back(quants + column * 4, rows, [&](std::byte* to, Words words) {
      put_halves(to + offsets.in_group / 4 * 64 + quarter % 2 * 32, words, quarter >= 2);
    });
    unpack_pairs(rows, 128, column, offsets.in_group, quants + kHigh);
    const std::byte* scales = panel + offsets.scales;
    unpack_two_bytes(rows, 192, column, offsets.in_group, scales);
    if (offsets.in_group == 0) unpack_f16(rows, 208, column, scales + 256);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const std::byte* quants = panel + offsets.quants;
    const std::byte* scales = panel + offsets.scales;
    const float unit = f16_at(scales + 256 + column * 2);
    for (i64 i = 0; i < kPanelBlock; ++i) {
      const int q = half_at(quants + column * 4, i) | pair_at(quants + kHigh, column, i) << 4;
      to[i] =
          unit * s8_at(scales + (offsets.in_group * 2 + i / 16) * kPanelColumns + column) * static_cast<float>(q - 32);
    }
  }
};

struct IQ4_XS {
  static constexpr PanelFormat kFormat = PanelFormat::iq4_xs;

  // ggml's block: an f16 unit, two bits of each of eight scales, four bits of each, then the quants as q4_0.
  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    const i64 b = offsets.in_group;
    transpose(rows, panel + offsets.quants + column * 4,
              [&](const std::byte* from) { return words_at(from + 8 + b * 16); });
    std::byte* scales = panel + offsets.scales;
    for (i64 c = 0; c < 4; ++c) {
      const std::byte* row = rows[static_cast<std::size_t>(c)];
      const unsigned low = u8_at(row + 4 + b / 2) >> (b % 2 * 4) & 15, high = u8_at(row + 2 + b / 4) >> (b % 4 * 2) & 3;
      scales[b * kPanelColumns + column + c] = static_cast<std::byte>(static_cast<int>(low | high << 4) - 32);
    }
    if (b == 0) pack_f16(rows, 0, column, scales + 128);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    const i64 b = offsets.in_group;
    transpose_back(panel + offsets.quants + column * 4, rows,
                   [&](std::byte* to, Words words) { put(to + 8 + b * 16, words); });
    const std::byte* scales = panel + offsets.scales;
    for (i64 c = 0; c < 4; ++c) {
      std::byte* to = rows[static_cast<std::size_t>(c)];
      const unsigned scale = u8_at(scales + b * kPanelColumns + column + c) + 32;
      std::byte &low = to[4 + b / 2], &high = to[2 + b / 4];
      if (b % 2 == 0) low = {};
      if (b % 4 == 0) high = {};
      low |= static_cast<std::byte>((scale & 15) << (b % 2 * 4));
      high |= static_cast<std::byte>((scale >> 4 & 3) << (b % 4 * 2));
    }
    if (b == 0) unpack_f16(rows, 0, column, scales + 128);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const std::byte* scales = panel + offsets.scales;
    const float scale = f16_at(scales + 128 + column * 2) * s8_at(scales + offsets.in_group * kPanelColumns + column);
    for (i64 i = 0; i < kPanelBlock; ++i)
      to[i] = scale * static_cast<float>(kIq4Values[half_at(panel + offsets.quants + column * 4, i)]);
  }
};

struct MXFP4 {
  static constexpr PanelFormat kFormat = PanelFormat::mxfp4;

  // ggml's block: the exponent of its scale, then the quants as q4_0.
  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    transpose(rows, panel + offsets.quants + column * 4, [](const std::byte* from) { return words_at(from + 1); });
    std::byte* exponents = panel + offsets.scales + offsets.in_group * kPanelColumns + column;
    for (i64 c = 0; c < 4; ++c) exponents[c] = rows[static_cast<std::size_t>(c)][0];
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    transpose_back(panel + offsets.quants + column * 4, rows, [](std::byte* to, Words words) { put(to + 1, words); });
    const std::byte* exponents = panel + offsets.scales + offsets.in_group * kPanelColumns + column;
    for (i64 c = 0; c < 4; ++c) rows[static_cast<std::size_t>(c)][0] = exponents[c];
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const unsigned exponent = u8_at(panel + offsets.scales + offsets.in_group * kPanelColumns + column);
    const float scale = std::ldexp(1.F, static_cast<int>(exponent) - 128);
    for (i64 i = 0; i < kPanelBlock; ++i)
      to[i] = scale * static_cast<float>(kMxfp4Values[half_at(panel + offsets.quants + column * 4, i)]);
  }
};

struct Q2_K {
  static constexpr PanelFormat kFormat = PanelFormat::q2_k;

  // ggml's block: a byte for each 16 elements, the quants, two f16 units.
  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    pack_pairs(rows, 16, column, offsets.in_group, panel + offsets.quants);
    std::byte* scales = panel + offsets.scales;
    pack_two_bytes(rows, 0, column, offsets.in_group, scales);
    if (offsets.in_group > 0) return;
    pack_f16(rows, 80, column, scales + 256);
    pack_f16(rows, 82, column, scales + 288);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    unpack_pairs(rows, 16, column, offsets.in_group, panel + offsets.quants);
    const std::byte* scales = panel + offsets.scales;
    unpack_two_bytes(rows, 0, column, offsets.in_group, scales);
    if (offsets.in_group > 0) return;
    unpack_f16(rows, 80, column, scales + 256);
    unpack_f16(rows, 82, column, scales + 288);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const std::byte* scales = panel + offsets.scales;
    const float unit = f16_at(scales + 256 + column * 2), unit_of_minimum = f16_at(scales + 288 + column * 2);
    for (i64 i = 0; i < kPanelBlock; ++i) {
      const unsigned both = u8_at(scales + (offsets.in_group * 2 + i / 16) * kPanelColumns + column);
      const float scale = unit * static_cast<float>(both & 15),
                  minimum = unit_of_minimum * static_cast<float>(both >> 4);
      to[i] = scale * static_cast<float>(pair_at(panel + offsets.quants, column, i)) - minimum;
    }
  }
};

struct Q3_K {
  static constexpr PanelFormat kFormat = PanelFormat::q3_k;
  static constexpr i64 kHigh = 2 * kPanelVectorBytes;  // offset of the third bits

  // ggml's block: the third bits, the low two, six bits each of 16 scales, an f16 unit.
  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    pack_pairs(rows, 32, column, offsets.in_group, panel + offsets.quants);
    pack_bits(rows, 0, column, offsets.in_group, panel + offsets.quants + kHigh);
    std::byte* scales = panel + offsets.scales;
    for (i64 c = 0; c < 4; ++c) {
      const std::byte* packed = rows[static_cast<std::size_t>(c)] + 96;
      for (i64 s = 2 * offsets.in_group; s < 2 * offsets.in_group + 2; ++s) {
        const unsigned low = u8_at(packed + s % 8) >> (s / 8 * 4) & 15,
                       high = u8_at(packed + 8 + s % 4) >> (s / 4 * 2) & 3;
        scales[s * kPanelColumns + column + c] = static_cast<std::byte>(static_cast<int>(low | high << 4) - 32);
      }
    }
    if (offsets.in_group == 0) pack_f16(rows, 108, column, scales + 256);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    unpack_pairs(rows, 32, column, offsets.in_group, panel + offsets.quants);
    unpack_bits(rows, 0, column, offsets.in_group, panel + offsets.quants + kHigh);
    const std::byte* scales = panel + offsets.scales;
    for (i64 c = 0; c < 4; ++c) {
      std::byte* packed = rows[static_cast<std::size_t>(c)] + 96;
      if (offsets.in_group == 0) std::fill_n(packed, 12, std::byte{});
      for (i64 s = 2 * offsets.in_group; s < 2 * offsets.in_group + 2; ++s) {
        const unsigned scale = u8_at(scales + s * kPanelColumns + column + c) + 32;
        packed[s % 8] |= static_cast<std::byte>((scale & 15) << (s / 8 * 4));
        packed[8 + s % 4] |= static_cast<std::byte>((scale >> 4 & 3) << (s / 4 * 2));
      }
    }
    if (offsets.in_group == 0) unpack_f16(rows, 108, column, scales + 256);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const std::byte* quants = panel + offsets.quants;
    const std::byte* scales = panel + offsets.scales;
    const float unit = f16_at(scales + 256 + column * 2);
    for (i64 i = 0; i < kPanelBlock; ++i) {
      const int q = pair_at(quants, column, i) | bit_at(quants + kHigh, column, i) << 2;
      to[i] =
          unit * s8_at(scales + (offsets.in_group * 2 + i / 16) * kPanelColumns + column) * static_cast<float>(q - 4);
    }
  }
};

struct TQ2_0 {
  static constexpr PanelFormat kFormat = PanelFormat::tq2_0;

  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    pack_pairs(rows, 0, column, offsets.in_group, panel + offsets.quants);
    if (offsets.in_group == 0) pack_f16(rows, 64, column, panel + offsets.scales);
  }

  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    unpack_pairs(rows, 0, column, offsets.in_group, panel + offsets.quants);
    if (offsets.in_group == 0) unpack_f16(rows, 64, column, panel + offsets.scales);
  }

  static void row(i64 column, const BlockOffsets& offsets, const std::byte* panel, float* to) {
    const float scale = f16_at(panel + offsets.scales + column * 2);
    for (i64 i = 0; i < kPanelBlock; ++i)
      to[i] = scale * static_cast<float>(pair_at(panel + offsets.quants, column, i) - 1);
  }
};

struct TQ1_0 : TQ2_0 {
  static constexpr PanelFormat kFormat = PanelFormat::tq1_0;

  // ggml's block: bytes of five digits to the base of 3, the first in the highest place, as fractions of 256, rounded
  // up: of 32 bytes digit b is block b, of 16 more bytes each digit half a block, and of 4 more each of four digits an
  // eighth. Then an f16 scale.
  static void pack(const FromRows& rows, i64 column, const BlockOffsets& offsets, std::byte* panel) {
    for (i64 c = 0; c < 4; ++c) {
      const std::byte* row = rows[static_cast<std::size_t>(c)];
      for (i64 h = 0; h < 2; ++h) {
        const i64 half = 2 * offsets.in_group + h;
        std::uint32_t word = 0;
        for (i64 i = 0; i < 16; ++i) {
          const auto [byte, digit] = place_of(half, i);
          const unsigned rest = u8_at(row + byte) * kPowers[digit] & 255;
          word |= (rest * 3 >> 8) << (i % 4 * 8 + i / 4 * 2);
        }
        std::memcpy(panel + offsets.quants + h * kPanelVectorBytes + (column + c) * 4, &word, sizeof(word));
      }
    }
    if (offsets.in_group == 0) pack_f16(rows, kScale, column, panel + offsets.scales);
  }

  // Digits are added from the first one on; the last makes the fraction.
  static void unpack(const ToRows& rows, i64 column, const BlockOffsets& offsets, const std::byte* panel) {
    for (i64 c = 0; c < 4; ++c) {
      std::byte* row = rows[static_cast<std::size_t>(c)];
      for (i64 i = 0; i < kPanelBlock; ++i) {
        const auto [byte, digit] = place_of(2 * offsets.in_group + i / 16, i % 16);
        unsigned value = digit == 0 ? 0 : u8_at(row + byte);
        value = 3 * value + static_cast<unsigned>(pair_at(panel + offsets.quants, column + c, i));
        if (byte >= kLast && digit == 3) value *= 3;
        if (digit == (byte >= kLast ? 3 : 4)) value = (value * 256 + 242) / 243;
        row[byte] = static_cast<std::byte>(value);
      }
    }
    if (offsets.in_group == 0) unpack_f16(rows, kScale, column, panel + offsets.scales);
  }

 private:
  static constexpr i64 kLast = 48, kScale = 52;  // offsets of the bytes of four digits, and of the scale
  static constexpr unsigned kPowers[] = {1, 3, 9, 27, 81};

  // The byte and digit of element i of a half.
  static std::pair<i64, std::size_t> place_of(i64 half, i64 i) {
    if (half < 10) return {half % 2 * 16 + i, static_cast<std::size_t>(half / 2)};
    if (half < 15) return {32 + i, static_cast<std::size_t>(half - 10)};
    return {kLast + i % 4, static_cast<std::size_t>(i / 4)};
  }
};

constexpr std::size_t kMostBlockBytes =
    static_cast<std::size_t>(std::ranges::max(kPanelLayouts, {}, &PanelLayout::bytes).bytes);

// Calls visit(four rows, column, offsets, panel) for each block of 32 elements of each four rows of panels [begin,
// end); rows past the last one are `nothing`.
template <typename F, typename Byte, typename Panel, typename Visit>
void walk(Byte* blocks, i64 rows, i64 depth, i64 begin, i64 end, Panel* panels, Byte* nothing, const Visit& visit) {
  constexpr PanelLayout kLayout = layout_of(F::kFormat);
  const i64 bytes = panel_bytes(F::kFormat, depth), row_bytes = depth / kLayout.elements * kLayout.bytes;
  for (i64 p = begin; p < end; ++p) {
    for (i64 b = 0; b < depth / kPanelBlock; ++b) {
      const BlockOffsets offsets = block_offsets(F::kFormat, depth, b);
      const i64 at = b * kPanelBlock / kLayout.elements * kLayout.bytes;
      for (i64 column = 0; column < kPanelColumns; column += 4) {
        FourRows<Byte> four;
        for (i64 c = 0; c < 4; ++c) {
          const i64 row = p * kPanelColumns + column + c;
          four[static_cast<std::size_t>(c)] = row < rows ? blocks + row * row_bytes + at : nothing;
        }
        visit(four, column, offsets, panels + p * bytes);
      }
    }
  }
}

template <typename F>
void pack(const std::byte* blocks, i64 rows, i64 depth, i64 begin, i64 end, std::byte* panels) {
  static constexpr std::byte kNothing[kMostBlockBytes] = {};  // a block with a scale of 0
  walk<F>(blocks, rows, depth, begin, end, panels, kNothing, F::pack);
}

template <typename F>
void unpack(const std::byte* panels, i64 rows, i64 depth, i64 begin, i64 end, std::byte* blocks) {
  std::byte nothing[kMostBlockBytes] = {};
  walk<F>(blocks, rows, depth, begin, end, panels, nothing, F::unpack);
}

template <typename F>
void row(const std::byte* panel, i64 column, i64 depth, float* to) {
  for (i64 b = 0; b < depth / kPanelBlock; ++b)
    F::row(column, block_offsets(F::kFormat, depth, b), panel, to + b * kPanelBlock);
}

struct Packing {
  PanelFormat format;
  void (*pack)(const std::byte* blocks, i64 rows, i64 depth, i64 begin, i64 end, std::byte* panels);
  void (*unpack)(const std::byte* panels, i64 rows, i64 depth, i64 begin, i64 end, std::byte* blocks);
  void (*row)(const std::byte* panel, i64 column, i64 depth, float* to);
};
template <typename F>
constexpr Packing kPackingOf = {F::kFormat, pack<F>, unpack<F>, row<F>};

// In the order of PanelFormat.
constexpr Packing kPackings[] = {kPackingOf<Q8_0>, kPackingOf<Q4_0>,   kPackingOf<Q4_K>,   kPackingOf<Q6_K>,
                                 kPackingOf<Q5_K>, kPackingOf<IQ4_NL>, kPackingOf<IQ4_XS>, kPackingOf<MXFP4>,
                                 kPackingOf<Q2_K>, kPackingOf<Q3_K>,   kPackingOf<TQ2_0>,  kPackingOf<TQ1_0>};
static_assert(std::ranges::equal(kPackings, kPanelLayouts, {}, &Packing::format, &PanelLayout::format));

const Packing& packing_of(PanelFormat format) { return kPackings[static_cast<std::size_t>(format)]; }

// Divides that many rows' panels among threads: calls work(begin, end).
template <typename Work>
void for_panels(i64 rows, int threads, const Work& work) {
  const i64 panels = panel_count(rows), parts = std::max(std::min<i64>(threads, panels), i64{1});
  in_parallel(static_cast<int>(parts), [&](int i) { work(panels * i / parts, panels * (i + 1) / parts); });
}

}  // namespace

std::optional<PanelFormat> panel_format_of(BlockType type) {
  for (const PanelLayout& layout : kPanelLayouts)
    if (static_cast<BlockType>(layout.type) == type) return layout.format;
  return std::nullopt;
}

void pack_panels(PanelFormat format, const std::byte* blocks, i64 rows, i64 depth, std::byte* panels, int threads) {
  for_panels(rows, threads,
             [&](i64 begin, i64 end) { packing_of(format).pack(blocks, rows, depth, begin, end, panels); });
}

void unpack_panels(PanelFormat format, const std::byte* panels, i64 rows, i64 depth, std::byte* blocks, int threads) {
  for_panels(rows, threads,
             [&](i64 begin, i64 end) { packing_of(format).unpack(panels, rows, depth, begin, end, blocks); });
}

void unpack_row(PanelFormat format, const std::byte* panels, i64 depth, i64 row, float* to) {
  packing_of(format).row(panels + row / kPanelColumns * panel_bytes(format, depth), row % kPanelColumns, depth, to);
}

}  // namespace graft
