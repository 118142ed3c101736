#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "image/normalize.h"
#include "image/prompt_images.h"

// As Phi4MultimodalImageProcessor of transformers.
namespace graft::image {
namespace {

using Size = ImageProcessing::Size;

constexpr std::int64_t kLeastEdge = 10;  // pixels of a picture within its crops
constexpr std::uint8_t kWhite = 255;

std::int64_t scaled(std::int64_t edge, double scale) {
  return static_cast<std::int64_t>(static_cast<double>(edge) * scale);
}

Image on_white(const Image& image, Size size) {
  const auto [height, width] = size;
  Image out{height, width, std::vector<std::uint8_t>(static_cast<std::size_t>(height * width * 3), kWhite)};
  for (std::int64_t y = 0; y < image.height; ++y)
    std::copy_n(image.pixels.begin() + y * image.width * 3, image.width * 3, out.pixels.begin() + y * width * 3);
  return out;
}

// What torch's bicubic interpolation without antialiasing makes a pixel of, in f32 as there: four, those behind an edge
// being the one at it (aten/src/ATen/native/UpSample.h).
struct Cubic {
  std::array<std::int64_t, 4> from;
  std::array<float, 4> weights;
};

std::vector<Cubic> cubics_of(std::int64_t from, std::int64_t to) {
  constexpr float a = -0.75F;
  const auto near = [](float x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [](float x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  std::vector<Cubic> all;
  for (std::int64_t i = 0; i < to; ++i) {
    const float at = scale * (static_cast<float>(i) + 0.5F) - 0.5F, below = std::floor(at), t = at - below;
    Cubic& one = all.emplace_back(Cubic{{}, {far(t + 1), near(t), near(1 - t), far(2 - t)}});
    for (std::size_t k = 0; k < 4; ++k)
      one.from[k] =
          std::clamp(static_cast<std::int64_t>(below) - 1 + static_cast<std::int64_t>(k), std::int64_t{0}, from - 1);
  }
  return all;
}

// The whole picture as small as a crop.
void add_whole(const Image& image, std::int64_t crop, const ChannelValues& values, float* to) {
  const std::vector<Cubic> rows = cubics_of(image.height, crop), columns = cubics_of(image.width, crop);
  for (std::size_t c = 0; c < values.size(); ++c)
    for (const Cubic& row : rows)
      for (const Cubic& column : columns) {
        float sum = 0;
        for (std::size_t y = 0; y < 4; ++y) {
          const std::int64_t line = row.from[y] * image.width;
          float of_line = 0;
          for (std::size_t x = 0; x < 4; ++x)
            of_line +=
                column.weights[x] * values[c][image.pixels[static_cast<std::size_t>((line + column.from[x]) * 3) + c]];
          sum += row.weights[y] * of_line;
        }
        *to++ = sum;
      }
}

// Rows of features of `height` x `width` pairs of patches, each row with its end, in crops of `half` x `half` pairs
// from number `first` on.
void add_rows(std::int64_t height, std::int64_t width, std::int64_t half, std::int64_t columns, std::int64_t first,
              std::vector<std::int64_t>& order) {
  const std::int64_t of_crop = half * half + 2;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x)
      order.push_back((first + y / half * columns + x / half) * of_crop + y % half * half + x % half);
    order.push_back(half * half);
  }
}

}  // namespace

Crops crops_of(const CropProcessing& processing, const Image& image) {
  const std::int64_t crop = processing.crop, patch = processing.patch_size;
  GRAFT_CHECK(InvalidArgument, image.height >= 1 && image.width >= 1, "a picture has ", image.height, " x ",
              image.width, " pixels");
  Crops out;
  out.crop = crop;
  out.rows = (image.height + crop - 1) / crop;
  out.columns = (image.width + crop - 1) / crop;
  if (out.columns > processing.max_crops / out.rows)
    std::tie(out.rows, out.columns) = arrangement(crop, 1, processing.max_crops, {image.height, image.width});
  const Size whole{out.rows * crop, out.columns * crop};
  const double by_height = static_cast<double>(whole.first) / static_cast<double>(image.height);
  const double by_width = static_cast<double>(whole.second) / static_cast<double>(image.width);
  const Size size = by_width < by_height ? Size{scaled(image.height, by_width), whole.second}
                                         : Size{whole.first, scaled(image.width, by_height)};
  GRAFT_CHECK(InvalidArgument, std::min(size.first, size.second) >= kLeastEdge, "a picture of ", image.height, " x ",
              image.width, " pixels is too long: of its ", out.rows, " x ", out.columns, " crops of ", crop,
              " pixels it fills ", size.first, " x ", size.second);
  const Image filled = on_white(resize_like_torch(image, size.first, size.second), whole);

  const ChannelValues values = channel_values(processing.each);
  const std::int64_t count = 1 + out.rows * out.columns, of_crop = 3 * crop * crop;
  out.pixels.resize(static_cast<std::size_t>(count * of_crop));
  float* to = out.pixels.data();
  add_whole(filled, crop, values, to);
  for (std::int64_t row = 0; row < out.rows; ++row)
    for (std::int64_t column = 0; column < out.columns; ++column)
      put_window(filled, row * crop, column * crop, {crop, crop}, values, to += of_crop);

  // Patches of which the picture has a pixel.
  const std::int64_t side = out.side = crop / patch;
  const std::int64_t high = out.rows * side - (whole.first - size.first) / patch;
  const std::int64_t wide = out.columns * side - (whole.second - size.second) / patch;
  out.valid.assign(static_cast<std::size_t>(count * side * side), 1);
  for (std::int64_t row = 0; row < out.rows; ++row)
    for (std::int64_t column = 0; column < out.columns; ++column)
      for (std::int64_t y = 0; y < side; ++y)
        for (std::int64_t x = 0; x < side; ++x)
          out.valid[static_cast<std::size_t>(((1 + row * out.columns + column) * side + y) * side + x)] =
              row * side + y < high && column * side + x < wide;
  const std::int64_t half = side / 2;
  add_rows((high + 1) / 2, (wide + 1) / 2, half, out.columns, 1, out.order);
  out.order.push_back(half * half + 1);
  add_rows(half, half, half, 1, 0, out.order);
  return out;
}

}  // namespace graft::image
