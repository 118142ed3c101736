// Conversions of elements of any dtype to blocks and back: see kernel/elementwise/elementwise_vec.h.
#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/simd/half.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace graft::simd::GRAFT_ISA {
namespace {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
struct B8 {
  uint8_t byte;
};

// Arithmetic value of a stored element.
template <typename S>
inline S value(S s) {
  return s;
}
inline float value(F16 s) { return f16_to_float(s.bits); }
inline float value(BF16 s) { return bf16_to_float(s.bits); }
inline int32_t value(B8 s) { return s.byte != 0; }

// Out of range and NaN give the smallest integer, as the x86 conversion that PyTorch compiles to does.
inline int64_t to_i64(double x) { return x >= -0x1.0p63 && x < 0x1.0p63 ? static_cast<int64_t>(x) : INT64_MIN; }
inline int64_t to_i64(float x) { return x >= -0x1.0p63f && x < 0x1.0p63f ? static_cast<int64_t>(x) : INT64_MIN; }
inline int32_t to_i32(double x) { return x > -2147483649.0 && x < 2147483648.0 ? static_cast<int32_t>(x) : INT32_MIN; }
inline int32_t to_i32(float x) { return x >= -0x1.0p31f && x < 0x1.0p31f ? static_cast<int32_t>(x) : INT32_MIN; }

// convert(value, destination): PyTorch's conversion of one element.
template <typename V, typename D>
inline void convert(V v, D* d) {
  *d = static_cast<D>(v);
}
template <typename V>
inline void convert(V v, F16* d) {
  d->bits = float_to_f16(static_cast<float>(v));
}
template <typename V>
inline void convert(V v, BF16* d) {
  d->bits = float_to_bf16(static_cast<float>(v));
}
template <typename V>
inline void convert(V v, B8* d) {
  d->byte = v != 0;
}
inline void convert(float v, int64_t* d) { *d = to_i64(v); }
inline void convert(double v, int64_t* d) { *d = to_i64(v); }
inline void convert(float v, int32_t* d) { *d = to_i32(v); }
inline void convert(double v, int32_t* d) { *d = to_i32(v); }
inline void convert(float v, int16_t* d) { *d = static_cast<int16_t>(to_i32(v)); }
inline void convert(double v, int16_t* d) { *d = static_cast<int16_t>(to_i32(v)); }
inline void convert(float v, int8_t* d) { *d = static_cast<int8_t>(to_i32(v)); }
inline void convert(double v, int8_t* d) { *d = static_cast<int8_t>(to_i32(v)); }
inline void convert(float v, uint8_t* d) { *d = static_cast<uint8_t>(to_i64(v)); }
inline void convert(double v, uint8_t* d) { *d = static_cast<uint8_t>(to_i64(v)); }

template <typename S, typename D>
inline void convert_run(const S* __restrict src, D* __restrict dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) convert(value(src[i]), &dst[i]);
}

#if defined(__F16C__)
inline void convert_run(const F16* __restrict src, float* __restrict dst, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
  for (; i < n; ++i) dst[i] = value(src[i]);
}
inline void convert_run(const float* __restrict src, F16* __restrict dst, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  for (; i < n; ++i) convert(src[i], &dst[i]);
}
#endif

template <typename S, typename D>
void load(const void* src, int64_t stride, int64_t n, void* block) {
  D* dst = static_cast<D*>(block);
  if (stride == static_cast<int64_t>(sizeof(S))) {
    convert_run(static_cast<const S*>(src), dst, n);
    return;
  }
  const char* p = static_cast<const char*>(src);
  for (int64_t i = 0; i < n; ++i, p += stride) convert(value(*reinterpret_cast<const S*>(p)), &dst[i]);
}

template <typename S, typename D>
void store(const void* block, int64_t stride, int64_t n, void* dst) {
  const S* src = static_cast<const S*>(block);
  if (stride == static_cast<int64_t>(sizeof(D))) {
    convert_run(src, static_cast<D*>(dst), n);
    return;
  }
  char* p = static_cast<char*>(dst);
  for (int64_t i = 0; i < n; ++i, p += stride) convert(value(src[i]), reinterpret_cast<D*>(p));
}

}  // namespace

extern const ConvertFns kConvert;
const ConvertFns kConvert = {
    {{load<float, float>, load<F16, float>, load<BF16, float>, load<double, float>, load<int8_t, float>,
      load<uint8_t, float>, load<int16_t, float>, load<int32_t, float>, load<int64_t, float>, load<B8, float>},
     {load<float, double>, load<F16, double>, load<BF16, double>, load<double, double>, load<int8_t, double>,
      load<uint8_t, double>, load<int16_t, double>, load<int32_t, double>, load<int64_t, double>, load<B8, double>},
     {nullptr, nullptr, nullptr, nullptr, load<int8_t, int64_t>, load<uint8_t, int64_t>, load<int16_t, int64_t>,
      load<int32_t, int64_t>, load<int64_t, int64_t>, load<B8, int64_t>},
     {load<float, B8>, load<F16, B8>, load<BF16, B8>, load<double, B8>, load<int8_t, B8>, load<uint8_t, B8>,
      load<int16_t, B8>, load<int32_t, B8>, load<int64_t, B8>, load<B8, B8>}},
    {{store<float, float>, store<float, F16>, store<float, BF16>, store<float, double>, store<float, int8_t>,
      store<float, uint8_t>, store<float, int16_t>, store<float, int32_t>, store<float, int64_t>, store<float, B8>},
     {store<double, float>, store<double, F16>, store<double, BF16>, store<double, double>, store<double, int8_t>,
      store<double, uint8_t>, store<double, int16_t>, store<double, int32_t>, store<double, int64_t>,
      store<double, B8>},
     {store<int64_t, float>, store<int64_t, F16>, store<int64_t, BF16>, store<int64_t, double>, store<int64_t, int8_t>,
      store<int64_t, uint8_t>, store<int64_t, int16_t>, store<int64_t, int32_t>, store<int64_t, int64_t>,
      store<int64_t, B8>},
     {store<B8, float>, store<B8, F16>, store<B8, BF16>, store<B8, double>, store<B8, int8_t>, store<B8, uint8_t>,
      store<B8, int16_t>, store<B8, int32_t>, store<B8, int64_t>, store<B8, B8>}}};

}  // namespace graft::simd::GRAFT_ISA
