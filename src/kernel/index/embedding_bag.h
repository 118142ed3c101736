#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace graft {

enum class BagMode : std::int32_t { sum, mean, max };
struct EmbeddingBagAttrs {
  BagMode mode = BagMode::sum;
  bool weighted = false;  // each index has a weight
  bool last_end = false;  // the last entry of the offsets is the end of the last bag; else the end of the indices is,
                          // by which a mean divides in both cases
  std::int64_t padding = -1;  // indices of that value are skipped; -1: none
};
// inputs {table [rows, columns], indices [n], offsets [bags] (or [bags + 1]), weights [n]}, outputs {[bags, columns]}:
// all contiguous; table, weights and output f32 or f64, of one dtype; indices and offsets i64. A bag without rows is 0.
// Fails the run on an index that is not a row, and on offsets that do not begin at 0, fall, or pass the end.
extern const Kernel kEmbeddingBag;

}  // namespace graft
