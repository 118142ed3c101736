#include "kernel/simd/attention.h"

namespace graft::simd {

const AttentionTable& attention(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  __builtin_cpu_init();
  if (isa == Isa::avx512 && __builtin_cpu_supports("avx512bf16") != 0) return avx512bf16::kAttention;
  if (isa == Isa::avx512) return avx512::kAttention;
  if (isa == Isa::avx2) return avx2::kAttention;
#endif
  static_cast<void>(isa);
  return baseline::kAttention;
}

}  // namespace graft::simd
