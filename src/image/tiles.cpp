#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/rethrow.h"
#include "image/normalize.h"
#include "image/prompt_images.h"

// As Idefics3ImageProcessor, SmolVLMImageProcessor and GotOcr2ImageProcessor of transformers.
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

}  // namespace

Size arrangement(std::int64_t tile, std::int64_t min_tiles, std::int64_t max_tiles, Size from) {
  const double aspect = static_cast<double>(from.second) / static_cast<double>(from.first);
  const double area = static_cast<double>(from.first) * static_cast<double>(from.second);
  const double pixels = static_cast<double>(tile * tile);
  std::vector<Size> all;  // by tiles, and of equally many by columns
  for (std::int64_t columns = 1; columns <= max_tiles; ++columns)
    for (std::int64_t rows = 1; rows * columns <= max_tiles; ++rows)
      if (rows * columns >= min_tiles) all.emplace_back(rows, columns);
  std::ranges::stable_sort(all, {}, [](Size size) { return size.first * size.second; });
  Size best{1, 1};
  double least = std::numeric_limits<double>::infinity();
  for (const Size& size : all) {
    const double apart = std::abs(aspect - static_cast<double>(size.second) / static_cast<double>(size.first));
    const bool as_near = apart == least && area > 0.5 * pixels * static_cast<double>(size.first * size.second);
    if (apart < least || as_near) best = size;
    least = std::min(least, apart);
  }
  return best;
}

Tiles tiles_of(const TileProcessing& processing, const Image& image) {
  const ChannelValues values = channel_values(processing.each);
  const std::int64_t tile = processing.tile;
  const auto fit = [&](const Image& from, Size to) {
    return resize(from, to.first, to.second, processing.each.resample);
  };
  GRAFT_CHECK(InvalidArgument, image.height >= 1 && image.width >= 1, "a picture has ", image.height, " x ",
              image.width, " pixels");
  const bool by_count = processing.max_tiles > 0;
  const Size from{image.height, image.width}, size = by_count ? from : resized(processing, from);
  Tiles out;
  Size whole{tile, tile};
  if (by_count) {
    const auto [rows, columns] = arrangement(tile, processing.min_tiles, processing.max_tiles, from);
    whole = {rows * tile, columns * tile};
  } else if (processing.split) {
    whole = whole_tiles(size, tile);
  }
  if (whole.first > tile || whole.second > tile) {
    out.rows = whole.first / tile;
    out.columns = whole.second / tile;
    GRAFT_CHECK(InvalidArgument, by_count || (out.rows <= processing.max_rows && out.columns <= processing.max_columns),
                "a picture of ", image.height, " x ", image.width, " pixels has ", out.rows, " x ", out.columns,
                " tiles of ", tile, " pixels, the model takes ", processing.max_rows, " x ", processing.max_columns);
  }
  Image sized = fit(fit(image, size), whole);
  out.pixels.resize(static_cast<std::size_t>((out.rows * out.columns + 1) * 3 * tile * tile));
  float* to = out.pixels.data();
  for (std::int64_t row = 0; row < out.rows; ++row)
    for (std::int64_t column = 0; column < out.columns; ++column)
      to = put_window(sized, row * tile, column * tile, {tile, tile}, values, to);
  if (out.rows > 0) sized = fit(by_count ? image : sized, {tile, tile});
  put_window(sized, 0, 0, {tile, tile}, values, to);
  return out;
}

}  // namespace graft::image
