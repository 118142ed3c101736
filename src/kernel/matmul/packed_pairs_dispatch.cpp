#include "kernel/matmul/packed_pairs_vec.h"

namespace graft::simd {

const PackedPairTable* packed_pairs(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa == Isa::avx512bf16) return &avx512bf16::kPackedPairs;
#endif
  static_cast<void>(isa);
  return nullptr;
}

}  // namespace graft::simd
