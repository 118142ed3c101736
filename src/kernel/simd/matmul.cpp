#include "kernel/simd/matmul.h"

namespace graft::simd {

const MatmulTable& matmul(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa == Isa::avx512) return avx512::kMatmul;
  if (isa == Isa::avx2) return avx2::kMatmul;
#endif
  static_cast<void>(isa);
  return baseline::kMatmul;
}

}  // namespace graft::simd
