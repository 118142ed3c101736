#include "kernel/norm/norm_vec.h"

namespace graft::simd {

const RowsTable& rows(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa >= Isa::avx512) return avx512::kRows;
  if (isa >= Isa::avx2) return avx2::kRows;
#endif
  static_cast<void>(isa);
  return baseline::kRows;
}

}  // namespace graft::simd
