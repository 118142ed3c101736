#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rethrow.h"
#include "image/normalize.h"
#include "image/prompt_images.h"

// As Idefics3ImageProcessor and SmolVLMImageProcessor of transformers.
namespace graft::image {
namespace {

using Size = ImageProcessing::Size;

// `longer` is the edge that `edge` is for; the other one follows, in f64 as Python computes it.
Size with_longer_edge(Size from, std::int64_t edge) {
  const auto [height, width] = from;
  const double aspect = static_cast<double>(width) / static_cast<double>(height);
  if (width >= height) return {static_cast<std::int64_t>(static_cast<double>(edge) / aspect), edge};
  return {edge, static_cast<std::int64_t>(static_cast<double>(edge) * aspect)};
}

Size resized(const TileProcessing& processing, Size from) {
  auto [height, width] = with_longer_edge(from, processing.longest_edge);
  if (from.second >= from.first)
    height += height % 2;
  else
    width += width % 2;
  height = std::max<std::int64_t>(height, 1);
  width = std::max<std::int64_t>(width, 1);
  if (std::max(height, width) <= processing.largest_edge) return {height, width};
  const Size smaller = with_longer_edge({height, width}, processing.largest_edge);
  return {std::max<std::int64_t>(smaller.first, 1), std::max<std::int64_t>(smaller.second, 1)};
}

// The next size of whole tiles.
Size whole_tiles(Size from, std::int64_t tile) {
  const auto up = [&](std::int64_t n) { return (n + tile - 1) / tile * tile; };
  const bool wide = from.second >= from.first;
  const auto [height, width] = with_longer_edge(from, up(wide ? from.second : from.first));
  return {up(height), up(width)};
}

void add_tile(const Image& image, std::int64_t top, std::int64_t left, std::int64_t tile, const ChannelValues& values,
              std::vector<float>& out) {
  for (std::size_t c = 0; c < values.size(); ++c)
    for (std::int64_t y = top; y < top + tile; ++y)
      for (std::int64_t x = left; x < left + tile; ++x)
        out.push_back(values[c][image.pixels[static_cast<std::size_t>((y * image.width + x) * 3) + c]]);
}

}  // namespace

Tiles tiles_of(const TileProcessing& processing, const Image& image) {
  const ChannelValues values = channel_values(processing.each);
  const std::int64_t tile = processing.tile;
  const auto fit = [&](const Image& from, Size to) {
    return resize(from, to.first, to.second, processing.each.resample);
  };
  GRAFT_CHECK(InvalidArgument, image.height >= 1 && image.width >= 1, "a picture has ", image.height, " x ",
              image.width, " pixels");
  const Size size = resized(processing, {image.height, image.width});
  Tiles out;
  const Size whole = processing.split ? whole_tiles(size, tile) : Size{tile, tile};
  if (whole.first > tile || whole.second > tile) {
    out.rows = whole.first / tile;
    out.columns = whole.second / tile;
    GRAFT_CHECK(InvalidArgument, out.rows <= processing.max_rows && out.columns <= processing.max_columns,
                "a picture of ", image.height, " x ", image.width, " pixels has ", out.rows, " x ", out.columns,
                " tiles of ", tile, " pixels, the model takes ", processing.max_rows, " x ", processing.max_columns);
  }
  Image sized = fit(fit(image, size), whole);
  out.pixels.reserve(static_cast<std::size_t>((out.rows * out.columns + 1) * 3 * tile * tile));
  for (std::int64_t row = 0; row < out.rows; ++row)
    for (std::int64_t column = 0; column < out.columns; ++column)
      add_tile(sized, row * tile, column * tile, tile, values, out.pixels);
  if (out.rows > 0) sized = fit(sized, {tile, tile});
  add_tile(sized, 0, 0, tile, values, out.pixels);
  return out;
}

}  // namespace graft::image
