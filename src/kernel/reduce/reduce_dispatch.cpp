#include "kernel/reduce/reduce_vec.h"

namespace graft::simd {

const ReduceTable& reduce(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa >= Isa::avx512) return avx512::kReduce;
  if (isa >= Isa::avx2) return avx2::kReduce;
#endif
  static_cast<void>(isa);
  return baseline::kReduce;
}

}  // namespace graft::simd
