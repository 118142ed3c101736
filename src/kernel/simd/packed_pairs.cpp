#include "kernel/simd/packed_pairs.h"

namespace graft::simd {

const PackedPairTable* packed_pairs(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa == Isa::avx512bf16) {
    static const PackedPairTable with_pack = [] {
      PackedPairTable table = avx512bf16::kPackedPairs;
      table.pack = avx512bf16::kPairProducts.pack;
      return table;
    }();
    return &with_pack;
  }
#endif
  static_cast<void>(isa);
  return nullptr;
}

}  // namespace graft::simd
