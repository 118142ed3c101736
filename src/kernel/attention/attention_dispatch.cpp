#include "kernel/attention/attention_vec.h"

namespace graft::simd {

const AttentionTable& attention(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa == Isa::avx512bf16) return avx512bf16::kAttention;
  if (isa >= Isa::avx512) return avx512::kAttention;
  if (isa >= Isa::avx2) return avx2::kAttention;
#endif
  static_cast<void>(isa);
  return baseline::kAttention;
}

}  // namespace graft::simd
