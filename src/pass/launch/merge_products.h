#pragma once

#include "lowering/launch.h"

namespace graft {

// Products of the same rows with weights in panels (queries, keys and values; both halves of a gated layer) become one
// launch, at the place of the first: the rows are quantized or rounded once, the threads meet less often and have more
// to divide. The same numbers. A launch
// that became part of another is left without outputs, for dropping dead launches to remove. Launches that nobody
// needs must have been dropped.
void merge_products(LaunchSequence& sequence);

}  // namespace graft
