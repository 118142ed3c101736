#pragma once

#include <cstdint>

#include "kernel/kernel.h"

// Affine quantization, x = scale * (q - zero), with a scale and a zero point per block. Block sizes [b0, b1, ...]
// divide the tensor's sizes; the parameters of a block are the element of a contiguous tensor with the sizes divided by
// the block's.
namespace graft {

struct AffineAttrs {
  std::int64_t block[kMaxRank] = {};
  double scale = 1;  // used when no input holds it
  std::int64_t zero = 0;
  std::int64_t low = 0, high = 0;  // of q, when quantizing
  std::int32_t has_scale = 0;      // an input of f32 or f64
  std::int32_t has_zero = 0;       // an input of f32, i8, u8, i32 or i64, after it
};

// Inputs {x f32, scale?, zero?}, contiguous; output i8 or u8, of the same size.
// round half to even(x * (1 / scale)) + zero, clamped; the inverse is rounded to f32, as in PyTorch. NaN becomes 0.
extern const Kernel kQuantizeAffine;
// Inputs {q i8 or u8, scale?, zero?}, contiguous; output f32.
extern const Kernel kDequantizeAffine;

enum class AffineMapping : std::int32_t { symmetric, symmetric_no_clipping, asymmetric };
struct ChooseAffineAttrs {
  std::int64_t block[kMaxRank] = {};
  double low = 0, high = 0;  // of q
  double least_scale = 0;
  AffineMapping mapping = AffineMapping::symmetric;
};
// Input {x f32} contiguous; outputs {scale f32 or f64, zero f32 or any integer}, contiguous, an element for each block:
// the parameters that cover the block's range and 0. NaN in a block makes its scale NaN and, as an integer, its zero
// point 0.
extern const Kernel kChooseAffine;

}  // namespace graft
