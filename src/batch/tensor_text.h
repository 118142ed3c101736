#pragma once

#include <string>

#include "graft/graft.h"

namespace graft::batch {

// JSON: numbers with the fewest digits that read as the same value of the tensor's own type, nested as its sizes from
// dimension `from` on; the part of it that `place` of the dimensions before selects. Throws BadRow for NaN and
// infinity, which JSON has not, calling the tensor `name`.
std::string tensor_text(const TensorView& tensor, int from, std::int64_t place, const std::string& name);

// Whether the type has a text.
bool has_text(DType dtype);

}  // namespace graft::batch
