#pragma once

#include <cstddef>
#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/dispatch.h"

// Building blocks of affine quantization, x = scale * (q - zero), for kernel/quantized/affine.cpp and
// kernel/quantized/quantized.cpp.
namespace graft::simd {

// Elements of a block of a four-bit row: the low halves of 16 bytes, then their high halves.
inline constexpr int kNibbleBlock = 32;

// Rows of a quantized weight. Each `group` of consecutive elements of a row has its own scale and zero point.
struct QuantizedWeight {
  // bits = 8: [rows, depth] i8. bits = 4: [rows, depth / 2], element e stored as e + 8, in blocks of kNibbleBlock,
  // which divides `group`.
  const std::byte* q = nullptr;
  int bits = 8;
  std::int64_t depth = 0;
  std::int64_t group = 0;        // divides depth
  const float* scale = nullptr;  // null: 1. Strides in elements, 0 along rows or groups with a common scale
  std::int64_t scale_row = 0, scale_group = 0;
  const void* zero = nullptr;  // null: 0
  DType zero_dtype = DType::i8;
  std::int64_t zero_row = 0, zero_group = 0;

  // Always inlined: a copy compiled for one instruction set must not be linked into the others.
  [[gnu::always_inline]] std::int64_t groups() const { return depth / group; }
  [[gnu::always_inline]] std::int64_t row_bytes() const { return depth * bits / 8; }
  [[gnu::always_inline]] float scale_of(std::int64_t row, std::int64_t g) const {
    return scale == nullptr ? 1.f : scale[row * scale_row + g * scale_group];
  }
  [[gnu::always_inline]] std::int32_t zero_of(std::int64_t row, std::int64_t g) const {
    if (zero == nullptr) return 0;
    const std::int64_t i = row * zero_row + g * zero_group;
    switch (zero_dtype) {
      case DType::i8:
        return static_cast<const std::int8_t*>(zero)[i];
      case DType::i32:
        return static_cast<const std::int32_t*>(zero)[i];
      default:
        return static_cast<std::int32_t>(static_cast<const std::int64_t*>(zero)[i]);
    }
  }
};

// Rows of the operand multiplied with such a weight, as unsigned bytes: x = q - zero. The smallest stride of rows of
// that depth: vectors that start in a row may read 32 bytes.
constexpr std::int64_t quantized_stride(std::int64_t depth) { return (depth + 31 + 63) / 64 * 64; }
struct QuantizedInput {
  const std::uint8_t* q = nullptr;
  std::int64_t stride = 0;             // between rows: quantized_stride(), all of it readable
  const std::int32_t* zero = nullptr;  // by row
  // [rows, groups] sums of q; null where the weight has no zeros.
  const std::int32_t* sum = nullptr;
};

// sums[r * stride + j] = sum over groups of scale * sum over k of x[r0 + r, k] * (w[j0 + j, k] - zero) for r in [0,
// rows) and j in [0, columns). The inner sum is exact while it fits 32 bits; the outer one is in f32.
using QuantizedProduct = void (*)(const QuantizedInput& x, const QuantizedWeight& w, std::int64_t r0, int rows,
                                  std::int64_t j0, int columns, float* sums, std::int64_t stride);
// The inner sums of a weight of one group without scale and zero, which wrap as PyTorch's do.
using QuantizedIntegers = void (*)(const QuantizedInput& x, const QuantizedWeight& w, std::int64_t r0, int rows,
                                   std::int64_t j0, int columns, std::int32_t* sums, std::int64_t stride);

struct QuantizedProducts {
  QuantizedProduct product;
  QuantizedIntegers integers;
};

// Functions of a row.
struct AffineTable {
  // The minimum and maximum of n elements and 0; NaN when one is NaN.
  void (*range)(const float* x, std::int64_t n, float* least, float* largest);
  // clamp(round(x * inverse) + zero, low, high), rounded half to even; NaN becomes 0.
  void (*quantize_i8)(const float* x, std::int64_t n, float inverse, float zero, float low, float high,
                      std::int8_t* to);
  void (*quantize_u8)(const float* x, std::int64_t n, float inverse, float zero, float low, float high,
                      std::uint8_t* to);
  // (q - zero) * scale
  void (*dequantize_i8)(const std::int8_t* q, std::int64_t n, float scale, float zero, float* to);
  void (*dequantize_u8)(const std::uint8_t* q, std::int64_t n, float scale, float zero, float* to);
  // Row `row` of a weight as f32.
  void (*dequantize_row)(const QuantizedWeight& w, std::int64_t row, float* to);
};

GRAFT_TABLE("vec", AffineTable, kAffine, affine)
GRAFT_TABLE("baseline vnni", QuantizedProducts, kQuantizedProducts, quantized_products)

}  // namespace graft::simd
