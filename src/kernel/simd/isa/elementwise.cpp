// The table of one instruction set: see kernel/simd/elementwise.h.
#include "kernel/simd/elementwise.h"

namespace graft::simd::GRAFT_ISA {

extern const ConvertFns kConvert;

extern const ElementwiseTable kElementwise;
const ElementwiseTable kElementwise = {{}, &kConvert};

}  // namespace graft::simd::GRAFT_ISA
