#pragma once

#include <stdint.h>

// Conversions of f16 and bf16 bits, one element at a time. Static inside the namespace of each instruction set, so that
// no copy compiled for a newer CPU is linked into code for an older one.
namespace graft::simd::GRAFT_ISA {

static inline float bits_to_float(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}

static inline uint32_t float_to_bits(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
}

static inline float bf16_to_float(uint16_t h) { return bits_to_float(static_cast<uint32_t>(h) << 16); }

// Round to nearest even; every NaN becomes the quiet NaN 0x7fc0, as PyTorch does.
static inline uint16_t float_to_bf16(float f) {
  const uint32_t bits = float_to_bits(f);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(f != f ? 0x7fc0u : rounded);
}

// Branch-free, so that loops vectorize without F16C: a multiplication shifts the exponent, which is exact for
// subnormals too.
static inline float f16_to_float(uint16_t h) {
  const uint32_t w = static_cast<uint32_t>(h) << 16;
  const uint32_t sign = w & 0x80000000u;
  const uint32_t two_w = w + w;
  const float normal = bits_to_float((two_w >> 4) + (0xe0u << 23)) * 0x1.0p-112f;
  const float subnormal = bits_to_float((two_w >> 17) | (126u << 23)) - 0.5f;
  const uint32_t magnitude = two_w < (1u << 27) ? float_to_bits(subnormal) : float_to_bits(normal);
  return bits_to_float(sign | magnitude);
}

// Round to nearest even; overflow gives infinity; NaN gives 0x7e00 with the sign.
static inline uint16_t float_to_f16(float f) {
  const uint32_t w = float_to_bits(f);
  const uint32_t two_w = w + w;
  const uint32_t sign = w & 0x80000000u;
  uint32_t bias = two_w & 0xff000000u;
  bias = bias < 0x71000000u ? 0x71000000u : bias;
  const float magnitude = bits_to_float(w & 0x7fffffffu) * 0x1.0p+112f * 0x1.0p-110f;
  const uint32_t bits = float_to_bits(bits_to_float((bias >> 1) + 0x07800000u) + magnitude);
  const uint32_t finite = ((bits >> 13) & 0x00007c00u) + (bits & 0x00000fffu);
  return static_cast<uint16_t>((sign >> 16) | (two_w > 0xff000000u ? 0x7e00u : finite));
}

}  // namespace graft::simd::GRAFT_ISA
