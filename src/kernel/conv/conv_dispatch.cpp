#include "kernel/conv/conv_vec.h"

namespace graft::simd {

const ConvTable& conv(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa >= Isa::avx512) return avx512::kConv;
  if (isa >= Isa::avx2) return avx2::kConv;
#endif
  static_cast<void>(isa);
  return baseline::kConv;
}

}  // namespace graft::simd
