#include "kernel/reduce/distance.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace graft {
namespace {

using i64 = std::int64_t;

// Independent sums of the differences of two rows.
constexpr i64 kLanes = 16;

template <typename T>
T larger(T a, T b) {  // NaN is kept
  return b > a || b != b ? b : a;
}

template <typename T, typename Term, typename Join>
T reduced(const T* a, const T* b, i64 size, Term&& term, Join&& join) {
  T sums[kLanes] = {};
  i64 i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (i64 k = 0; k < kLanes; ++k) sums[k] = join(sums[k], term(a[i + k] - b[i + k]));
  for (i64 k = 0; i < size; ++i, ++k) sums[k] = join(sums[k], term(a[i] - b[i]));
  T result = sums[0];
  for (i64 k = 1; k < kLanes; ++k) result = join(result, sums[k]);
  return result;
}

template <typename T>
T distance(const T* a, const T* b, i64 size, double p) {
  const auto add = [](T x, T y) { return x + y; };
  if (p == 0)
    return reduced(
        a, b, size, [](T d) { return d == d ? static_cast<T>(d != 0) : d; }, add);
  if (p == 1)
    return reduced(
        a, b, size, [](T d) { return std::abs(d); }, add);
  if (p == 2)
    return std::sqrt(reduced(
        a, b, size, [](T d) { return d * d; }, add));
  if (std::isinf(p))
    return reduced(
        a, b, size, [](T d) { return std::abs(d); }, larger<T>);
  const T power = static_cast<T>(p);
  return std::pow(reduced(
                      a, b, size, [power](T d) { return std::pow(std::abs(d), power); }, add),
                  T(1) / power);
}

template <typename T>
void pairs(const KernelContext& ctx, const DistanceAttrs& attrs) {
  const T* x = ctx.input<T>(0);
  const i64 n = ctx.in(0).shape[0], size = ctx.in(0).shape[1];
  const auto [begin, end] = ctx.range(ctx.out().numel());
  if (begin >= end) return;
  i64 i = 0, first = 0;  // the first pair of row i
  while (first + n - 1 - i <= begin) first += n - 1 - i++;
  i64 j = i + 1 + begin - first;
  for (i64 at = begin; at < end; ++at) {
    ctx.output<T>()[at] = distance(x + i * size, x + j * size, size, attrs.p);
    if (++j == n) j = ++i + 1;
  }
}

template <typename T>
void run(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<DistanceAttrs>();
  if (attrs.own != 0) return pairs<T>(ctx, attrs);
  const i64 rows = ctx.in(0).shape[1], others = ctx.in(1).shape[1], size = ctx.in(0).shape[2];
  const auto [begin, end] = ctx.range(ctx.out().numel());
  for (i64 at = begin; at < end; ++at) {
    const i64 row = at / others, batch = row / rows;
    ctx.output<T>()[at] =
        distance(ctx.input<T>(0) + row * size, ctx.input<T>(1) + (batch * others + at % others) * size, size, attrs.p);
  }
}

void launch(const KernelContext& ctx) noexcept { ctx.out().dtype == DType::f64 ? run<double>(ctx) : run<float>(ctx); }

}  // namespace

const Kernel kDistance{"distance", launch, 512};

}  // namespace graft
