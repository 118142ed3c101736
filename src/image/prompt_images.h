#pragma once

#include <cstdint>
#include <vector>

#include "graft/image.h"

// Pictures as the towers of models of pictures and text take them, besides those of one size.
namespace graft::image {

// A picture as Idefics3 and SmolVLM see it: tiles of one size, and the whole of it, as small as a tile, behind them.
struct Tiles {
  std::int64_t rows = 0, columns = 0;  // 0: it is one tile
  std::vector<float> pixels;           // [rows * columns + 1, 3, tile, tile]
};
// The rows and columns of tiles whose shape is nearest to a picture's of `from` pixels; of equally near ones the most
// tiles that have at most twice the picture's pixels.
ImageProcessing::Size arrangement(std::int64_t tile, std::int64_t min_tiles, std::int64_t max_tiles,
                                  ImageProcessing::Size from);
// Throws InvalidArgument for more tiles than there may be.
Tiles tiles_of(const TileProcessing& processing, const Image& image);

// A picture as the towers of Qwen-VL and Gemma 4 see it: groups of patches.
struct Patches {
  std::int64_t rows = 0, columns = 0;   // of patches
  std::int64_t groups = 0, group = 0;   // of so many patches each
  std::vector<float> pixels;            // [groups, group, channels * times * size * size]
  std::vector<std::int64_t> positions;  // [groups, group, 2]: row and column
  std::vector<std::uint8_t> valid;  // [groups, group]: 0 where a window reaches beyond the picture; of windows alone
  std::vector<std::int64_t> table_rows;  // [groups, group, 4]; of a table of positions alone
  std::vector<float> table_weights;
  std::vector<std::int64_t> order;  // of each row of the picture's features, the tower's
};
// Throws InvalidArgument for a picture that is more than 200 times as long as it is wide, and for one that does not
// become `max_patches` patches.
Patches patches_of(const PatchProcessing& processing, const Image& image);

// A picture as Phi-4 multimodal sees it: crops of one size, row by row, and the whole of it before them. Of a
// crop the tower makes (side / 2)^2 + 2 rows of features: those of its patches, then what ends a row of the picture,
// and what stands between the crops and the whole.
struct Crops {
  std::int64_t rows = 0, columns = 0;
  std::int64_t crop = 0, side = 0;  // along the side of a crop, pixels and patches
  std::vector<float> pixels;        // [1 + rows * columns, 3, crop, crop]
  std::vector<std::uint8_t> valid;  // [1 + rows * columns, side, side]: 0 for patches behind the picture
  std::vector<std::int64_t> order;  // of each row of the picture's features, the tower's
};
// Throws InvalidArgument for a picture that is so long that less than 10 pixels of its other edge are left.
Crops crops_of(const CropProcessing& processing, const Image& image);

// As torch.nn.functional.interpolate(mode="bilinear", antialias=True) of bytes: `resize` with coefficients of 16 bits.
Image resize_like_torch(const Image& image, std::int64_t height, std::int64_t width);

// A picture as MLlama sees it: the tiles of a canvas, row by row, and behind them none up to the most.
struct Canvas {
  std::int64_t rows = 0, columns = 0;  // of tiles
  std::int64_t shape = 0;              // number of the canvas among all, from 1 on: by rows, then by columns
  std::vector<float> pixels;           // [max_tiles, 3, tile, tile]
  std::vector<std::int64_t> valid;     // [max_tiles]: 0 where there is no tile
};
Canvas canvas_of(const CanvasProcessing& processing, const Image& image);

}  // namespace graft::image
