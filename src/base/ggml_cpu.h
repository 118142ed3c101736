#pragma once

#include <ggml-cpu.h>

#include <string>

// Functions of ggml's CPU backend that graft calls: X(member, function).
#define GRAFT_GGML_CPU_FUNCTIONS(X)            \
  X(init, ggml_cpu_init)                       \
  X(type_traits, ggml_get_type_traits_cpu)     \
  X(graph_plan, ggml_graph_plan)               \
  X(graph_compute, ggml_graph_compute)         \
  X(threadpool_new, ggml_threadpool_new)       \
  X(threadpool_free, ggml_threadpool_free)     \
  X(has_sse3, ggml_cpu_has_sse3)               \
  X(has_ssse3, ggml_cpu_has_ssse3)             \
  X(has_avx, ggml_cpu_has_avx)                 \
  X(has_avx2, ggml_cpu_has_avx2)               \
  X(has_bmi2, ggml_cpu_has_bmi2)               \
  X(has_f16c, ggml_cpu_has_f16c)               \
  X(has_fma, ggml_cpu_has_fma)                 \
  X(has_avx512, ggml_cpu_has_avx512)           \
  X(has_avx512_vbmi, ggml_cpu_has_avx512_vbmi) \
  X(has_avx512_vnni, ggml_cpu_has_avx512_vnni) \
  X(has_avx512_bf16, ggml_cpu_has_avx512_bf16) \
  X(has_amx_int8, ggml_cpu_has_amx_int8)       \
  X(has_avx_vnni, ggml_cpu_has_avx_vnni)

namespace graft {

struct GgmlCpu {
#define GRAFT_MEMBER(member, function) decltype(&function) member = nullptr;
  GRAFT_GGML_CPU_FUNCTIONS(GRAFT_MEMBER)
#undef GRAFT_MEMBER
  // File name of the loaded module, "libggml-cpu-haswell.so"; empty if the backend is linked.
  std::string module;
};

// The CPU backend of this process. It is linked or, if ggml was built with GGML_BACKEND_DL, the first call loads the
// module beside graft's library that suits this CPU best. Initializes the tables that dot products and conversions from
// f16 read. Throws Unsupported, naming folder and file, if there is none or it lacks a function.
const GgmlCpu& ggml_cpu();

}  // namespace graft
