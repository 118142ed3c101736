#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace graft {

// Element types, numbered as in schema/graft.fbs. `b8` is torch.bool: one byte, 0 or 1.
enum class DType : std::uint8_t { f32, f16, bf16, f64, i8, u8, i16, i32, i64, b8 };

inline constexpr std::size_t kDTypeCount = 10;

// Bytes of one element.
constexpr std::size_t byte_size(DType t) {
  constexpr std::size_t sizes[kDTypeCount] = {4, 2, 2, 8, 1, 1, 2, 4, 8, 1};
  return sizes[static_cast<std::size_t>(t)];
}

// "f32", "bf16", "bool", ... for messages and files.
constexpr std::string_view name(DType t) {
  constexpr std::string_view names[kDTypeCount] = {"f32", "f16", "bf16", "f64", "i8",
                                                   "u8",  "i16", "i32",  "i64", "bool"};
  return names[static_cast<std::size_t>(t)];
}

constexpr bool is_float(DType t) { return t <= DType::f64; }
constexpr bool is_integer(DType t) { return t >= DType::i8 && t <= DType::i64; }

}  // namespace graft
