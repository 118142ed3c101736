#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "base/rethrow.h"
#include "image/prompt_images.h"

namespace graft {
namespace {

constexpr int kPrecision = 32 - 8 - 2;  // bits of a coefficient: sums of bytes by them fit 32 bits
constexpr double kLargestShort = 1 << 15;
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
  std::vector<double> shares;
  std::vector<std::int32_t> weights;  // shares of 2^precision
};
struct AllTaps {
  std::vector<Taps> of;
  int precision = kPrecision;
};

// Of coefficients of 16 bits, as many bits behind the point as the largest one leaves.
int short_precision(const std::vector<Taps>& all) {
  double largest = 0;
  for (const Taps& taps : all)
    for (const double share : taps.shares) largest = std::max(largest, share);
  int precision = 0;
  while (precision < kPrecision && std::floor(0.5 + largest * (1 << (precision + 1))) < kLargestShort) ++precision;
  return precision;
}

AllTaps taps_of(std::int64_t from, std::int64_t to, const Filter& filter, bool short_weights) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), widened = std::max(scale, 1.0);
  const double support = filter.support * widened;
  AllTaps all{std::vector<Taps>(static_cast<std::size_t>(to))};
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
    Taps& taps = all.of[static_cast<std::size_t>(i)];
    taps.first = first;
    for (const double weight : weights) taps.shares.push_back(sum != 0 ? weight / sum : weight);
  }
  if (short_weights) all.precision = short_precision(all.of);
  for (Taps& taps : all.of)
    for (const double share : taps.shares) {
      const double scaled = share * (1 << all.precision);
      taps.weights.push_back(static_cast<std::int32_t>(scaled + (scaled < 0 ? -0.5 : 0.5)));
    }
  return all;
}

// The two passes: pixel i of a line of the result is made of those of a line that lie `step` bytes apart.
void apply(const AllTaps& taps, const std::uint8_t* from, std::int64_t step, std::uint8_t* to, std::int64_t to_step,
           std::int64_t bytes) {
  for (const Taps& one : taps.of) {
    for (std::int64_t c = 0; c < bytes; ++c) {
      std::int32_t sum = (1 << taps.precision) >> 1;
      const std::uint8_t* at = from + one.first * step + c;
      for (const std::int32_t weight : one.weights) {
        sum += weight * *at;
        at += step;
      }
      to[c] = static_cast<std::uint8_t>(std::clamp(sum >> taps.precision, 0, 255));
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

Image filtered(const Image& image, std::int64_t height, std::int64_t width, const Filter& filter,
               bool short_weights = false) {
  Image wide{image.height, width, {}};
  const std::int64_t row = image.width * kChannels, wide_row = width * kChannels;
  if (width == image.width) {
    wide.pixels = image.pixels;
  } else {
    wide.pixels.resize(static_cast<std::size_t>(image.height * wide_row));
    const AllTaps taps = taps_of(image.width, width, filter, short_weights);
    for (std::int64_t y = 0; y < image.height; ++y)
      apply(taps, image.pixels.data() + y * row, kChannels, wide.pixels.data() + y * wide_row, kChannels, kChannels);
  }
  if (height == image.height) return wide;
  Image out{height, width, {}};
  out.pixels.resize(static_cast<std::size_t>(height * wide_row));
  apply(taps_of(image.height, height, filter, short_weights), wide.pixels.data(), wide_row, out.pixels.data(), wide_row,
        wide_row);
  return out;
}

void check_sizes(const Image& image, std::int64_t height, std::int64_t width) {
  GRAFT_CHECK(
      InvalidArgument,
      image.height >= 1 && image.width >= 1 && std::ssize(image.pixels) == image.height * image.width * kChannels,
      "a picture of ", image.height, " x ", image.width, " pixels has ", image.pixels.size(), " bytes");
  GRAFT_CHECK(InvalidArgument,
              height >= 1 && width >= 1 && height <= kMaxImagePixels && width <= kMaxImagePixels / height,
              "expected a size of 1 to ", kMaxImagePixels, " pixels, found ", height, " x ", width);
}

}  // namespace

Image resize(const Image& image, std::int64_t height, std::int64_t width, Resample filter) try {
  check_sizes(image, height, width);
  if (height == image.height && width == image.width) return image;
  return filter == Resample::nearest ? nearest(image, height, width)
                                     : filtered(image, height, width, filter_of(filter));
} catch (...) {
  rethrow_typed();
}

Image image::resize_like_torch(const Image& image, std::int64_t height, std::int64_t width) {
  check_sizes(image, height, width);
  return filtered(image, height, width, filter_of(Resample::bilinear), true);
}

}  // namespace graft
