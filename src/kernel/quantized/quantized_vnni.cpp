// Compiled for AVX2 and for AVX-512 with VNNI only: see cmake/GraftLibrary.cmake.
#include "kernel/quantized/quantized_vec.h"

#include "kernel/simd/vec_bytes.h"

// Rows of the weight are read in place. Unsigned times signed bytes is one instruction; the contribution of the input's
// zero point, zero * the sum of the weight, is subtracted in integers, lane by lane, for each group.
namespace graft::simd::GRAFT_ISA {
namespace {

constexpr int kColumns = 4;

template <typename T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;

// dots - zero * sums
template <typename V>
GRAFT_VEC typename V::Ints without(typename V::Ints dots, std::int32_t zero, typename V::Ints sums) {
  return V::subtract(dots, V::multiply(V::splat(zero), sums));
}

// kBytes elements of a row of the weight from k on; zeros from k1 on.
template <typename V, int bits>
GRAFT_VEC typename V::Ints load_weight(const std::byte* row, i64 k, i64 k1) {
  if constexpr (bits == 4) return V::nibbles(row + k / 2);
  if (k + V::kBytes <= k1) return V::load(row + k);
  alignas(64) std::byte tail[V::kBytes] = {};
  for (i64 i = k; i < k1; ++i) tail[i - k] = row[i];
  return V::load(tail);
}

template <typename V, int bits, int M, int N>
GRAFT_VEC void group_sums(const std::uint8_t* a, i64 stride, const std::byte* w, i64 row_bytes, i64 k0, i64 k1,
                          typename V::Ints (&dots)[M][N], typename V::Ints (&sums)[N]) {
  for (i64 k = k0; k < k1; k += V::kBytes) {
    typename V::Ints weights[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      weights[n] = load_weight<V, bits>(w + n * row_bytes, k, k1);
      sums[n] = V::dot(sums[n], V::splat_byte(1), weights[n]);
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const auto input = V::load(a + m * stride + k);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) dots[m][n] = V::dot(dots[m][n], input, weights[n]);
    }
  }
}

// M rows and N columns; `out` is float or, for the sums alone, std::int32_t.
template <typename V, int bits, int M, int N, typename Out>
void tile(const QuantizedInput& x, const QuantizedWeight& w, i64 r, i64 j, Out* out, i64 stride) {
  const std::uint8_t* a = x.q + r * x.stride;
  const std::byte* rows = w.q + j * w.row_bytes();
  typename V::Floats floats[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) floats[m][n] = V::no_floats();
  float offsets[M][N] = {};
  for (i64 g = 0; g < w.groups(); ++g) {
    typename V::Ints dots[M][N], sums[N];
    for (int n = 0; n < N; ++n) {
      sums[n] = V::none();
      for (int m = 0; m < M; ++m) dots[m][n] = V::none();
    }
    group_sums<V, bits, M, N>(a, x.stride, rows, w.row_bytes(), g * w.group, (g + 1) * w.group, dots, sums);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      if constexpr (!kIsFloat<Out>) {
        for (int m = 0; m < M; ++m) out[m * stride + n] = V::sum_lanes(without<V>(dots[m][n], x.zero[r + m], sums[n]));
        continue;
      }
      const float scale = w.scale_of(j + n, g);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m)
        floats[m][n] = V::fused(V::from(without<V>(dots[m][n], x.zero[r + m], sums[n])), V::all(scale), floats[m][n]);
      const std::int32_t zero = w.zero_of(j + n, g);
      if (zero == 0) continue;
      for (int m = 0; m < M; ++m) {
        const i64 input = x.sum[(r + m) * w.groups() + g] - w.group * x.zero[r + m];
        offsets[m][n] += static_cast<float>(input * zero) * scale;
      }
    }
  }
  if constexpr (kIsFloat<Out>)
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) out[m * stride + n] = V::sum_lanes(floats[m][n]) - offsets[m][n];
}

template <typename V, int bits, int M, typename Out>
GRAFT_VEC void row_of_tiles(const QuantizedInput& x, const QuantizedWeight& w, i64 r, i64 j0, int columns, Out* out,
                            i64 stride) {
  int j = 0;
  for (; j + kColumns <= columns; j += kColumns) tile<V, bits, M, kColumns>(x, w, r, j0 + j, out + j, stride);
  for (; j < columns; ++j) tile<V, bits, M, 1>(x, w, r, j0 + j, out + j, stride);
}

template <typename V, int bits, typename Out>
void tiles(const QuantizedInput& x, const QuantizedWeight& w, i64 r0, int rows, i64 j0, int columns, Out* out,
           i64 stride) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) row_of_tiles<V, bits, 4>(x, w, r0 + r, j0, columns, out + r * stride, stride);
  if (r + 2 <= rows) {
    row_of_tiles<V, bits, 2>(x, w, r0 + r, j0, columns, out + r * stride, stride);
    r += 2;
  }
  if (r < rows) row_of_tiles<V, bits, 1>(x, w, r0 + r, j0, columns, out + r * stride, stride);
}

template <typename Out>
void any_tiles(const QuantizedInput& x, const QuantizedWeight& w, i64 r0, int rows, i64 j0, int columns, Out* out,
               i64 stride) {
  if (w.group % Widest::kBytes == 0)
    return w.bits == 4 ? tiles<Widest, 4>(x, w, r0, rows, j0, columns, out, stride)
                       : tiles<Widest, 8>(x, w, r0, rows, j0, columns, out, stride);
  return w.bits == 4 ? tiles<V256, 4>(x, w, r0, rows, j0, columns, out, stride)
                     : tiles<V256, 8>(x, w, r0, rows, j0, columns, out, stride);
}

}  // namespace

const QuantizedProducts kQuantizedProducts = {any_tiles<float>, any_tiles<std::int32_t>};

}  // namespace graft::simd::GRAFT_ISA
