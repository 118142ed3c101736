#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/json.h"
#include "base/rethrow.h"
#include "graft/image.h"
#include "image/normalize.h"
#include "image/settings.h"
#include "package/container.h"

namespace graft {
namespace {

constexpr std::string_view kKey = "graft.image_processor.json";
constexpr std::int64_t kChannels = 3;

using Size = ImageProcessing::Size;

ImageProcessor parse(const std::string& path, std::string_view text) {
  try {
    const Json json = read_json<Json>(text);
    return ImageProcessor(image::processing_in(json), json.at("labels").get<std::vector<std::string>>());
  } catch (const Json::exception& error) {
    throw InvalidProgram(str("'", path, "': '", kKey, "' cannot be read: ", error.what()));
  } catch (const InvalidArgument& error) {
    throw InvalidProgram(str("'", path, "': '", kKey, "': ", error.what()));
  }
}

void check_size(const std::optional<Size>& size, const char* name) {
  GRAFT_CHECK(InvalidArgument,
              !size || (size->first >= 1 && size->second >= 1 && size->first <= kMaxImagePixels &&
                        size->second <= kMaxImagePixels / size->first),
              "'", name, "' must be of 1 to ", kMaxImagePixels, " pixels");
}

Size resized(const ImageProcessing& processing, Size from) {
  GRAFT_CHECK(InvalidArgument, from.first >= 1 && from.second >= 1 && from.first <= kMaxImagePixels / from.second,
              "expected a picture of 1 to ", kMaxImagePixels, " pixels, found ", from.first, " x ", from.second);
  if (processing.size) return *processing.size;
  if (!processing.shortest_edge) return from;
  const std::int64_t edge = *processing.shortest_edge;
  const auto longer = [&](std::int64_t longest, std::int64_t shortest) {
    return static_cast<std::int64_t>(static_cast<double>(edge * longest) / static_cast<double>(shortest));
  };
  if (from.first < from.second) return {edge, longer(from.second, from.first)};
  return {longer(from.first, from.second), edge};
}

// Where a crop of `size` of n elements begins: before them, by the larger half, what is missing.
std::int64_t crop_begin(std::int64_t n, std::int64_t size) {
  return n >= size ? (n - size) / 2 : -((size - n + 1) / 2);
}

}  // namespace

image::ChannelValues image::channel_values(const ImageProcessing& processing) {
  ChannelValues out;
  for (std::size_t c = 0; c < out.size(); ++c)
    for (std::size_t x = 0; x < out[c].size(); ++x) {
      const auto scaled = static_cast<float>(static_cast<double>(x) * processing.rescale_factor);
      out[c][x] = (scaled - processing.mean[c]) / processing.std[c];
    }
  return out;
}

float* image::put_window(const Image& image, std::int64_t top, std::int64_t left, Size size,
                         const ChannelValues& values, float* to) {
  for (std::size_t c = 0; c < kChannels; ++c)
    for (std::int64_t y = top; y < top + size.first; ++y)
      for (std::int64_t x = left; x < left + size.second; ++x) {
        const bool inside = y >= 0 && y < image.height && x >= 0 && x < image.width;
        const auto at = static_cast<std::size_t>((y * image.width + x) * kChannels) + c;
        *to++ = values[c][inside ? image.pixels[at] : 0];
      }
  return to;
}

ImageProcessor::ImageProcessor(ImageProcessing processing, std::vector<std::string> labels) try
    : processing_(processing), labels_(std::move(labels)) {
  check_size(processing.size, "size");
  check_size(processing.crop, "crop");
  GRAFT_CHECK(InvalidArgument, !processing.size || !processing.shortest_edge, "expected 'size' or 'shortest_edge'");
  GRAFT_CHECK(InvalidArgument,
              !processing.shortest_edge || (*processing.shortest_edge >= 1 && *processing.shortest_edge <= 1 << 16),
              "'shortest_edge' must be from 1 to ", 1 << 16);
  for (const float std : processing.std) GRAFT_CHECK(InvalidArgument, std != 0, "'std' must not be 0");
} catch (...) {
  rethrow_typed();
}

bool ImageProcessor::is_in(const std::string& package) try {
  return named_text(package, kKey).has_value();
} catch (...) {
  rethrow_typed();
}

ImageProcessor ImageProcessor::load(const std::string& package) try {
  const auto settings = named_text(package, kKey);
  GRAFT_CHECK(InvalidArgument, settings, "'", package, "' does not say how pictures become its input: it has no '",
              kKey, "'; graft.export_image_model writes such packages");
  return parse(package, *settings);
} catch (...) {
  rethrow_typed();
}

Size ImageProcessor::size_of(const Image& image) const {
  return processing_.crop ? *processing_.crop : resized(processing_, {image.height, image.width});
}

std::vector<float> ImageProcessor::pixels(const Image& image) const try {
  const auto [height, width] = resized(processing_, {image.height, image.width});
  const Image sized = resize(image, height, width, processing_.resample);
  const Size size = size_of(image);
  std::vector<float> out(static_cast<std::size_t>(kChannels * size.first * size.second));
  image::put_window(sized, crop_begin(height, size.first), crop_begin(width, size.second), size,
                    image::channel_values(processing_), out.data());
  return out;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
