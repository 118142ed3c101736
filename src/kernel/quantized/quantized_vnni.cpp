// Compiled for AVX2 and for AVX-512 with VNNI only: see cmake/GraftLibrary.cmake.
#include "kernel/quantized/quantized_vec.h"

#include "kernel/simd/vec.h"

// Rows of the weight are read where they lie. A product of unsigned and signed bytes is one instruction; what the
// input's zero adds to it, zero * the sum of the weight, is taken off in integers, lane by lane, for each group.
namespace graft::simd::GRAFT_ISA {
namespace {

constexpr int kColumns = 4;

template <typename T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;

struct V256 {
  using Ints = __m256i;
  using Floats = __m256;
  static constexpr int kBytes = 32;
  GRAFT_VEC Ints none() { return _mm256_setzero_si256(); }
  GRAFT_VEC Ints load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  GRAFT_VEC Ints load_nibbles(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    const __m128i mask = _mm_set1_epi8(15);
    const __m256i q = _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask), _mm_and_si128(bytes, mask));
    return _mm256_sub_epi8(q, _mm256_set1_epi8(8));
  }
  GRAFT_VEC Ints ones() { return _mm256_set1_epi8(1); }
  // sums[i] + the four products of lane i; `a` is unsigned and `w` signed.
  GRAFT_VEC Ints dot(Ints sums, Ints a, Ints w) {
#if defined(__AVX512VNNI__)
    return _mm256_dpbusd_epi32(sums, a, w);
#else
    // Two products of bytes do not fit the 16 bits that the instruction for them keeps.
    const Ints low = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(a)),
                                       _mm256_cvtepi8_epi16(_mm256_castsi256_si128(w)));
    const Ints high = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(a, 1)),
                                        _mm256_cvtepi8_epi16(_mm256_extracti128_si256(w, 1)));
    return _mm256_add_epi32(sums, _mm256_add_epi32(low, high));
#endif
  }
  // dots - zero * sums
  GRAFT_VEC Ints without(Ints dots, std::int32_t zero, Ints sums) {
    return _mm256_sub_epi32(dots, _mm256_mullo_epi32(_mm256_set1_epi32(zero), sums));
  }
  GRAFT_VEC Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  GRAFT_VEC Floats no_floats() { return _mm256_setzero_ps(); }
  GRAFT_VEC Floats scaled(Ints x, float scale, Floats to) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(scale), to);
  }
  GRAFT_VEC float sum(Floats v) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  GRAFT_VEC std::int32_t sum(Ints v) {
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i pair = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, 0xb1)));
  }
};

#if defined(__AVX512VNNI__)
struct V512 {
  using Ints = __m512i;
  using Floats = __m512;
  static constexpr int kBytes = 64;
  GRAFT_VEC Ints none() { return _mm512_setzero_si512(); }
  GRAFT_VEC Ints load(const void* p) { return _mm512_loadu_si512(p); }
  GRAFT_VEC Ints load_nibbles(const void* p) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(V256::load_nibbles(p)),
                              V256::load_nibbles(static_cast<const std::byte*>(p) + 16), 1);
  }
  GRAFT_VEC Ints ones() { return _mm512_set1_epi8(1); }
  GRAFT_VEC Ints dot(Ints sums, Ints a, Ints w) { return _mm512_dpbusd_epi32(sums, a, w); }
  GRAFT_VEC Ints without(Ints dots, std::int32_t zero, Ints sums) {
    return _mm512_sub_epi32(dots, _mm512_mullo_epi32(_mm512_set1_epi32(zero), sums));
  }
  GRAFT_VEC Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  GRAFT_VEC Floats no_floats() { return _mm512_setzero_ps(); }
  GRAFT_VEC Floats scaled(Ints x, float scale, Floats to) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(scale), to);
  }
  GRAFT_VEC float sum(Floats v) { return _mm512_reduce_add_ps(v); }
  GRAFT_VEC std::int32_t sum(Ints v) { return _mm512_reduce_add_epi32(v); }
};
#endif

// kBytes elements of a row of the weight from k on, zeros from k1 on.
template <typename V, int bits>
GRAFT_VEC typename V::Ints load_weight(const std::byte* row, i64 k, i64 k1) {
  if constexpr (bits == 4) return V::load_nibbles(row + k / 2);
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
      sums[n] = V::dot(sums[n], V::ones(), weights[n]);
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
        for (int m = 0; m < M; ++m) out[m * stride + n] = V::sum(V::without(dots[m][n], x.zero[r + m], sums[n]));
        continue;
      }
      const float scale = w.scale_of(j + n, g);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m)
        floats[m][n] = V::scaled(V::without(dots[m][n], x.zero[r + m], sums[n]), scale, floats[m][n]);
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
      for (int n = 0; n < N; ++n) out[m * stride + n] = V::sum(floats[m][n]) - offsets[m][n];
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
#if defined(__AVX512VNNI__)
  if (w.group % V512::kBytes == 0)
    return w.bits == 4 ? tiles<V512, 4>(x, w, r0, rows, j0, columns, out, stride)
                       : tiles<V512, 8>(x, w, r0, rows, j0, columns, out, stride);
#endif
  return w.bits == 4 ? tiles<V256, 4>(x, w, r0, rows, j0, columns, out, stride)
                     : tiles<V256, 8>(x, w, r0, rows, j0, columns, out, stride);
}

}  // namespace

const QuantizedProducts kQuantizedProducts = {any_tiles<float>, any_tiles<std::int32_t>};

}  // namespace graft::simd::GRAFT_ISA
