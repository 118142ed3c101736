// The table of one instruction set: see kernel/elementwise/elementwise_vec.h.
#include "kernel/elementwise/elementwise_vec.h"

namespace graft::simd::GRAFT_ISA {

extern const BlockFns kBlocksF32;
extern const BlockFns kBlocksF64;
extern const BlockFns kBlocksI64;
extern const BlockFns kBlocksB8;
extern const ConvertFns kConvert;

const ElementwiseTable kElementwise = {{&kBlocksF32, &kBlocksF64, &kBlocksI64, &kBlocksB8}, &kConvert};

}  // namespace graft::simd::GRAFT_ISA
