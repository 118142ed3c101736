// Block functions of class f64, by the C library: see kernel/elementwise/elementwise_vec.h.
#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/elementwise/erfinv.h"

namespace graft::simd::GRAFT_ISA {
namespace {

using std::int64_t;
using std::uint8_t;

template <double (*F)(double)>
int map1(const void* const* in, void* out, int64_t n, const Number*) {
  const double* x = static_cast<const double*>(in[0]);
  double* o = static_cast<double*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(x[i]);
  return kBlockOk;
}

template <double (*F)(double, const Number*)>
int map1p(const void* const* in, void* out, int64_t n, const Number* params) {
  const double* x = static_cast<const double*>(in[0]);
  double* o = static_cast<double*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(x[i], params);
  return kBlockOk;
}

template <double (*F)(double, double, const Number*)>
int map2(const void* const* in, void* out, int64_t n, const Number* params) {
  const double* a = static_cast<const double*>(in[0]);
  const double* b = static_cast<const double*>(in[1]);
  double* o = static_cast<double*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(a[i], b[i], params);
  return kBlockOk;
}

template <double (*F)(double, double, double, const Number*)>
int map3(const void* const* in, void* out, int64_t n, const Number* params) {
  const double* a = static_cast<const double*>(in[0]);
  const double* b = static_cast<const double*>(in[1]);
  const double* c = static_cast<const double*>(in[2]);
  double* o = static_cast<double*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(a[i], b[i], c[i], params);
  return kBlockOk;
}

template <bool (*F)(double)>
int test1(const void* const* in, void* out, int64_t n, const Number*) {
  const double* x = static_cast<const double*>(in[0]);
  uint8_t* o = static_cast<uint8_t*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(x[i]);
  return kBlockOk;
}

template <bool (*F)(double, double)>
int test2(const void* const* in, void* out, int64_t n, const Number*) {
  const double* a = static_cast<const double*>(in[0]);
  const double* b = static_cast<const double*>(in[1]);
  uint8_t* o = static_cast<uint8_t*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = F(a[i], b[i]);
  return kBlockOk;
}

inline double maximum(double a, double b) { return a > b || a != a ? a : b; }
inline double minimum(double a, double b) { return a < b || a != a ? a : b; }
inline double sigmoid(double x) { return 1 / (1 + __builtin_exp(-x)); }
inline double six_steps(double x) { return minimum(maximum(x + 3, 0), 6); }

double f_identity(double x) { return x; }
double f_neg(double x) { return -x; }
double f_abs(double x) { return __builtin_fabs(x); }
double f_sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
double f_exp(double x) { return __builtin_exp(x); }
double f_exp2(double x) { return __builtin_exp2(x); }
double f_expm1(double x) { return __builtin_expm1(x); }
double f_log(double x) { return __builtin_log(x); }
double f_log1p(double x) { return __builtin_log1p(x); }
double f_log2(double x) { return __builtin_log2(x); }
double f_log10(double x) { return __builtin_log10(x); }
double f_sqrt(double x) { return __builtin_sqrt(x); }
double f_rsqrt(double x) { return 1 / __builtin_sqrt(x); }
double f_reciprocal(double x) { return 1 / x; }
double f_square(double x) { return x * x; }
double f_sin(double x) { return __builtin_sin(x); }
double f_cos(double x) { return __builtin_cos(x); }
double f_tan(double x) { return __builtin_tan(x); }
double f_asin(double x) { return __builtin_asin(x); }
double f_acos(double x) { return __builtin_acos(x); }
double f_atan(double x) { return __builtin_atan(x); }
double f_sinh(double x) { return __builtin_sinh(x); }
double f_cosh(double x) { return __builtin_cosh(x); }
double f_tanh(double x) { return __builtin_tanh(x); }
double f_asinh(double x) { return __builtin_asinh(x); }
double f_acosh(double x) { return __builtin_acosh(x); }
double f_atanh(double x) { return __builtin_atanh(x); }
double f_erf(double x) { return __builtin_erf(x); }
double f_erfc(double x) { return __builtin_erfc(x); }
double f_erfinv(double x) { return erfinv(x); }
double f_floor(double x) { return __builtin_floor(x); }
double f_ceil(double x) { return __builtin_ceil(x); }
double f_trunc(double x) { return __builtin_trunc(x); }
double f_round(double x) { return __builtin_rint(x); }
double f_frac(double x) { return x - __builtin_trunc(x); }
double f_sigmoid(double x) { return sigmoid(x); }
double f_relu(double x) { return x < 0 ? 0 : x; }
double f_silu(double x) { return x / (1 + __builtin_exp(-x)); }
double f_gelu_erf(double x) { return 0.5 * x * (1 + __builtin_erf(x * 0.70710678118654752440)); }
double f_gelu_tanh(double x) {
  return 0.5 * x * (1 + __builtin_tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
double f_hardsigmoid(double x) { return six_steps(x) / 6; }
double f_hardswish(double x) { return x * six_steps(x) / 6; }
double f_mish(double x) { return x * __builtin_tanh(__builtin_log1p(__builtin_exp(x))); }
double f_logical_not(double x) { return x == 0; }

double f_round_decimals(double x, const Number* p) {
  return p[1].f != 0 ? __builtin_rint(x / p[0].f) * p[0].f : __builtin_rint(x * p[0].f) / p[0].f;
}
double f_elu(double x, const Number* p) { return x < 0 ? __builtin_expm1(x * p[2].f) * (p[0].f * p[1].f) : x * p[1].f; }
double f_leaky_relu(double x, const Number* p) { return x > 0 ? x : x * p[0].f; }
double f_softplus(double x, const Number* p) {
  return x * p[0].f > p[1].f ? x : __builtin_log1p(__builtin_exp(x * p[0].f)) / p[0].f;
}

bool t_isnan(double x) { return x != x; }
bool t_isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }
bool t_isfinite(double x) { return __builtin_fabs(x) < __builtin_inf(); }

double f_add(double a, double b, const Number* p) { return a + b * p[0].f; }
double f_sub(double a, double b, const Number* p) { return a - b * p[0].f; }
double f_mul(double a, double b, const Number*) { return a * b; }
double f_div(double a, double b, const Number*) { return a / b; }
double f_div_trunc(double a, double b, const Number*) { return __builtin_trunc(a / b); }
double f_fmod(double a, double b, const Number*) { return __builtin_fmod(a, b); }
double f_remainder(double a, double b, const Number*) {
  const double m = __builtin_fmod(a, b);
  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
double f_div_floor(double a, double b, const Number*) {
  if (b == 0) return a / b;
  const double m = __builtin_fmod(a, b);
  double q = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) q -= 1;
  if (q == 0) return __builtin_copysign(0, a / b);
  const double f = __builtin_floor(q);
  return q - f > 0.5 ? f + 1 : f;
}
double f_pow(double a, double b, const Number*) { return __builtin_pow(a, b); }
double f_maximum(double a, double b, const Number*) { return maximum(a, b); }
double f_minimum(double a, double b, const Number*) { return minimum(a, b); }
double f_fmax(double a, double b, const Number*) { return a >= b || b != b ? a : b; }
double f_fmin(double a, double b, const Number*) { return a <= b || b != b ? a : b; }
double f_atan2(double a, double b, const Number*) { return __builtin_atan2(a, b); }
double f_hypot(double a, double b, const Number*) { return __builtin_hypot(a, b); }
double f_copysign(double a, double b, const Number*) { return __builtin_copysign(a, b); }
double f_clamp(double x, double low, double high, const Number*) { return minimum(maximum(x, low), high); }
double f_addcmul(double a, double b, double c, const Number* p) { return a + p[0].f * b * c; }
double f_addcdiv(double a, double b, double c, const Number* p) { return a + p[0].f * b / c; }
double f_lerp(double a, double b, double w, const Number*) {
  return __builtin_fabs(w) < 0.5 ? a + w * (b - a) : b - (b - a) * (1 - w);
}

bool t_eq(double a, double b) { return a == b; }
bool t_ne(double a, double b) { return a != b; }
bool t_lt(double a, double b) { return a < b; }
bool t_le(double a, double b) { return a <= b; }
bool t_gt(double a, double b) { return a > b; }
bool t_ge(double a, double b) { return a >= b; }

int where(const void* const* in, void* out, int64_t n, const Number*) {
  const uint8_t* c = static_cast<const uint8_t*>(in[0]);
  const double* a = static_cast<const double*>(in[1]);
  const double* b = static_cast<const double*>(in[2]);
  double* o = static_cast<double*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = c[i] ? a[i] : b[i];
  return kBlockOk;
}

// Lists of macros without semicolons.
// clang-format off
constexpr BlockFns make() {
  BlockFns t{};
#define GRAFT_SET(name, ...) t.of[static_cast<int>(ElementwiseOp::name)] = __VA_ARGS__;
#define GRAFT_MAP1(name) GRAFT_SET(name, map1<f_##name>)
#define GRAFT_MAP1P(name) GRAFT_SET(name, map1p<f_##name>)
#define GRAFT_MAP2(name) GRAFT_SET(name, map2<f_##name>)
#define GRAFT_MAP3(name) GRAFT_SET(name, map3<f_##name>)
#define GRAFT_TEST1(name) GRAFT_SET(name, test1<t_##name>)
#define GRAFT_TEST2(name) GRAFT_SET(name, test2<t_##name>)
  GRAFT_MAP1(identity) GRAFT_MAP1(neg) GRAFT_MAP1(abs) GRAFT_MAP1(sign) GRAFT_MAP1(exp) GRAFT_MAP1(exp2)
  GRAFT_MAP1(expm1) GRAFT_MAP1(log) GRAFT_MAP1(log1p) GRAFT_MAP1(log2) GRAFT_MAP1(log10) GRAFT_MAP1(sqrt)
  GRAFT_MAP1(rsqrt) GRAFT_MAP1(reciprocal) GRAFT_MAP1(square) GRAFT_MAP1(sin) GRAFT_MAP1(cos) GRAFT_MAP1(tan)
  GRAFT_MAP1(asin) GRAFT_MAP1(acos) GRAFT_MAP1(atan) GRAFT_MAP1(sinh) GRAFT_MAP1(cosh) GRAFT_MAP1(tanh)
  GRAFT_MAP1(asinh) GRAFT_MAP1(acosh) GRAFT_MAP1(atanh) GRAFT_MAP1(erf) GRAFT_MAP1(erfc) GRAFT_MAP1(erfinv) GRAFT_MAP1(floor)
  GRAFT_MAP1(ceil) GRAFT_MAP1(                       trunc) GRAFT_MAP1(round) GRAFT_MAP1P(round_decimals)
  GRAFT_MAP1(frac) GRAFT_MAP1(sigmoid) GRAFT_MAP1(relu) GRAFT_MAP1(silu) GRAFT_MAP1(gelu_erf) GRAFT_MAP1(gelu_tanh)
  GRAFT_MAP1P(elu) GRAFT_MAP1P(leaky_relu) GRAFT_MAP1(hardsigmoid) GRAFT_MAP1(hardswish) GRAFT_MAP1(mish)
  GRAFT_MAP1P(softplus) GRAFT_TEST1(isnan) GRAFT_TEST1(isinf) GRAFT_TEST1(isfinite) GRAFT_MAP1(logical_not)
  GRAFT_MAP2(add) GRAFT_MAP2(sub) GRAFT_MAP2(mul) GRAFT_MAP2(div) GRAFT_MAP2(div_trunc) GRAFT_MAP2(div_floor)
  GRAFT_MAP2(remainder) GRAFT_MAP2(fmod) GRAFT_MAP2(pow) GRAFT_MAP2(maximum) GRAFT_MAP2(minimum) GRAFT_MAP2(fmax)
  GRAFT_MAP2(fmin) GRAFT_MAP2(atan2) GRAFT_MAP2(hypot) GRAFT_MAP2(copysign) GRAFT_TEST2(eq) GRAFT_TEST2(ne)
  GRAFT_TEST2(lt) GRAFT_TEST2(le) GRAFT_TEST2(gt) GRAFT_TEST2(ge) GRAFT_SET(where, where) GRAFT_MAP3(clamp)
  GRAFT_MAP3(addcmul) GRAFT_MAP3(addcdiv) GRAFT_MAP3(lerp)
  return t;
}
// clang-format on

}  // namespace

extern const BlockFns kBlocksF64;
const BlockFns kBlocksF64 = make();

}  // namespace graft::simd::GRAFT_ISA
