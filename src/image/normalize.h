#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "graft/image.h"

namespace graft::image {

// By channel, what each byte becomes: (x * rescale_factor - mean) / std, rounded as numpy does in f32.
using ChannelValues = std::array<std::array<float, 256>, 3>;
ChannelValues channel_values(const ImageProcessing& processing);

// [3, size.first, size.second] of the picture from row `top` and column `left` on; it is black where it has no pixels.
// Returns the end of what it wrote.
float* put_window(const Image& image, std::int64_t top, std::int64_t left, ImageProcessing::Size size,
                  const ChannelValues& values, float* to);

}  // namespace graft::image
