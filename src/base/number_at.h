#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "graft/dtype.h"

namespace graft {

// The value of an IEEE 754 binary16 number.
inline double from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  double magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else {
    magnitude = std::ldexp(0x400 + fraction, exponent - 25);
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

template <typename T>
T load_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// An element as a double: exact, but for integers beyond 2^53.
inline double number_at(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(load_as<float>(at));
    case DType::f64:
      return load_as<double>(at);
    case DType::f16:
      return from_half(load_as<std::uint16_t>(at));
    case DType::bf16:
      return static_cast<double>(std::bit_cast<float>(std::uint32_t{load_as<std::uint16_t>(at)} << 16));
    case DType::i8:
      return load_as<std::int8_t>(at);
    case DType::u8:
    case DType::b8:
      return load_as<std::uint8_t>(at);
    case DType::i16:
      return load_as<std::int16_t>(at);
    case DType::i32:
      return load_as<std::int32_t>(at);
    case DType::i64:
      return static_cast<double>(load_as<std::int64_t>(at));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace graft
