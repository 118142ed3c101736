#include "kernel/reduce/reduce_vec.h"

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {
namespace {

// As many doubles as a register holds, and as many floats.
constexpr int kDoubles = kLanes / 2;
typedef double vd __attribute__((vector_size(kDoubles * 8)));
typedef double vd_unaligned __attribute__((vector_size(kDoubles * 8), aligned(8), may_alias));
typedef float vh4 __attribute__((vector_size(kDoubles * 4)));
typedef float vh4_unaligned __attribute__((vector_size(kDoubles * 4), aligned(4), may_alias));

GRAFT_VEC vd widen(const float* p) {
  return __builtin_convertvector(static_cast<vh4>(*reinterpret_cast<const vh4_unaligned*>(p)), vd);
}
GRAFT_VEC vd load_doubles(const double* p) { return *reinterpret_cast<const vd_unaligned*>(p); }
GRAFT_VEC void store_doubles(double* p, vd v) { *reinterpret_cast<vd_unaligned*>(p) = v; }

GRAFT_VEC vd step(ReduceKind kind, vd sum, vd x, vd shift) {
  switch (kind) {
    case ReduceKind::absolutes:
      return sum + (x < 0.0 ? -x : x);
    case ReduceKind::squares:
      return sum + x * x;
    case ReduceKind::squared_differences:
      return sum + (x - shift) * (x - shift);
    case ReduceKind::largest:
      return (x > sum) | (x != x) ? x : sum;
    case ReduceKind::smallest:
      return (x < sum) | (x != x) ? x : sum;
    default:
      return sum + x;
  }
}

// The exponentials of up to kLanes elements, as floats.
GRAFT_VEC void exponentials(const float* x, int n, vf shift, float* to) {
  if (n == kLanes) {
    store(to, exp(load(x) - shift));
  } else {
    store_n(to, exp(load_n(x, n) - shift), n);
  }
}

template <ReduceKind kind>
void run(const float* x, i64 n, double shift, double* lanes) {
  constexpr int kVectors = kReduceLanes / kDoubles;
  const vd s = vd{} + shift;
  vd sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = load_doubles(lanes + v * kDoubles);
  i64 i = 0;
  alignas(64) float e[kReduceLanes];
  for (; i + kReduceLanes <= n; i += kReduceLanes) {
    const float* from = x + i;
    if (kind == ReduceKind::exponentials) {
      for (int k = 0; k < kReduceLanes; k += kLanes)
        exponentials(x + i + k, kLanes, splat(static_cast<float>(shift)), e + k);
      from = e;
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sums[v] = step(kind, sums[v], widen(from + v * kDoubles), s);
  }
  for (int v = 0; v < kVectors; ++v) store_doubles(lanes + v * kDoubles, sums[v]);
  for (int k = 0; i < n; ++i, ++k) {
    float value = x[i];
    if (kind == ReduceKind::exponentials) exponentials(&value, 1, splat(static_cast<float>(shift)), &value);
    lanes[k] = step(kind, vd{} + lanes[k], vd{} + static_cast<double>(value), s)[0];
  }
}

// V vectors of columns, whose sums stay in registers from row to row.
template <ReduceKind kind, int V>
GRAFT_VEC void columns_of(const float* x, i64 row, i64 rows, const double* shift, double* sums) {
  vd sum[V];
  alignas(64) float shifts[V * kDoubles], e[V * kDoubles];
  for (int v = 0; v < V; ++v) sum[v] = load_doubles(sums + v * kDoubles);
  if (kind == ReduceKind::exponentials)
    for (int k = 0; k < V * kDoubles; ++k) shifts[k] = static_cast<float>(shift[k]);
  for (i64 r = 0; r < rows; ++r, x += row) {
    const float* from = x;
    if (kind == ReduceKind::exponentials) {
      for (int k = 0; k < V * kDoubles; k += kLanes) store(e + k, exp(load(x + k) - load(shifts + k)));
      from = e;
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      sum[v] = step(kind, sum[v], widen(from + v * kDoubles), load_doubles(shift + v * kDoubles));
  }
  for (int v = 0; v < V; ++v) store_doubles(sums + v * kDoubles, sum[v]);
}

template <ReduceKind kind>
void columns(const float* x, i64 row, i64 rows, i64 n, const double* shift, double* sums) {
  i64 i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) columns_of<kind, 8>(x + i, row, rows, shift + i, sums + i);
  for (; i + kLanes <= n; i += kLanes) columns_of<kind, 2>(x + i, row, rows, shift + i, sums + i);
  for (; i < n; ++i) {
    for (i64 r = 0; r < rows; ++r) {
      float value = x[i + r * row];
      if (kind == ReduceKind::exponentials) exponentials(&value, 1, splat(static_cast<float>(shift[i])), &value);
      sums[i] = step(kind, vd{} + sums[i], vd{} + static_cast<double>(value), vd{} + shift[i])[0];
    }
  }
}

#define GRAFT_KINDS(f)                                                                                        \
  {                                                                                                           \
    f<ReduceKind::sum>, f<ReduceKind::absolutes>, f<ReduceKind::squares>, f<ReduceKind::squared_differences>, \
        f<ReduceKind::exponentials>, f<ReduceKind::largest>, f<ReduceKind::smallest>                          \
  }

}  // namespace

const ReduceTable kReduce = {GRAFT_KINDS(run), GRAFT_KINDS(columns)};

}  // namespace graft::simd::GRAFT_ISA
