#include "kernel/simd/dispatch.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/check.h"

namespace graft::simd {
namespace {

#ifdef GRAFT_HAVE_X86_ISA
bool has_v3() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}

bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

bool has_bf16() { return has_v4() && __builtin_cpu_supports("avx512bf16") != 0; }
#endif

std::size_t count_available() {
#ifdef GRAFT_HAVE_X86_ISA
  if (has_bf16()) return 4;
  if (has_v4()) return 3;
  if (has_v3()) return 2;
#endif
  return 1;
}

Isa fastest() {
  const Isa best = available_isas().back();
#ifdef GRAFT_HAVE_X86_ISA
  if (best == Isa::avx512bf16 && __builtin_cpu_is("intel") != 0) return Isa::avx512;
#endif
  return best;
}

Isa choose() {
  const std::span<const Isa> isas = available_isas();
  const char* wanted = std::getenv("GRAFT_ISA");
  if (wanted == nullptr || *wanted == '\0') return fastest();
  std::string names;
  for (const Isa isa : isas) {
    if (wanted == name(isa)) return isa;
    names += (names.empty() ? "" : ", ");
    names += name(isa);
  }
  throw InvalidArgument(str("GRAFT_ISA: expected one of ", names, " on this CPU, got \"", wanted, "\""));
}

}  // namespace

std::string_view name(Isa isa) {
  constexpr std::array<std::string_view, 4> kNames = {"baseline", "avx2", "avx512", "avx512bf16"};
  return kNames[static_cast<std::size_t>(isa)];
}

std::span<const Isa> available_isas(Isa most) {
  static constexpr std::array<Isa, 4> kAll = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512bf16};
  static const std::size_t count = count_available();
  return {kAll.data(), std::min(count, static_cast<std::size_t>(most) + 1)};
}

Isa active_isa() {
  static const Isa isa = choose();
  return isa;
}

}  // namespace graft::simd
