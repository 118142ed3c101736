#include "kernel/spatial/grid_sample.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernel/spatial/cubic.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Reflects at low and high, as often as needed; the arguments are twice these bounds.
template <typename T>
T reflected(T at, i64 twice_low, i64 twice_high) {
  if (twice_low == twice_high) return 0;
  const T low = static_cast<T>(twice_low) / 2, span = static_cast<T>(twice_high - twice_low) / 2;
  const T from_low = std::abs(at - low), extra = std::fmod(from_low, span);
  return std::fmod(std::floor(from_low / span), T(2)) == 0 ? extra + low : span - extra + low;
}

template <typename T>
T clipped(T at, i64 size) {
  return std::min(static_cast<T>(size - 1), std::max(at, T(0)));
}

template <typename T>
T inside(T at, i64 size, const GridSampleAttrs& attrs) {
  switch (attrs.outside) {
    case Outside::zeros:
      return at;
    case Outside::border:
      return clipped(at, size);
    case Outside::reflection:
      return clipped(attrs.align_corners != 0 ? reflected(at, 0, 2 * (size - 1)) : reflected(at, -1, 2 * size - 1),
                     size);
  }
  return at;
}

// An index outside of any image, for positions too large for an integer.
constexpr i64 kNowhere = -1000;
template <typename T>
i64 whole(T at) {
  return std::abs(at) < T(1 << 30) ? static_cast<i64>(at) : kNowhere;
}

// Up to four neighbours along one dimension: indices, -1 for none, and weights.
template <typename T>
struct Taps {
  int count = 0;
  std::array<i64, 4> index{};
  std::array<T, 4> weight{};

  void add(i64 at, i64 size, T w) {
    const auto i = static_cast<std::size_t>(count++);
    index[i] = at >= 0 && at < size ? at : -1;
    weight[i] = w;
  }
};

template <typename T>
Taps<T> taps_of(T given, i64 size, const GridSampleAttrs& attrs) {
  const T place = attrs.align_corners != 0 ? (given + 1) / 2 * static_cast<T>(size - 1)
                                           : ((given + 1) * static_cast<T>(size) - 1) / 2;
  Taps<T> taps;
  if (attrs.interpolation == Interpolation::cubic) {
    const T low = std::floor(place);
    const std::array<T, 4> weights = cubic_weights(place - low);
    for (int k = 0; k < 4; ++k)
      taps.add(whole(inside(low + static_cast<T>(k - 1), size, attrs)), size, weights[static_cast<std::size_t>(k)]);
    return taps;
  }
  const T at = inside(place, size, attrs);
  if (attrs.interpolation == Interpolation::nearest) {
    taps.add(whole(std::nearbyint(at)), size, 1);
    return taps;
  }
  const T low = std::floor(at);
  taps.add(whole(low), size, low + 1 - at);
  taps.add(whole(low + 1), size, at - low);
  return taps;
}

template <typename T>
void run(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<GridSampleAttrs>();
  const Shape &image = ctx.in(0).shape, &out = ctx.out().shape;
  const i64 channels = image[1], plane = image[2] * image[3], places = out[2] * out[3];
  const auto [begin, end] = ctx.range(out[0] * places);
  for (i64 at = begin; at < end; ++at) {
    const T* grid = ctx.input<T>(1) + at * 2;
    const Taps<T> xs = taps_of(grid[0], image[3], attrs), ys = taps_of(grid[1], image[2], attrs);
    const i64 batch = at / places;
    const T* from = ctx.input<T>(0) + batch * channels * plane;
    T* to = ctx.output<T>() + batch * channels * places + at % places;
    for (i64 c = 0; c < channels; ++c, from += plane, to += places) {
      T sum = 0;
      for (std::size_t j = 0; j < static_cast<std::size_t>(ys.count); ++j) {
        if (ys.index[j] < 0) continue;
        const T* row = from + ys.index[j] * image[3];
        T line = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(xs.count); ++i)
          if (xs.index[i] >= 0) line += xs.weight[i] * row[xs.index[i]];
        sum += ys.weight[j] * line;
      }
      *to = sum;
    }
  }
}

void grid_sample(const KernelContext& ctx) noexcept {
  ctx.out().dtype == DType::f64 ? run<double>(ctx) : run<float>(ctx);
}

}  // namespace

const Kernel kGridSample{"grid_sample", grid_sample, 1024};

}  // namespace graft
