#include "image/settings.h"

#include "base/check.h"
#include "base/json.h"

namespace graft::image {
namespace {

using Size = ImageProcessing::Size;

std::optional<Size> size_in(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) return std::nullopt;
  return Size{found->at(0).get<std::int64_t>(), found->at(1).get<std::int64_t>()};
}

std::array<float, 3> channels_in(const Json& json, const char* name) {
  const Json& values = json.at(name);
  return {values.at(0).get<float>(), values.at(1).get<float>(), values.at(2).get<float>()};
}

std::int64_t number_in(const Json& json, const char* name, std::int64_t least, std::int64_t most) {
  const auto found = json.at(name).get<std::int64_t>();
  GRAFT_CHECK(InvalidArgument, found >= least && found <= most, "'", name, "' must be from ", least, " to ", most,
              ", found ", found);
  return found;
}

constexpr std::int64_t kLargestEdge = 1 << 13;  // so that squares of it are pictures
constexpr std::int64_t kMaxTiles = 1 << 10;
constexpr std::int64_t kMaxCanvasTiles = 1 << 6;  // each canvas has memory for all

}  // namespace

ImageProcessing processing_in(const Json& json) {
  ImageProcessing out;
  out.size = size_in(json, "size");
  if (const auto found = json.find("shortest_edge"); found != json.end())
    out.shortest_edge = found->get<std::int64_t>();
  const auto resample = json.at("resample").get<std::int64_t>();
  GRAFT_CHECK(InvalidArgument, resample >= 0 && resample <= static_cast<std::int64_t>(Resample::hamming),
              "there is no filter ", resample);
  out.resample = static_cast<Resample>(resample);
  out.crop = size_in(json, "crop");
  out.rescale_factor = json.at("rescale_factor").get<double>();
  out.mean = channels_in(json, "mean");
  out.std = channels_in(json, "std");
  for (const float std : out.std) GRAFT_CHECK(InvalidArgument, std != 0, "'std' must not be 0");
  return out;
}

TileProcessing tile_processing_in(const Json& json) {
  TileProcessing out;
  out.tile = number_in(json, "tile", 1, kLargestEdge);
  if (json.contains("max_tiles")) {
    out.max_tiles = number_in(json, "max_tiles", 1, kMaxTiles);
    out.min_tiles = number_in(json, "min_tiles", 1, out.max_tiles);
  } else {
    out.longest_edge = number_in(json, "longest_edge", 1, kLargestEdge);
    out.largest_edge = number_in(json, "largest_edge", 1, kLargestEdge);
    out.split = json.at("split").get<bool>();
    out.max_rows = number_in(json, "max_rows", 1, kLargestEdge);
    out.max_columns = number_in(json, "max_columns", 1, kLargestEdge);
  }
  out.each = processing_in(json);
  return out;
}

CanvasProcessing canvas_processing_in(const Json& json) {
  CanvasProcessing out;
  out.tile = number_in(json, "tile", 1, kLargestEdge);
  out.max_tiles = number_in(json, "max_tiles", 1, kMaxCanvasTiles);
  out.each = processing_in(json);
  return out;
}

PatchProcessing patch_processing_in(const Json& json) {
  PatchProcessing out;
  out.patch_size = number_in(json, "patch_size", 1, 1 << 10);
  out.temporal_patch_size = number_in(json, "temporal_patch_size", 1, 1 << 6);
  out.merge_size = number_in(json, "merge_size", 1, 1 << 6);
  if (json.contains("max_patches")) {
    out.max_patches = number_in(json, "max_patches", 1, 1 << 20);
  } else {
    out.min_pixels = number_in(json, "min_pixels", 1, kMaxImagePixels);
    out.max_pixels = number_in(json, "max_pixels", 1, kMaxImagePixels);
  }
  out.window = number_in(json, "window", 0, 1 << 10);
  out.table = number_in(json, "table", 0, 1 << 10);
  out.each = processing_in(json);
  return out;
}

CropProcessing crop_processing_in(const Json& json) {
  CropProcessing out;
  out.crop = number_in(json, "crop_size", 1, kLargestEdge);
  out.patch_size = number_in(json, "patch_size", 1, 1 << 10);
  out.max_crops = number_in(json, "max_crops", 1, kMaxTiles);
  // Two by two patches become a row of features.
  GRAFT_CHECK(InvalidArgument, out.crop % (2 * out.patch_size) == 0, "crops of ", out.crop,
              " pixels are no pairs of patches of ", out.patch_size);
  out.each = processing_in(json);
  return out;
}

}  // namespace graft::image
