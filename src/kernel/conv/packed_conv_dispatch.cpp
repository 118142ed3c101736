#include "kernel/conv/packed_conv_vec.h"

namespace graft::simd {

const PackedConvTable& packed_conv(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa >= Isa::avx512) return avx512::kPackedConv;
  if (isa >= Isa::avx2) return avx2::kPackedConv;
#endif
  static_cast<void>(isa);
  return baseline::kPackedConv;
}

}  // namespace graft::simd
