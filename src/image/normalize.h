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

}  // namespace graft::image
