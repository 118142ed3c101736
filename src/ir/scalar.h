#pragma once

#include <cstdint>

#include "ir/program.h"

namespace graft {

// A Python number as ATen sees it.
struct Scalar {
  ir::ValueKind kind = ir::ValueKind::integer;  // integer, real or boolean
  std::int64_t i = 0;                           // integer and boolean
  double f = 0;                                 // real
  static Scalar of(std::int64_t v) { return {ir::ValueKind::integer, v, 0}; }
  static Scalar of(double v) { return {ir::ValueKind::real, 0, v}; }
  static Scalar of(bool v) { return {ir::ValueKind::boolean, v ? 1 : 0, 0}; }
  bool is_real() const { return kind == ir::ValueKind::real; }
  double to_double() const { return is_real() ? f : static_cast<double>(i); }
  // Rounded towards zero; the smallest integer for NaN and out-of-range values, as x86 converts.
  std::int64_t to_integer() const {
    if (!is_real()) return i;
    return f >= -0x1p63 && f < 0x1p63 ? static_cast<std::int64_t>(f) : INT64_MIN;
  }
};

}  // namespace graft
