// Block functions of classes i64 and b8: see kernel/elementwise/elementwise_vec.h. Integer arithmetic wraps, as in
// PyTorch: it is done on unsigned numbers, and narrower types keep the low bits when they are stored.
#include "kernel/elementwise/elementwise_vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

using std::int64_t;
using std::uint64_t;
using std::uint8_t;

template <typename T, typename R, R (*F)(T)>
int map1(const void* const* in, void* out, int64_t n, const Number*) {
  const T* x = static_cast<const T*>(in[0]);
  R* o = static_cast<R*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(x[i]);
  return kBlockOk;
}

template <typename T, typename R, R (*F)(T, T)>
int map2(const void* const* in, void* out, int64_t n, const Number*) {
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(in[1]);
  R* o = static_cast<R*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(a[i], b[i]);
  return kBlockOk;
}

template <int64_t (*F)(int64_t, int64_t, const Number*)>
int map2p(const void* const* in, void* out, int64_t n, const Number* params) {
  const int64_t* a = static_cast<const int64_t*>(in[0]);
  const int64_t* b = static_cast<const int64_t*>(in[1]);
  int64_t* o = static_cast<int64_t*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(a[i], b[i], params);
  return kBlockOk;
}

template <int64_t (*F)(int64_t, int64_t, int64_t, const Number*)>
int map3(const void* const* in, void* out, int64_t n, const Number* params) {
  const int64_t* a = static_cast<const int64_t*>(in[0]);
  const int64_t* b = static_cast<const int64_t*>(in[1]);
  const int64_t* c = static_cast<const int64_t*>(in[2]);
  int64_t* o = static_cast<int64_t*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(a[i], b[i], c[i], params);
  return kBlockOk;
}

// Divisions stop at a zero divisor.
template <int64_t (*F)(int64_t, int64_t)>
int divide(const void* const* in, void* out, int64_t n, const Number*) {
  const int64_t* a = static_cast<const int64_t*>(in[0]);
  const int64_t* b = static_cast<const int64_t*>(in[1]);
  int64_t* o = static_cast<int64_t*>(out);
  for (int64_t i = 0; i < n; ++i) {
    if (b[i] == 0) return kBlockZeroDivision;
    o[i] = F(a[i], b[i]);
  }
  return kBlockOk;
}

template <typename T>
int where(const void* const* in, void* out, int64_t n, const Number*) {
  const uint8_t* c = static_cast<const uint8_t*>(in[0]);
  const T* a = static_cast<const T*>(in[1]);
  const T* b = static_cast<const T*>(in[2]);
  T* o = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = c[i] ? a[i] : b[i];
  return kBlockOk;
}

inline uint64_t u(int64_t x) { return static_cast<uint64_t>(x); }
inline int64_t s(uint64_t x) { return static_cast<int64_t>(x); }

int64_t f_identity(int64_t x) { return x; }
int64_t f_neg(int64_t x) { return s(0 - u(x)); }
int64_t f_abs(int64_t x) { return x < 0 ? f_neg(x) : x; }
int64_t f_sign(int64_t x) { return (x > 0) - (x < 0); }
int64_t f_square(int64_t x) { return s(u(x) * u(x)); }
int64_t f_relu(int64_t x) { return x < 0 ? 0 : x; }
int64_t f_bitwise_not(int64_t x) { return ~x; }
int64_t f_logical_not(int64_t x) { return x == 0; }

uint8_t t_never(int64_t) { return 0; }
uint8_t t_always(int64_t) { return 1; }

int64_t f_add(int64_t a, int64_t b, const Number* p) { return s(u(a) + u(b) * u(p[0].i)); }
int64_t f_sub(int64_t a, int64_t b, const Number* p) { return s(u(a) - u(b) * u(p[0].i)); }
int64_t f_mul(int64_t a, int64_t b) { return s(u(a) * u(b)); }
int64_t f_maximum(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t f_minimum(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t f_bitwise_and(int64_t a, int64_t b) { return a & b; }
int64_t f_bitwise_or(int64_t a, int64_t b) { return a | b; }
int64_t f_bitwise_xor(int64_t a, int64_t b) { return a ^ b; }
int64_t f_logical_and(int64_t a, int64_t b) { return a != 0 && b != 0; }
int64_t f_logical_or(int64_t a, int64_t b) { return a != 0 || b != 0; }
int64_t f_logical_xor(int64_t a, int64_t b) { return (a != 0) != (b != 0); }
// A count outside the width shifts everything out. Narrower types lose the same bits when they are stored.
int64_t f_shift_left(int64_t a, int64_t b) { return b < 0 || b > 63 ? 0 : s(u(a) << b); }
int64_t f_shift_right(int64_t a, int64_t b) { return a >> (b < 0 || b > 63 ? 63 : b); }
// -1 is a special case: the smallest integer divided by it traps.
int64_t f_div_trunc(int64_t a, int64_t b) { return b == -1 ? f_neg(a) : a / b; }
int64_t f_fmod(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
int64_t f_remainder(int64_t a, int64_t b) {
  const int64_t m = f_fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
int64_t f_div_floor(int64_t a, int64_t b) {
  if (b == -1) return f_neg(a);
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1;
  uint64_t b = u(base);
  for (uint64_t e = u(exponent); e != 0; e >>= 1, b *= b)
    if (e & 1) result *= b;
  return s(result);
}

int pow(const void* const* in, void* out, int64_t n, const Number* params) {
  const int64_t* a = static_cast<const int64_t*>(in[0]);
  const int64_t* b = static_cast<const int64_t*>(in[1]);
  int64_t* o = static_cast<int64_t*>(out);
  for (int64_t i = 0; i < n; ++i) {
    if (b[i] < 0 && params[0].i != 0) return kBlockNegativeExponent;
    o[i] = power(a[i], b[i]);
  }
  return kBlockOk;
}

int64_t f_clamp(int64_t x, int64_t low, int64_t high, const Number*) { return f_minimum(f_maximum(x, low), high); }
int64_t f_addcmul(int64_t a, int64_t b, int64_t c, const Number* p) { return s(u(a) + u(p[0].i) * u(b) * u(c)); }

template <typename T>
uint8_t t_eq(T a, T b) {
  return a == b;
}
template <typename T>
uint8_t t_ne(T a, T b) {
  return a != b;
}
template <typename T>
uint8_t t_lt(T a, T b) {
  return a < b;
}
template <typename T>
uint8_t t_le(T a, T b) {
  return a <= b;
}
template <typename T>
uint8_t t_gt(T a, T b) {
  return a > b;
}
template <typename T>
uint8_t t_ge(T a, T b) {
  return a >= b;
}

uint8_t b_identity(uint8_t x) { return x; }
uint8_t b_not(uint8_t x) { return x ^ 1; }
uint8_t b_and(uint8_t a, uint8_t b) { return a & b; }
uint8_t b_or(uint8_t a, uint8_t b) { return a | b; }
uint8_t b_xor(uint8_t a, uint8_t b) { return a ^ b; }

#define GRAFT_SET(name, ...) t.of[static_cast<int>(ElementwiseOp::name)] = __VA_ARGS__;
#define GRAFT_COMPARE(T)                   \
  GRAFT_SET(eq, map2<T, uint8_t, t_eq<T>>) \
  GRAFT_SET(ne, map2<T, uint8_t, t_ne<T>>) \
  GRAFT_SET(lt, map2<T, uint8_t, t_lt<T>>) \
  GRAFT_SET(le, map2<T, uint8_t, t_le<T>>) \
  GRAFT_SET(gt, map2<T, uint8_t, t_gt<T>>) \
  GRAFT_SET(ge, map2<T, uint8_t, t_ge<T>>) \
  GRAFT_SET(where, where<T>)

// Lists of macros without semicolons.
// clang-format off
constexpr BlockFns make_i64() {
  BlockFns t{};
#define GRAFT_MAP1(name) GRAFT_SET(name, map1<int64_t, int64_t, f_##name>)
#define GRAFT_MAP2(name) GRAFT_SET(name, map2<int64_t, int64_t, f_##name>)
#define GRAFT_DIVIDE(name) GRAFT_SET(name, divide<f_##name>)
  GRAFT_MAP1(identity)
  GRAFT_MAP1(neg)
  GRAFT_MAP1(abs) GRAFT_MAP1(sign) GRAFT_MAP1(square) GRAFT_MAP1(relu) GRAFT_MAP1(bitwise_not) GRAFT_MAP1(logical_not)
  // Rounding leaves integers as they are.
  GRAFT_SET(floor, map1<int64_t, int64_t, f_identity>) GRAFT_SET(ceil, map1<int64_t, int64_t, f_identity>)
  GRAFT_SET(trunc, map1<int64_t, int64_t, f_identity>) GRAFT_SET(round, map1<int64_t, int64_t, f_identity>)
  GRAFT_SET(isnan, map1<int64_t, uint8_t, t_never>) GRAFT_SET(isinf, map1<int64_t, uint8_t, t_never>)
  GRAFT_SET(isfinite, map1<int64_t, uint8_t, t_always>) GRAFT_SET(add, map2p<f_add>) GRAFT_SET(sub, map2p<f_sub>)
  GRAFT_MAP2(mul) GRAFT_DIVIDE(div_trunc) GRAFT_DIVIDE(div_floor) GRAFT_DIVIDE(remainder) GRAFT_DIVIDE(fmod)
  GRAFT_SET(pow, pow) GRAFT_MAP2(maximum) GRAFT_MAP2(minimum) GRAFT_SET(fmax, map2<int64_t, int64_t, f_maximum>)
  GRAFT_SET(fmin, map2<int64_t, int64_t, f_minimum>) GRAFT_MAP2(bitwise_and) GRAFT_MAP2(bitwise_or)
  GRAFT_MAP2(bitwise_xor) GRAFT_MAP2(shift_left) GRAFT_MAP2(shift_right) GRAFT_MAP2(logical_and)
  GRAFT_MAP2(logical_or) GRAFT_MAP2(logical_xor) GRAFT_COMPARE(int64_t) GRAFT_SET(clamp, map3<f_clamp>)
  GRAFT_SET(addcmul, map3<f_addcmul>)
  return t;
}
// clang-format on

// Lists of macros without semicolons.
// clang-format off
constexpr BlockFns make_b8() {
  BlockFns t{};
#define GRAFT_BOOL2(name, f) GRAFT_SET(name, map2<uint8_t, uint8_t, f>)
  GRAFT_SET(identity, map1<uint8_t, uint8_t, b_identity>) GRAFT_SET(bitwise_not, map1<uint8_t, uint8_t, b_not>)
  GRAFT_SET(logical_not, map1<uint8_t, uint8_t, b_not>) GRAFT_BOOL2(mul, b_and) GRAFT_BOOL2(minimum, b_and)
  GRAFT_BOOL2(maximum, b_or) GRAFT_BOOL2(bitwise_and, b_and) GRAFT_BOOL2(bitwise_or, b_or)
  GRAFT_BOOL2(bitwise_xor, b_xor) GRAFT_BOOL2(logical_and, b_and) GRAFT_BOOL2(logical_or, b_or)
  GRAFT_BOOL2(logical_xor, b_xor) GRAFT_COMPARE(uint8_t)
  return t;
}
// clang-format on

}  // namespace

extern const BlockFns kBlocksI64;
extern const BlockFns kBlocksB8;
const BlockFns kBlocksI64 = make_i64();
const BlockFns kBlocksB8 = make_b8();

}  // namespace graft::simd::GRAFT_ISA
