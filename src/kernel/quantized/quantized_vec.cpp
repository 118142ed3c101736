#include "kernel/quantized/quantized_vec.h"

#include "kernel/simd/vec.h"

// Loops that the compiler vectorizes.
namespace graft::simd::GRAFT_ISA {
namespace {

void range(const float* x, i64 n, float* least, float* largest) {
  vf low = zero(), high = zero();
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const vf v = load(x + i);
    low = -max_nan(-low, -v);
    high = max_nan(high, v);
  }
  float l = 0, h = 0;
  const auto take = [&](float a, float b) {
    if (a < l || a != a) l = l != l ? l : a;
    if (b > h || b != b) h = h != h ? h : b;
  };
  for (int lane = 0; lane < kLanes; ++lane) take(low[lane], high[lane]);
  for (; i < n; ++i) take(x[i], x[i]);
  *least = l;
  *largest = h;
}

template <typename T>
void quantize(const float* x, i64 n, float inverse, float zero, float low, float high, T* to) {
  for (i64 i = 0; i < n; ++i) {
    float v = __builtin_rintf(x[i] * inverse) + zero;
    v = v < low ? low : v;
    v = v > high ? high : v;
    v = v != v ? 0.f : v;
    to[i] = static_cast<T>(static_cast<std::int32_t>(v));
  }
}

template <typename T>
void dequantize(const T* q, i64 n, float scale, float zero, float* to) {
  for (i64 i = 0; i < n; ++i) to[i] = (static_cast<float>(q[i]) - zero) * scale;
}

void dequantize_row(const QuantizedWeight& w, i64 row, float* to) {
  const std::byte* bytes = w.q + row * w.row_bytes();
  for (i64 g = 0; g < w.groups(); ++g) {
    const float scale = w.scale_of(row, g), zero = static_cast<float>(w.zero_of(row, g));
    const i64 k = g * w.group;
    if (w.bits == 8) {
      dequantize(reinterpret_cast<const std::int8_t*>(bytes) + k, w.group, scale, zero, to + k);
      continue;
    }
    for (i64 x = k; x < k + w.group; x += kNibbleBlock) {
      const auto* block = reinterpret_cast<const std::uint8_t*>(bytes) + x / 2;
      std::int8_t q[kNibbleBlock];
      for (int i = 0; i < kNibbleBlock / 2; ++i) {
        q[i] = static_cast<std::int8_t>((block[i] & 15) - 8);
        q[kNibbleBlock / 2 + i] = static_cast<std::int8_t>((block[i] >> 4) - 8);
      }
      dequantize(q, kNibbleBlock, scale, zero, to + x);
    }
  }
}

}  // namespace

const AffineTable kAffine = {
    range,         quantize<std::int8_t>, quantize<std::uint8_t>, dequantize<std::int8_t>, dequantize<std::uint8_t>,
    dequantize_row};

}  // namespace graft::simd::GRAFT_ISA
