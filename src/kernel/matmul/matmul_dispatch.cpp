#include "kernel/matmul/matmul_vec.h"

namespace graft::simd {

const MatmulTable& matmul(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa == Isa::avx512bf16) {
    static const MatmulTable with_pairs = [] {
      MatmulTable table = avx512::kMatmul;
      table.pairs = &avx512bf16::kPairProducts;
      return table;
    }();
    return with_pairs;
  }
  if (isa == Isa::avx512) return avx512::kMatmul;
  if (isa == Isa::avx2) return avx2::kMatmul;
#endif
  static_cast<void>(isa);
  return baseline::kMatmul;
}

}  // namespace graft::simd
