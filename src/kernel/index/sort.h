#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace graft {

struct SortAttrs {
  std::int32_t dim = 0;
  bool descending = false;
  bool indices_only = false;
  bool topk = false;
  bool topk_sorted = true;
};
// inputs {x}; outputs {values, indices (i64)}, or {indices} with `indices_only`: the first entries in order along the
// dimension, as many as the outputs have there. NaN counts as the largest; -0 equals 0. Equal entries keep their order;
// with `topk`, which of them are taken and where they come is as in PyTorch (TopKImpl.h): what std::partial_sort or
// std::nth_element leaves. Any strides. Scratch: sort_scratch_bytes().
extern const Kernel kSort;

// `lines`: x's elements divided by `size`, the size of the sorted dimension.
std::int64_t sort_scratch_bytes(std::int64_t lines, std::int64_t size, int max_threads);

}  // namespace graft
