#include "kernel/conv/quantized_conv_vec.h"

namespace graft::simd {

const QuantizedConvTable& quantized_conv(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  __builtin_cpu_init();
  if (isa >= Isa::avx512 && __builtin_cpu_supports("avx512vnni") != 0) return avx512vnni::kByteConv;
  if (isa >= Isa::avx2) return avx2::kByteConv;
#endif
  static_cast<void>(isa);
  return baseline::kQuantizedConv;
}

}  // namespace graft::simd
