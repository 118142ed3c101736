#include "kernel/quantized/quantized_vec.h"

namespace graft::simd {

const AffineTable& affine(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  if (isa >= Isa::avx512) return avx512::kAffine;
  if (isa >= Isa::avx2) return avx2::kAffine;
#endif
  static_cast<void>(isa);
  return baseline::kAffine;
}

const QuantizedProducts& quantized_products(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  __builtin_cpu_init();
  if (isa >= Isa::avx512 && __builtin_cpu_supports("avx512vnni") != 0) return avx512vnni::kByteProducts;
  if (isa >= Isa::avx2) return avx2::kByteProducts;
#endif
  static_cast<void>(isa);
  return baseline::kQuantizedProducts;
}

}  // namespace graft::simd
