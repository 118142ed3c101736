#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graft/export.h"

// Pictures as models of vision take them.
//
//   const auto processor = graft::ImageProcessor::load("vit.pte");
//   std::vector<float> pixels = processor.pixels(graft::load_image("cat.jpg"));  // [3, H, W]
namespace graft {

struct Image {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> pixels;  // [height, width, 3]: red, green, blue
};

// The most pixels that decode_image reads.
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{1} << 27;

// A file of PNG, JPEG or BMP, known by its content. Grey becomes red, green and blue alike; transparency is left out,
// as Pillow's convert("RGB") does. `label` names it in messages. Throws InvalidArgument for another format, a damaged
// file, 16 bits per channel, and one of more than max_pixels or kMaxImagePixels.
GRAFT_API Image decode_image(std::span<const std::byte> file, const std::string& label = "the picture",
                             std::int64_t max_pixels = kMaxImagePixels);
// The same of a path. Throws NotFound and SystemError besides.
GRAFT_API Image load_image(const std::string& path);

// By the numbers that Pillow and transformers give them.
enum class Resample : std::uint8_t { nearest = 0, lanczos = 1, bilinear = 2, bicubic = 3, box = 4, hamming = 5 };

// As Image.resize of Pillow up to 12, byte for byte: filters as wide as the scale, first along rows, then along
// columns, with coefficients of 22 bits and a rounding between. Pillow 13 begins with the columns where the height
// shrinks more, and differs by a rounding. Throws InvalidArgument for sizes below 1, or of more than kMaxImagePixels.
GRAFT_API Image resize(const Image& image, std::int64_t height, std::int64_t width, Resample filter);

// What a model's image processor does, in this order. Names as in transformers' preprocessor_config.json.
struct ImageProcessing {
  using Size = std::pair<std::int64_t, std::int64_t>;  // height, width
  std::optional<Size> size = {};                       // resized to this
  std::optional<std::int64_t> shortest_edge = {};      // or so that the shorter edge has this, with the same shape
  Resample resample = Resample::bilinear;
  std::optional<Size> crop = {};  // from the middle; what is missing of it is black
  double rescale_factor = 1;
  std::array<float, 3> mean = {0, 0, 0}, std = {1, 1, 1};  // of each channel: (x * rescale_factor - mean) / std
};

// What models of pictures and text do whose towers take tiles (Idefics3, SmolVLM, InternVL): the longer edge becomes
// `longest_edge`, then both become whole tiles; or there are from min_tiles to max_tiles, in the rows and columns whose
// shape is nearest to the picture's. A picture of several tiles is seen whole besides, as small as a tile.
struct TileProcessing {
  std::int64_t longest_edge = 1456, largest_edge = 4096, tile = 364;
  bool split = true;                           // false: one tile, whatever the shape
  std::int64_t max_rows = 6, max_columns = 6;  // of tiles
  std::int64_t min_tiles = 1, max_tiles = 0;   // max_tiles 0: by longest_edge
  ImageProcessing each = {};                   // filter and normalization; its sizes play no part
};

// What models do whose towers take patches (Qwen-VL, Gemma 4): a picture keeps about its size and shape.
struct PatchProcessing {
  std::int64_t patch_size = 14, temporal_patch_size = 2, merge_size = 2;  // merge_size^2 patches become a token
  std::int64_t min_pixels = 3136, max_pixels = 1003520;
  // Gemma 4: the largest size with no more patches than these, whatever the picture's; 0: by its pixels.
  std::int64_t max_patches = 0;
  std::int64_t window = 0;    // tokens along the side of a window of the tower; 0: it has none
  std::int64_t table = 0;     // positions along the side of the tower's table of them; 0: it has none
  ImageProcessing each = {};  // filter and normalization; its sizes play no part
};

// What Phi-4 multimodal does: a picture becomes as many crops as cover it, or at most max_crops in the rows and columns
// whose shape is nearest to its own. It keeps its shape, what the crops have behind it is white, and it is seen whole
// besides, as small as a crop.
struct CropProcessing {
  std::int64_t crop = 448, patch_size = 14, max_crops = 36;
  ImageProcessing each = {};  // normalization; its filter and sizes play no part
};

// What models do whose towers take the tiles of a canvas (MLlama): of the canvases of up to max_tiles tiles the one
// that the picture fits best; it fills that along one side, keeps its shape, and the rest is black.
struct CanvasProcessing {
  std::int64_t tile = 448, max_tiles = 4;
  ImageProcessing each = {};  // filter and normalization; its sizes play no part
};

// Makes pictures into what a model takes. Immutable.
class GRAFT_API ImageProcessor {
 public:
  // Throws InvalidArgument for sizes below 1, both `size` and `shortest_edge`, and a `std` of 0.
  explicit ImageProcessor(ImageProcessing processing, std::vector<std::string> labels = {});
  // That of a package of graft.export_image_model. Throws InvalidArgument for another package, InvalidProgram for one
  // whose settings cannot be read, NotFound and SystemError.
  static ImageProcessor load(const std::string& package);
  // Whether load() has something to read. Throws NotFound, SystemError and InvalidProgram.
  static bool is_in(const std::string& package);

  // The size of what pixels() gives for a picture.
  ImageProcessing::Size size_of(const Image& image) const;
  // f32 [3, H, W]
  std::vector<float> pixels(const Image& image) const;
  const ImageProcessing& processing() const { return processing_; }
  const std::vector<std::string>& labels() const { return labels_; }  // of the model's classes; may be empty

 private:
  ImageProcessing processing_;
  std::vector<std::string> labels_;
};

}  // namespace graft
