#include "kernel/conv/winograd_vec.h"

namespace graft::simd {

const WinogradTable& winograd(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa >= Isa::avx512) return avx512::kWinograd;
  if (isa >= Isa::avx2) return avx2::kWinograd;
#endif
  static_cast<void>(isa);
  return baseline::kWinograd;
}

}  // namespace graft::simd
