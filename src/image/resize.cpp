#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "base/rethrow.h"
#include "graft/image.h"

namespace graft {
namespace {

constexpr int kPrecision = 32 - 8 - 2;  // bits of a coefficient: sums of bytes by them fit 32 bits
constexpr std::int64_t kChannels = 3;

double sinc(double x) { return x == 0 ? 1 : std::sin(x * std::numbers::pi) / (x * std::numbers::pi); }

struct Filter {
  double support;  // it is 0 from here on
  double (*weight)(double x);
};

Filter filter_of(Resample resample) {
  switch (resample) {
    case Resample::box:
      return {0.5, [](double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }};
    case Resample::bilinear:
      return {1, [](double x) { return std::max(1 - std::abs(x), 0.0); }};
    case Resample::hamming:
      return {1, [](double x) {
                x = std::abs(x);
                return x >= 1 ? 0.0 : sinc(x) * (double{0.54F} + double{0.46F} * std::cos(x * std::numbers::pi));
              }};
    case Resample::bicubic:
      return {2, [](double x) {
                constexpr double a = -0.5;
                x = std::abs(x);
                return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
              }};
    case Resample::lanczos:
      return {3, [](double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0.0; }};
    case Resample::nearest:
      break;
  }
  GRAFT_ASSERT(false);
  return {};
}

// What a pixel of the result is made of: `count` pixels from `first` on, each with its coefficient.
struct Taps {
  std::int64_t first = 0;
  std::vector<std::int32_t> weights;
};

std::vector<Taps> taps_of(std::int64_t from, std::int64_t to, const Filter& filter) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), widened = std::max(scale, 1.0);
  const double support = filter.support * widened;
  std::vector<Taps> all(static_cast<std::size_t>(to));
  std::vector<double> weights;
  for (std::int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const std::int64_t first = std::max(static_cast<std::int64_t>(center - support + 0.5), std::int64_t{0});
    const std::int64_t end = std::min(static_cast<std::int64_t>(center + support + 0.5), from);
    weights.clear();
    double sum = 0;
    for (std::int64_t x = first; x < end; ++x) {
      weights.push_back(filter.weight((static_cast<double>(x) - center + 0.5) * (1 / widened)));
      sum += weights.back();
    }
    Taps& taps = all[static_cast<std::size_t>(i)];
    taps.first = first;
    for (const double weight : weights) {
      const double scaled = (sum != 0 ? weight / sum : weight) * (1 << kPrecision);
      taps.weights.push_back(static_cast<std::int32_t>(scaled + (scaled < 0 ? -0.5 : 0.5)));
    }
  }
  return all;
}

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kPrecision, 0, 255)); }

// The two passes: pixel i of a line of the result is made of those of a line that lie `step` bytes apart.
void apply(const std::vector<Taps>& taps, const std::uint8_t* from, std::int64_t step, std::uint8_t* to,
           std::int64_t to_step, std::int64_t bytes) {
  for (const Taps& one : taps) {
    for (std::int64_t c = 0; c < bytes; ++c) {
      std::int32_t sum = 1 << (kPrecision - 1);
      const std::uint8_t* at = from + one.first * step + c;
      for (const std::int32_t weight : one.weights) {
        sum += weight * *at;
        at += step;
      }
      to[c] = rounded(sum);
    }
    to += to_step;
  }
}

Image nearest(const Image& image, std::int64_t height, std::int64_t width) {
  Image out{height, width, {}};
  out.pixels.reserve(static_cast<std::size_t>(height * width * kChannels));
  // Added up, as Pillow does: a product is rounded otherwise, and may name the pixel beside.
  const auto sources = [](std::int64_t from, std::int64_t to) {
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    std::vector<std::int64_t> all;
    double at = scale * 0.5;
    for (std::int64_t i = 0; i < to; ++i, at += scale) all.push_back(std::min(static_cast<std::int64_t>(at), from - 1));
    return all;
  };
  const std::vector<std::int64_t> columns = sources(image.width, width);
  for (const std::int64_t y : sources(image.height, height))
    for (const std::int64_t x : columns) {
      const std::int64_t at = y * image.width + x;
      for (std::int64_t c = 0; c < kChannels; ++c)
        out.pixels.push_back(image.pixels[static_cast<std::size_t>(at * kChannels + c)]);
    }
  return out;
}

Image filtered(const Image& image, std::int64_t height, std::int64_t width, const Filter& filter) {
  Image wide{image.height, width, {}};
  const std::int64_t row = image.width * kChannels, wide_row = width * kChannels;
  if (width == image.width) {
    wide.pixels = image.pixels;
  } else {
    wide.pixels.resize(static_cast<std::size_t>(image.height * wide_row));
    const std::vector<Taps> taps = taps_of(image.width, width, filter);
    for (std::int64_t y = 0; y < image.height; ++y)
      apply(taps, image.pixels.data() + y * row, kChannels, wide.pixels.data() + y * wide_row, kChannels, kChannels);
  }
  if (height == image.height) return wide;
  Image out{height, width, {}};
  out.pixels.resize(static_cast<std::size_t>(height * wide_row));
  apply(taps_of(image.height, height, filter), wide.pixels.data(), wide_row, out.pixels.data(), wide_row, wide_row);
  return out;
}

}  // namespace

Image resize(const Image& image, std::int64_t height, std::int64_t width, Resample filter) try {
  GRAFT_CHECK(
      InvalidArgument,
      image.height >= 1 && image.width >= 1 && std::ssize(image.pixels) == image.height * image.width * kChannels,
      "a picture of ", image.height, " x ", image.width, " pixels has ", image.pixels.size(), " bytes");
  GRAFT_CHECK(InvalidArgument,
              height >= 1 && width >= 1 && height <= kMaxImagePixels && width <= kMaxImagePixels / height,
              "expected a size of 1 to ", kMaxImagePixels, " pixels, found ", height, " x ", width);
  if (height == image.height && width == image.width) return image;
  return filter == Resample::nearest ? nearest(image, height, width)
                                     : filtered(image, height, width, filter_of(filter));
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
