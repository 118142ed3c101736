#include "kernel/conv/quantized_conv_vec.h"

// Loops that the compiler vectorizes, for CPUs without the byte dot products of quantized_conv_vnni.cpp.
namespace graft::simd::GRAFT_ISA {
namespace {

using i64 = std::int64_t;
using std::int32_t;
using std::uint8_t;

constexpr int kWidth = 16, kLanes = kWidth / 4, kTileRows = 4;

float clamped(float x, const QuantizeTo& to) {
  x = x * to.inverse;
  x = x > to.low ? x : to.low;
  return x < to.high ? x : to.high;
}

// Epilogue for n channels of one position; `numbers` is the panel's scale, its bias follows `width` floats later.
void finish(const QuantizedEpilogue& e, const int32_t* sums, const float* numbers, i64 width, i64 position, i64 channel,
            i64 n) {
  float y[kWidth];
  for (i64 c = 0; c < width; ++c) y[c] = static_cast<float>(sums[c]) * numbers[c] + numbers[width + c];
  if (e.floats) {
    float* to = static_cast<float*>(e.out) + position * e.out_row + channel;
    for (i64 c = 0; c < n; ++c) to[c] = y[c];
    return;
  }
  for (i64 c = 0; c < width; ++c) y[c] = clamped(y[c], e.first);
  if (e.residual != nullptr) {
    const uint8_t* r = e.residual + position * e.residual_row + channel;
    for (i64 c = 0; c < n; ++c) {
      const auto residual = static_cast<float>(static_cast<std::int8_t>(r[c] ^ e.residual_flip));
      const float first = __builtin_rintf(y[c]) * e.scale;
      y[c] = clamped(first + (residual - e.residual_zero) * e.residual_scale, e.second);
    }
  }
  uint8_t* to = static_cast<uint8_t*>(e.out) + position * e.out_row + channel;
  for (i64 c = 0; c < n; ++c)
    to[c] = static_cast<uint8_t>((static_cast<int32_t>(__builtin_rintf(y[c])) + e.zero) ^ e.flip);
}

void conv_tile(const ByteTile& at, i64 row, uint8_t flip, const ByteRun* runs, i64 run_count, const std::byte* panel,
               int vectors, i64 first_channel, int width, const QuantizedEpilogue& e) {
  const i64 places = vectors * kLanes;
  const auto* start = reinterpret_cast<const int32_t*>(panel);
  const auto* weights = reinterpret_cast<const std::int8_t*>(start + 3 * places);
  for (int r = 0; r < at.rows; ++r) {
    int32_t sums[kWidth] = {};
    for (i64 c = 0; c < places; ++c) sums[c] = start[c];
    const std::int8_t* w = weights;
    for (i64 i = 0; i < run_count; ++i) {
      const uint8_t* x = at.x + r * row + runs[i].offset;
      for (i64 k = 0; k < runs[i].depth; ++k, w += places) {
        const auto a = static_cast<std::int16_t>(x[k] ^ flip);
        for (i64 c = 0; c < places; ++c) sums[c] += a * w[c];
      }
    }
    finish(e, sums, reinterpret_cast<const float*>(panel) + places, places, at.first + r, first_channel, width);
  }
}

using Line = QuantizedConvTable::Line;

void depthwise(const Line& d, const QuantizedEpilogue& e) {
  const std::byte* block = d.weight;
  for (i64 channel = 0; channel < d.channels; channel += kWidth) {
    const i64 n = d.channels - channel < kWidth ? d.channels - channel : kWidth;
    const auto* start = reinterpret_cast<const int32_t*>(block);
    const auto* weights = reinterpret_cast<const std::int8_t*>(start + 3 * kWidth);
    for (i64 o = 0; o < d.outputs; ++o) {
      int32_t sums[kWidth];
      for (int c = 0; c < kWidth; ++c) sums[c] = start[c];
      const std::int8_t* w = weights;
      for (i64 l = 0; l < d.lines; ++l) {
        for (i64 t = 0; t < d.taps; ++t, w += kWidth) {
          const uint8_t* x = d.columns[l * d.pitch + o * d.step + t * d.tap] + channel;
          for (i64 c = 0; c < n; ++c) sums[c] += (x[c] ^ d.flip) * w[c];
        }
      }
      finish(e, sums, reinterpret_cast<const float*>(block) + kWidth, kWidth, o, channel, n);
    }
    block += kWidth * (12 + d.lines * d.taps);
  }
}

}  // namespace

const QuantizedConvTable kQuantizedConv = {kLanes, 1, kTileRows, conv_tile, false, depthwise};

}  // namespace graft::simd::GRAFT_ISA
