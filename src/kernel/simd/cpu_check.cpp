#include "kernel/simd/cpu_check.h"

#include <string>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/check.h"
#include "base/ggml_cpu.h"
#include "kernel/simd/dispatch.h"

namespace graft::simd {

void check_cpu() {
  active_isa();
#ifdef __x86_64__
  __builtin_cpu_init();
  const GgmlCpu& ggml = ggml_cpu();
  std::string missing;
  const auto require = [&missing](int compiled_in, int supported, const char* what) {
    if (compiled_in == 0 || supported != 0) return;
    missing += (missing.empty() ? "" : ", ");
    missing += what;
  };
  // The names of __builtin_cpu_supports must be literals. Older clang knows no "f16c".
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const int f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0 ? 1 : 0;
  require(ggml.has_sse3(), __builtin_cpu_supports("sse3"), "SSE3");
  require(ggml.has_ssse3(), __builtin_cpu_supports("ssse3"), "SSSE3");
  require(ggml.has_avx(), __builtin_cpu_supports("avx"), "AVX");
  require(ggml.has_avx2(), __builtin_cpu_supports("avx2"), "AVX2");
  require(ggml.has_bmi2(), __builtin_cpu_supports("bmi2"), "BMI2");
  require(ggml.has_f16c(), f16c, "F16C");
  require(ggml.has_fma(), __builtin_cpu_supports("fma"), "FMA");
  require(ggml.has_avx512(), __builtin_cpu_supports("avx512f"), "AVX-512 F");
  require(ggml.has_avx512(), __builtin_cpu_supports("avx512bw"), "AVX-512 BW");
  require(ggml.has_avx512(), __builtin_cpu_supports("avx512dq"), "AVX-512 DQ");
  require(ggml.has_avx512(), __builtin_cpu_supports("avx512vl"), "AVX-512 VL");
  require(ggml.has_avx512_vbmi(), __builtin_cpu_supports("avx512vbmi"), "AVX-512 VBMI");
  require(ggml.has_avx512_vnni(), __builtin_cpu_supports("avx512vnni"), "AVX-512 VNNI");
  require(ggml.has_avx512_bf16(), __builtin_cpu_supports("avx512bf16"), "AVX-512 BF16");
  // Compilers differ in whether they know these two by name, so they are read as bits of cpuid leaf 7.
  eax = ebx = ecx = edx = 0;
  const bool has_leaf = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0;
  require(ggml.has_amx_int8(), has_leaf && (edx >> 25 & 1u) != 0, "AMX INT8");
  const bool has_subleaf = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0;
  require(ggml.has_avx_vnni(), has_subleaf && (eax >> 4 & 1u) != 0, "AVX-VNNI");
  GRAFT_CHECK(Unsupported, missing.empty(), "this CPU lacks instructions that ggml was built for: ", missing,
              "; build ggml for this machine");
#endif
}

}  // namespace graft::simd
