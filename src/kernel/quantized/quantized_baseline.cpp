#include "kernel/quantized/quantized_vec.h"

// For CPUs without the byte dot products of quantized_vnni.cpp.
namespace graft::simd::GRAFT_ISA {
namespace {

using i64 = std::int64_t;

int weight_at(const QuantizedWeight& w, i64 row, i64 k) {
  const std::byte* bytes = w.q + row * w.row_bytes();
  if (w.bits == 8) return reinterpret_cast<const std::int8_t*>(bytes)[k];
  const i64 block = k / kNibbleBlock, i = k % kNibbleBlock;
  constexpr int kHalf = kNibbleBlock / 2;
  const auto byte = reinterpret_cast<const std::uint8_t*>(bytes)[block * kHalf + i % kHalf];
  return (i < kHalf ? byte & 15 : byte >> 4) - 8;
}

// The sum of group g, unsigned as it may wrap.
std::int32_t group_sum(const QuantizedInput& x, const QuantizedWeight& w, i64 row, i64 column, i64 g) {
  const std::uint8_t* a = x.q + row * x.stride;
  const int zero = x.zero[row], weight_zero = w.zero_of(column, g);
  std::uint32_t sum = 0;
  for (i64 k = g * w.group; k < (g + 1) * w.group; ++k)
    sum += static_cast<std::uint32_t>((a[k] - zero) * (weight_at(w, column, k) - weight_zero));
  return static_cast<std::int32_t>(sum);
}

void product(const QuantizedInput& x, const QuantizedWeight& w, i64 r0, int rows, i64 j0, int columns, float* sums,
             i64 stride) {
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < columns; ++j) {
      float sum = 0;
      for (i64 g = 0; g < w.groups(); ++g)
        sum += static_cast<float>(group_sum(x, w, r0 + r, j0 + j, g)) * w.scale_of(j0 + j, g);
      sums[r * stride + j] = sum;
    }
  }
}

void integers(const QuantizedInput& x, const QuantizedWeight& w, i64 r0, int rows, i64 j0, int columns,
              std::int32_t* sums, i64 stride) {
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < columns; ++j) sums[r * stride + j] = group_sum(x, w, r0 + r, j0 + j, 0);
}

}  // namespace

const QuantizedProducts kQuantizedProducts = {product, integers};

}  // namespace graft::simd::GRAFT_ISA
