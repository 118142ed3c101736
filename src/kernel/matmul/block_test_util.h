#pragma once

#include <ggml.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "weight/stored.h"

// Test only: matrices in ggml's block formats.
namespace graft::test {

inline std::vector<BlockType> all_block_types() {
  std::vector<BlockType> types;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i)
    if (const char* name = ggml_type_name(static_cast<ggml_type>(i)))
      if (const auto found = find_block_type(name)) types.push_back(*found);
  return types;
}

inline std::vector<float> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

// Random bits in all fields of a block but its scale. ggml's own quantizers of these types take seconds to initialize.
inline std::vector<std::byte> random_blocks(BlockType type, std::size_t bytes) {
  std::mt19937 random(9);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  const auto block = static_cast<std::size_t>(block_row_bytes(type, block_elements(type)));
  constexpr std::uint16_t kScale = 0x2000;  // 2^-7
  for (std::size_t at = 0; at < bytes; at += block) {
    if (block_type_name(type) == "iq1_m") {  // each of the last four numbers has a quarter of it in its high bits
      for (std::size_t i = 1; i < 8; i += 2) out[at + block - 8 + i] &= std::byte{0x0f};
      out[at + block - 1] |= std::byte{kScale >> 8};
    } else {
      std::memcpy(out.data() + at, &kScale, sizeof(kScale));
    }
  }
  return out;
}

inline std::vector<std::byte> quantized(BlockType type, const std::vector<float>& values, std::int64_t depth) {
  const auto rows = static_cast<std::int64_t>(values.size()) / depth;
  std::vector<std::byte> out(static_cast<std::size_t>(rows * block_row_bytes(type, depth)));
  const std::string_view name = block_type_name(type);
  if (name.starts_with("iq") && !name.starts_with("iq4")) return random_blocks(type, out.size());
  const std::vector<float> importance(static_cast<std::size_t>(depth), 1.f);  // some types need importances
  ggml_quantize_chunk(static_cast<ggml_type>(type), values.data(), out.data(), 0, rows, depth, importance.data());
  return out;
}

inline std::vector<float> dequantized(BlockType type, const std::vector<std::byte>& bytes, std::int64_t depth) {
  const auto rows = static_cast<std::int64_t>(bytes.size()) / block_row_bytes(type, depth);
  std::vector<float> out(static_cast<std::size_t>(rows * depth));
  ggml_get_type_traits(static_cast<ggml_type>(type))->to_float(bytes.data(), out.data(), rows * depth);
  return out;
}

}  // namespace graft::test
