#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "image/normalize.h"
#include "image/prompt_images.h"

// As MllamaImageProcessor of transformers.
namespace graft::image {
namespace {

using Size = ImageProcessing::Size;

// By rows, and of equal ones by columns.
std::vector<Size> shapes_of(std::int64_t max_tiles) {
  std::vector<Size> out;
  for (std::int64_t rows = 1; rows <= max_tiles; ++rows)
    for (std::int64_t columns = 1; rows * columns <= max_tiles; ++columns) out.emplace_back(rows, columns);
  return out;
}

double quotient(std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

// The shape into which the picture fits with the least enlargement, or where it fits into none with the least
// reduction; of equal ones the first of the fewest tiles.
std::size_t best_shape(const std::vector<Size>& shapes, std::int64_t tile, Size from) {
  std::vector<double> scales;
  for (const auto& [rows, columns] : shapes)
    scales.push_back(std::min(quotient(rows * tile, from.first), quotient(columns * tile, from.second)));
  double chosen = std::numeric_limits<double>::infinity();
  for (const double scale : scales)
    if (scale >= 1) chosen = std::min(chosen, scale);
  if (std::isinf(chosen)) chosen = *std::ranges::max_element(scales);
  std::size_t best = shapes.size();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (scales[i] != chosen) continue;
    if (best == shapes.size() || shapes[i].first * shapes[i].second < shapes[best].first * shapes[best].second)
      best = i;
  }
  return best;
}

// The picture's size within the canvas, not below a tile where that leaves room.
Size fitted(Size from, Size canvas, std::int64_t tile) {
  const std::int64_t height = std::clamp(from.first, tile, canvas.first),
                     width = std::clamp(from.second, tile, canvas.second);
  const double of_height = quotient(height, from.first), of_width = quotient(width, from.second);
  const auto scaled = [](std::int64_t size, double scale, std::int64_t most) {
    const auto out = static_cast<std::int64_t>(std::floor(static_cast<double>(size) * scale));
    return std::min(std::max<std::int64_t>(out, 1), most);
  };
  if (of_width < of_height) return {scaled(from.first, of_width, height), width};
  return {height, scaled(from.second, of_height, width)};
}

}  // namespace

Canvas canvas_of(const CanvasProcessing& processing, const Image& image) {
  GRAFT_CHECK(InvalidArgument, image.height >= 1 && image.width >= 1, "a picture has ", image.height, " x ",
              image.width, " pixels");
  const std::int64_t tile = processing.tile;
  const Size from{image.height, image.width};
  const std::vector<Size> shapes = shapes_of(processing.max_tiles);
  const std::size_t shape = best_shape(shapes, tile, from);
  Canvas out;
  std::tie(out.rows, out.columns) = shapes[shape];
  out.shape = static_cast<std::int64_t>(shape) + 1;
  const Size size = fitted(from, {out.rows * tile, out.columns * tile}, tile);
  const Image sized = resize(image, size.first, size.second, processing.each.resample);
  const ChannelValues values = channel_values(processing.each);
  const std::int64_t plane = tile * tile;
  out.pixels.resize(static_cast<std::size_t>(processing.max_tiles * 3 * plane));
  out.valid.resize(static_cast<std::size_t>(processing.max_tiles));
  std::fill_n(out.valid.begin(), out.rows * out.columns, 1);
  float* to = out.pixels.data();
  for (std::int64_t row = 0; row < out.rows; ++row)
    for (std::int64_t column = 0; column < out.columns; ++column)
      to = put_window(sized, row * tile, column * tile, {tile, tile}, values, to);
  return out;
}

}  // namespace graft::image
