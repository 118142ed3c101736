#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/rethrow.h"
#include "image/normalize.h"
#include "image/prompt_images.h"

// As Qwen2VLImageProcessor and Gemma4ImageProcessor of transformers, and what the towers compute of the grid alone.
namespace graft::image {
namespace {

using Size = ImageProcessing::Size;

constexpr double kMostAspect = 200;

// smart_resize
Size resized(const PatchProcessing& processing, Size from) {
  const std::int64_t factor = processing.patch_size * processing.merge_size;
  const auto height = static_cast<double>(from.first), width = static_cast<double>(from.second);
  GRAFT_CHECK(InvalidArgument, std::max(height, width) / std::min(height, width) <= kMostAspect, "a picture of ",
              from.first, " x ", from.second, " pixels is more than ", kMostAspect, " times as long as it is wide");
  const auto step = static_cast<double>(factor);
  const auto times = [&](double n) { return static_cast<std::int64_t>(n) * factor; };
  // nearbyint rounds halves to even ones, as Python does.
  const Size near{times(std::nearbyint(height / step)), times(std::nearbyint(width / step))};
  const std::int64_t pixels = near.first * near.second;
  if (pixels > processing.max_pixels) {
    const double beta = std::sqrt(height * width / static_cast<double>(processing.max_pixels));
    return {std::max(factor, times(std::floor(height / beta / step))),
            std::max(factor, times(std::floor(width / beta / step)))};
  }
  if (pixels < processing.min_pixels) {
    const double beta = std::sqrt(static_cast<double>(processing.min_pixels) / (height * width));
    return {times(std::ceil(height * beta / step)), times(std::ceil(width * beta / step))};
  }
  return near;
}

// get_aspect_ratio_preserving_size
Size largest(const PatchProcessing& processing, Size from) {
  const std::int64_t factor = processing.patch_size * processing.merge_size;
  const std::int64_t pixels = processing.max_patches * processing.patch_size * processing.patch_size;
  const auto height = static_cast<double>(from.first), width = static_cast<double>(from.second);
  const double grown = std::sqrt(static_cast<double>(pixels) / (height * width));
  const auto rounded_down = [&](double side) {
    return static_cast<std::int64_t>(std::floor(side / static_cast<double>(factor))) * factor;
  };
  Size size{rounded_down(grown * height), rounded_down(grown * width)};
  const std::int64_t longest = processing.max_patches / (processing.merge_size * processing.merge_size) * factor;
  if (size.first == 0 && size.second > 0) {
    size = {factor, std::min(from.second / from.first * factor, longest)};
  } else if (size.second == 0 && size.first > 0) {
    size = {std::min(from.first / from.second * factor, longest), factor};
  }
  GRAFT_CHECK(InvalidArgument, size.first > 0 && size.second > 0 && size.first * size.second <= pixels, "a picture of ",
              from.first, " x ", from.second, " pixels does not become one of ", processing.max_patches, " patches of ",
              processing.patch_size, " x ", processing.patch_size, " pixels");
  return size;
}

// One axis of a table of `side` positions that is stretched over n patches: between which two of it patch i lies.
struct Between {
  std::int64_t first, second;
  float of_first, of_second;
};

Between between(std::int64_t i, std::int64_t n, std::int64_t side) {
  const float at =
      static_cast<float>(i) * static_cast<float>(side - 1) / static_cast<float>(std::max<std::int64_t>(n - 1, 1));
  const float floor = std::floor(at);
  const auto first = static_cast<std::int64_t>(floor);
  return {std::min(first, side - 1), std::min(first + 1, side - 1), std::max(1 - std::abs(at - floor), 0.F),
          std::max(1 - std::abs(at - floor - 1), 0.F)};
}

}  // namespace

Patches patches_of(const PatchProcessing& processing, const Image& image) {
  const std::int64_t height = image.height, width = image.width;
  GRAFT_CHECK(InvalidArgument, height >= 1 && width >= 1 && height <= kMaxImagePixels / width,
              "expected a picture of 1 to ", kMaxImagePixels, " pixels, found ", height, " x ", width);
  const Size size =
      processing.max_patches > 0 ? largest(processing, {height, width}) : resized(processing, {height, width});
  const Image sized = resize(image, size.first, size.second, processing.each.resample);
  const ChannelValues values = channel_values(processing.each);

  const std::int64_t patch = processing.patch_size, merge = processing.merge_size;
  Patches out;
  out.rows = size.first / patch;
  out.columns = size.second / patch;
  // Units are what becomes one row of features: merge x merge patches. A group has side x side of them.
  const std::int64_t side = std::max<std::int64_t>(processing.window, 1);
  const std::int64_t unit_rows = out.rows / merge, unit_columns = out.columns / merge;
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t group_columns = ceil_div(unit_columns, side);
  out.group = side * side * merge * merge;
  out.groups = ceil_div(unit_rows, side) * group_columns;
  const auto count = static_cast<std::size_t>(out.groups * out.group);
  const std::int64_t times = processing.temporal_patch_size, plane = patch * patch;
  const auto patch_size = static_cast<std::size_t>(3 * times * plane);
  out.pixels.resize(count * patch_size);
  out.positions.resize(count * 2);
  if (processing.window > 0) out.valid.resize(count);
  const std::int64_t table = processing.table;
  if (table > 0) {
    out.table_rows.resize(count * 4);
    out.table_weights.resize(count * 4);
  }
  out.order.resize(static_cast<std::size_t>(unit_rows * unit_columns));
  for (std::int64_t r = 0; r < unit_rows; ++r)
    for (std::int64_t c = 0; c < unit_columns; ++c) {
      const std::int64_t group = r / side * group_columns + c / side;
      const std::int64_t unit = group * side * side + r % side * side + c % side;
      out.order[static_cast<std::size_t>(r * unit_columns + c)] = unit;
      for (std::int64_t i = 0; i < merge * merge; ++i) {
        const auto at = static_cast<std::size_t>(unit * merge * merge + i);
        const std::int64_t row = r * merge + i / merge, column = c * merge + i % merge;
        out.positions[at * 2] = row;
        out.positions[at * 2 + 1] = column;
        if (processing.window > 0) out.valid[at] = 1;
        if (table > 0) {
          const Between v = between(row, out.rows, table), h = between(column, out.columns, table);
          const std::int64_t places[] = {v.first * table + h.first, v.first * table + h.second,
                                         v.second * table + h.first, v.second * table + h.second};
          const float weights[] = {v.of_first * h.of_first, v.of_first * h.of_second, v.of_second * h.of_first,
                                   v.of_second * h.of_second};
          std::ranges::copy(places, out.table_rows.begin() + static_cast<std::ptrdiff_t>(at * 4));
          std::ranges::copy(weights, out.table_weights.begin() + static_cast<std::ptrdiff_t>(at * 4));
        }
        float* to = out.pixels.data() + at * patch_size;
        for (std::size_t channel = 0; channel < 3; ++channel)
          for (std::int64_t t = 0; t < times; ++t)  // a picture is a film of equal ones
            for (std::int64_t y = 0; y < patch; ++y)
              for (std::int64_t x = 0; x < patch; ++x) {
                const std::int64_t pixel = (row * patch + y) * sized.width + column * patch + x;
                *to++ = values[channel][sized.pixels[static_cast<std::size_t>(pixel * 3) + channel]];
              }
      }
    }
  return out;
}

}  // namespace graft::image
