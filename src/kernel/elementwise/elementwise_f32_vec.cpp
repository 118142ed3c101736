// Block functions of class f32: see kernel/elementwise/elementwise_vec.h.
#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/elementwise/erfinv.h"
#include "kernel/simd/vec_math.h"

namespace graft::simd::GRAFT_ISA {
namespace {

typedef std::uint8_t vb __attribute__((vector_size(kLanes)));
typedef std::uint8_t vb_unaligned __attribute__((vector_size(kLanes), aligned(1), may_alias));

const float* floats(const void* p) { return static_cast<const float*>(p); }
float param(const Number* params, int i) { return static_cast<float>(params[i].f); }

// --- loops ---

template <vf (*F)(vf)>
int map1(const void* const* in, void* out, i64 n, const Number*) {
  const float* x = floats(in[0]);
  float* o = static_cast<float*>(out);
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes) store(o + i, F(load(x + i)));
  if (i < n) store_n(o + i, F(load_n(x + i, static_cast<int>(n - i))), static_cast<int>(n - i));
  return kBlockOk;
}

template <vf (*F)(vf, const Number*)>
int map1p(const void* const* in, void* out, i64 n, const Number* params) {
  const float* x = floats(in[0]);
  float* o = static_cast<float*>(out);
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes) store(o + i, F(load(x + i), params));
  if (i < n) store_n(o + i, F(load_n(x + i, static_cast<int>(n - i)), params), static_cast<int>(n - i));
  return kBlockOk;
}

template <vf (*F)(vf, vf, const Number*)>
int map2(const void* const* in, void* out, i64 n, const Number* params) {
  const float* a = floats(in[0]);
  const float* b = floats(in[1]);
  float* o = static_cast<float*>(out);
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes) store(o + i, F(load(a + i), load(b + i), params));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    store_n(o + i, F(load_n(a + i, left), load_n(b + i, left), params), left);
  }
  return kBlockOk;
}

template <vf (*F)(vf, vf, vf, const Number*)>
int map3(const void* const* in, void* out, i64 n, const Number* params) {
  const float* a = floats(in[0]);
  const float* b = floats(in[1]);
  const float* c = floats(in[2]);
  float* o = static_cast<float*>(out);
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes) store(o + i, F(load(a + i), load(b + i), load(c + i), params));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    store_n(o + i, F(load_n(a + i, left), load_n(b + i, left), load_n(c + i, left), params), left);
  }
  return kBlockOk;
}

void store_mask(std::uint8_t* out, vi mask, int n) {
  const vb bytes = __builtin_convertvector(mask & 1, vb);
  if (n == kLanes) {
    *reinterpret_cast<vb_unaligned*>(out) = bytes;
  } else {
    for (int i = 0; i < n; ++i) out[i] = bytes[i];
  }
}

template <vi (*F)(vf)>
int test1(const void* const* in, void* out, i64 n, const Number*) {
  const float* x = floats(in[0]);
  std::uint8_t* o = static_cast<std::uint8_t*>(out);
  for (i64 i = 0; i < n; i += kLanes) {
    const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    store_mask(o + i, F(left == kLanes ? load(x + i) : load_n(x + i, left)), left);
  }
  return kBlockOk;
}

template <vi (*F)(vf, vf)>
int test2(const void* const* in, void* out, i64 n, const Number*) {
  const float* a = floats(in[0]);
  const float* b = floats(in[1]);
  std::uint8_t* o = static_cast<std::uint8_t*>(out);
  for (i64 i = 0; i < n; i += kLanes) {
    const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    if (left == kLanes) {
      store_mask(o + i, F(load(a + i), load(b + i)), left);
    } else {
      store_mask(o + i, F(load_n(a + i, left), load_n(b + i, left)), left);
    }
  }
  return kBlockOk;
}

// The C library, one element at a time.
template <float (*F)(float)>
int each1(const void* const* in, void* out, i64 n, const Number*) {
  const float* x = floats(in[0]);
  float* o = static_cast<float*>(out);
  for (i64 i = 0; i < n; ++i) o[i] = F(x[i]);
  return kBlockOk;
}

template <float (*F)(float, float)>
int each2(const void* const* in, void* out, i64 n, const Number*) {
  const float* a = floats(in[0]);
  const float* b = floats(in[1]);
  float* o = static_cast<float*>(out);
  for (i64 i = 0; i < n; ++i) o[i] = F(a[i], b[i]);
  return kBlockOk;
}

// --- functions of one vector ---

vf f_identity(vf x) { return x; }
vf f_neg(vf x) { return -x; }
vf f_abs(vf x) { return absolute(x); }
vf f_sign(vf x) { return select(x > 0.f, splat(1.f), select(x < 0.f, splat(-1.f), zero())); }
vf f_exp(vf x) { return exp(x); }
vf f_expm1(vf x) { return expm1(x); }
vf f_log(vf x) { return log(x); }
vf f_log1p(vf x) { return log1p(x); }
vf f_sqrt(vf x) { return square_root(x); }
vf f_rsqrt(vf x) { return 1.f / square_root(x); }
vf f_reciprocal(vf x) { return 1.f / x; }
vf f_square(vf x) { return x * x; }
vf f_tanh(vf x) { return tanh(x); }
vf f_erf(vf x) { return erf(x); }
vf f_floor(vf x) { return floor(x); }
vf f_ceil(vf x) { return ceil(x); }
vf f_trunc(vf x) { return truncate(x); }
vf f_round(vf x) { return round_even(x); }
vf f_frac(vf x) { return x - truncate(x); }
vf f_sigmoid(vf x) { return sigmoid(x); }
vf f_relu(vf x) { return relu(x); }
vf f_silu(vf x) { return silu_div(x); }
vf f_gelu_erf(vf x) { return gelu_erf(x); }
vf f_gelu_tanh(vf x) { return gelu_tanh(x); }
vf six_steps(vf x) { return min_nan(max_nan(x + 3.f, zero()), splat(6.f)); }
vf f_hardsigmoid(vf x) { return six_steps(x) / 6.f; }
vf f_hardswish(vf x) { return x * six_steps(x) / 6.f; }
vf f_mish(vf x) { return x * tanh(log1p(exp(x))); }
vf f_logical_not(vf x) { return select(x == 0.f, splat(1.f), zero()); }

vf f_round_decimals(vf x, const Number* p) {
  const vf ten = splat(param(p, 0));
  return p[1].f != 0 ? round_even(x / ten) * ten : round_even(x * ten) / ten;
}
vf f_elu(vf x, const Number* p) {
  const float alpha = param(p, 0);
  const float scale = param(p, 1);
  return select(x < 0.f, expm1(x * param(p, 2)) * (alpha * scale), x * scale);
}
vf f_leaky_relu(vf x, const Number* p) { return select(x > 0.f, x, x * param(p, 0)); }
vf f_softplus(vf x, const Number* p) { return softplus(x, splat(param(p, 0)), splat(param(p, 1))); }

template <int kQuarter>
int sin_cos(const void* const* in, void* out, i64 n, const Number*) {
  const float* x = floats(in[0]);
  float* o = static_cast<float*>(out);
  const auto exact = [](float a) { return kQuarter == 0 ? __builtin_sinf(a) : __builtin_cosf(a); };
  if constexpr (!kReducesSin) {
    for (i64 i = 0; i < n; ++i) o[i] = exact(x[i]);
    return kBlockOk;
  }
  for (i64 i = 0; i < n; i += kLanes) {
    const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    const vf v = left == kLanes ? load(x + i) : load_n(x + i, left);
    const vi fits = absolute(v) < 71476.f;
    vf r = sin_reduced(v, kQuarter);
    bool all = true;
    for (int k = 0; k < kLanes; ++k) all = all && fits[k] != 0;
    if (!all) {
      for (int k = 0; k < kLanes; ++k)
        if (fits[k] == 0) r[k] = exact(v[k]);
    }
    if (left == kLanes) {
      store(o + i, r);
    } else {
      store_n(o + i, r, left);
    }
  }
  return kBlockOk;
}

vi t_isnan(vf x) { return x != x; }
vi t_isinf(vf x) { return absolute(x) == kInfinity; }
vi t_isfinite(vf x) { return absolute(x) < kInfinity; }

float e_exp2(float x) { return __builtin_exp2f(x); }
float e_log2(float x) { return __builtin_log2f(x); }
float e_log10(float x) { return __builtin_log10f(x); }
float e_tan(float x) { return __builtin_tanf(x); }
float e_asin(float x) { return __builtin_asinf(x); }
float e_acos(float x) { return __builtin_acosf(x); }
float e_atan(float x) { return __builtin_atanf(x); }
float e_sinh(float x) { return __builtin_sinhf(x); }
float e_cosh(float x) { return __builtin_coshf(x); }
float e_asinh(float x) { return __builtin_asinhf(x); }
float e_acosh(float x) { return __builtin_acoshf(x); }
float e_atanh(float x) { return __builtin_atanhf(x); }
float e_erfc(float x) { return __builtin_erfcf(x); }
float e_erfinv(float x) { return static_cast<float>(erfinv(static_cast<double>(x))); }

// --- functions of two and three ---

// The product is rounded before the sum where alpha is 1 or the operands are exact: a contraction to fma changes no
// plain sum.
vf f_add(vf a, vf b, const Number*) { return a + b; }
vf f_sub(vf a, vf b, const Number*) { return a - b; }
vf f_add_multiple(vf a, vf b, const Number* p) { return fma(b, splat(param(p, 0)), a); }
vf f_sub_multiple(vf a, vf b, const Number* p) { return fma(b, splat(-param(p, 0)), a); }
vf f_mul(vf a, vf b, const Number*) { return a * b; }
vf f_div(vf a, vf b, const Number*) { return a / b; }
vf f_div_trunc(vf a, vf b, const Number*) { return truncate(a / b); }
vf f_maximum(vf a, vf b, const Number*) { return max_nan(a, b); }
vf f_minimum(vf a, vf b, const Number*) { return min_nan(a, b); }
vf f_fmax(vf a, vf b, const Number*) { return select((a >= b) | (b != b), a, b); }
vf f_fmin(vf a, vf b, const Number*) { return select((a <= b) | (b != b), a, b); }
vf f_copysign(vf a, vf b, const Number*) { return copy_sign(a, b); }
vf f_clamp(vf x, vf low, vf high, const Number*) { return min_nan(max_nan(x, low), high); }
vf f_addcmul(vf a, vf b, vf c, const Number* p) { return a + param(p, 0) * b * c; }
vf f_addcdiv(vf a, vf b, vf c, const Number* p) { return a + param(p, 0) * b / c; }
vf f_lerp(vf a, vf b, vf w, const Number*) {
  const vf d = b - a;
  return select(absolute(w) < 0.5f, a + w * d, b - d * (1.f - w));
}

float e_fmod(float a, float b) { return __builtin_fmodf(a, b); }
float e_remainder(float a, float b) {
  const float m = __builtin_fmodf(a, b);
  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}
// Python's floor division; the quotient is corrected where a / b rounds up to the next integer.
float e_div_floor(float a, float b) {
  if (b == 0) return a / b;
  const float m = __builtin_fmodf(a, b);
  float q = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) q -= 1;
  if (q == 0) return __builtin_copysignf(0, a / b);
  const float f = __builtin_floorf(q);
  return q - f > 0.5f ? f + 1 : f;
}
float e_pow(float a, float b) { return __builtin_powf(a, b); }
float e_atan2(float a, float b) { return __builtin_atan2f(a, b); }
float e_hypot(float a, float b) { return __builtin_hypotf(a, b); }

vi t_eq(vf a, vf b) { return a == b; }
vi t_ne(vf a, vf b) { return a != b; }
vi t_lt(vf a, vf b) { return a < b; }
vi t_le(vf a, vf b) { return a <= b; }
vi t_gt(vf a, vf b) { return a > b; }
vi t_ge(vf a, vf b) { return a >= b; }

int where(const void* const* in, void* out, i64 n, const Number*) {
  const std::uint8_t* c = static_cast<const std::uint8_t*>(in[0]);
  const float* a = floats(in[1]);
  const float* b = floats(in[2]);
  float* o = static_cast<float*>(out);
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const vi mask = __builtin_convertvector(*reinterpret_cast<const vb_unaligned*>(c + i), vi) != 0;
    store(o + i, select(mask, load(a + i), load(b + i)));
  }
  for (; i < n; ++i) o[i] = c[i] ? a[i] : b[i];
  return kBlockOk;
}

template <vf (*F)(vf, vf, const Number*), vf (*FMultiple)(vf, vf, const Number*)>
int with_alpha(const void* const* in, void* out, i64 n, const Number* params) {
  return params[0].f == 1 ? map2<F>(in, out, n, params) : map2<FMultiple>(in, out, n, params);
}

constexpr BlockFns make() {
  BlockFns t{};
#define GRAFT_SET(name, ...) t.of[static_cast<int>(ElementwiseOp::name)] = __VA_ARGS__
#define GRAFT_MAP1(name) GRAFT_SET(name, map1<f_##name>)
#define GRAFT_MAP1P(name) GRAFT_SET(name, map1p<f_##name>)
#define GRAFT_MAP2(name) GRAFT_SET(name, map2<f_##name>)
#define GRAFT_MAP3(name) GRAFT_SET(name, map3<f_##name>)
#define GRAFT_EACH1(name) GRAFT_SET(name, each1<e_##name>)
#define GRAFT_EACH2(name) GRAFT_SET(name, each2<e_##name>)
#define GRAFT_TEST1(name) GRAFT_SET(name, test1<t_##name>)
#define GRAFT_TEST2(name) GRAFT_SET(name, test2<t_##name>)
  GRAFT_MAP1(identity);
  GRAFT_MAP1(neg);
  GRAFT_MAP1(abs);
  GRAFT_MAP1(sign);
  GRAFT_MAP1(exp);
  GRAFT_EACH1(exp2);
  GRAFT_MAP1(expm1);
  GRAFT_MAP1(log);
  GRAFT_MAP1(log1p);
  GRAFT_EACH1(log2);
  GRAFT_EACH1(log10);
  GRAFT_MAP1(sqrt);
  GRAFT_MAP1(rsqrt);
  GRAFT_MAP1(reciprocal);
  GRAFT_MAP1(square);
  GRAFT_SET(sin, sin_cos<0>);
  GRAFT_SET(cos, sin_cos<1>);
  GRAFT_EACH1(tan);
  GRAFT_EACH1(asin);
  GRAFT_EACH1(acos);
  GRAFT_EACH1(atan);
  GRAFT_EACH1(sinh);
  GRAFT_EACH1(cosh);
  GRAFT_MAP1(tanh);
  GRAFT_EACH1(asinh);
  GRAFT_EACH1(acosh);
  GRAFT_EACH1(atanh);
  GRAFT_MAP1(erf);
  GRAFT_EACH1(erfc);
  GRAFT_EACH1(erfinv);
  GRAFT_MAP1(floor);
  GRAFT_MAP1(ceil);
  GRAFT_MAP1(trunc);
  GRAFT_MAP1(round);
  GRAFT_MAP1P(round_decimals);
  GRAFT_MAP1(frac);
  GRAFT_MAP1(sigmoid);
  GRAFT_MAP1(relu);
  GRAFT_MAP1(silu);
  GRAFT_MAP1(gelu_erf);
  GRAFT_MAP1(gelu_tanh);
  GRAFT_MAP1P(elu);
  GRAFT_MAP1P(leaky_relu);
  GRAFT_MAP1(hardsigmoid);
  GRAFT_MAP1(hardswish);
  GRAFT_MAP1(mish);
  GRAFT_MAP1P(softplus);
  GRAFT_TEST1(isnan);
  GRAFT_TEST1(isinf);
  GRAFT_TEST1(isfinite);
  GRAFT_MAP1(logical_not);
  GRAFT_SET(add, with_alpha<f_add, f_add_multiple>);
  GRAFT_SET(sub, with_alpha<f_sub, f_sub_multiple>);
  GRAFT_MAP2(mul);
  GRAFT_MAP2(div);
  GRAFT_MAP2(div_trunc);
  GRAFT_EACH2(div_floor);
  GRAFT_EACH2(remainder);
  GRAFT_EACH2(fmod);
  GRAFT_EACH2(pow);
  GRAFT_MAP2(maximum);
  GRAFT_MAP2(minimum);
  GRAFT_MAP2(fmax);
  GRAFT_MAP2(fmin);
  GRAFT_EACH2(atan2);
  GRAFT_EACH2(hypot);
  GRAFT_MAP2(copysign);
  GRAFT_TEST2(eq);
  GRAFT_TEST2(ne);
  GRAFT_TEST2(lt);
  GRAFT_TEST2(le);
  GRAFT_TEST2(gt);
  GRAFT_TEST2(ge);
  GRAFT_SET(where, where);
  GRAFT_MAP3(clamp);
  GRAFT_MAP3(addcmul);
  GRAFT_MAP3(addcdiv);
  GRAFT_MAP3(lerp);
  return t;
}

}  // namespace

extern const BlockFns kBlocksF32;
const BlockFns kBlocksF32 = make();

}  // namespace graft::simd::GRAFT_ISA
