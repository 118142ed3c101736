#pragma once

#include "base/json_fwd.h"
#include "graft/image.h"

namespace graft::image {

// What a package says of a processor. Throw InvalidArgument for a filter that there is not, and what the JSON library
// does for other fields.
ImageProcessing processing_in(const Json& json);
TileProcessing tile_processing_in(const Json& json);
PatchProcessing patch_processing_in(const Json& json);
CropProcessing crop_processing_in(const Json& json);
CanvasProcessing canvas_processing_in(const Json& json);

}  // namespace graft::image
