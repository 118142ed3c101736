#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "weight/stored.h"

namespace graft {

struct BlockRowsAttrs {
  BlockType type = -1;
  std::int16_t panels = 0;  // 1: the weight is packed in panels
  std::int64_t rows = 0;
};

// Rows of a weight [rows, K] stored in ggml's blocks. Inputs: its bytes (u8) and indices (i32 or i64), output
// [..., K] f32; all contiguous. Fails the run on an index that is negative or not below `rows`.
extern const Kernel kBlockRows;

}  // namespace graft
