#pragma once

#include <cstdint>

#include "kernel/kernel.h"

// Gather and scatter: read and write at positions given by index tensors. Both kernels iterate over one space, the
// shape of all their operands. The indexed tensor is described by its "window": a descriptor over that space whose
// strides are those of the tensor's own dimensions, and 0 along the dimensions that only number the indices. An
// element's address is the window's plus, for each index tensor k, index * stride[k].
namespace graft {

inline constexpr int kMaxIndexTensors = 6;

struct IndexAttrs {
  std::int32_t count = 0;                      // index tensors
  bool wrap = false;                           // negative indices count from the end
  std::int32_t dim[kMaxIndexTensors] = {};     // dimension of the indexed tensor, for messages
  std::int64_t size[kMaxIndexTensors] = {};    // its size
  std::int64_t stride[kMaxIndexTensors] = {};  // its stride in bytes
};

// inputs {window of the input, index tensors (i32 or i64)...}, outputs {to}: copies elements of any dtype. Fails the
// run on an index out of range, without reading there.
extern const Kernel kGather;

struct CheckIndexAttrs {
  std::int64_t size = 0;   // size * outer is at most the largest i32
  std::int64_t outer = 1;  // tables of that size, one after the other
  std::int32_t dim = 0;    // for messages
  bool wrap = false;       // negative indices count from the end
};
// inputs {indices, i32 or i64, of any strides}, outputs {i32 [outer, indices], contiguous}: the same indices in each
// table, for ggml's GET_ROWS, which does not check them. Fails the run on an index that is out of range.
extern const Kernel kCheckIndex;

enum class ScatterMode : std::int32_t { assign, add, multiply, amax, amin };
struct ScatterAttrs {
  IndexAttrs index;
  ScatterMode mode = ScatterMode::assign;
};

// inputs {values, index tensors...}, outputs {window of the target}: writes values, or combines them with the target's
// elements. A position named more than once gets its values in row-major order of the iteration space (the last one
// stays). Fails the run on an index out of range, without writing there.
extern const Kernel kScatter;

struct MaskedScatterAttrs {
  bool exact = false;
};
// inputs {self, mask (bool), source}, outputs {to}; all but source contiguous and of one size; source contiguous, of
// the dtype of self (any): where the mask is true the next element of source, elsewhere that of self. Fails the run
// when the mask has more true elements than source has, or with `exact` a different number. Scratch:
// masked_scatter_scratch_bytes().
extern const Kernel kMaskedScatter;
std::int64_t masked_scatter_scratch_bytes(int max_threads);

}  // namespace graft
