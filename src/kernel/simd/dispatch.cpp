#include "kernel/simd/dispatch.h"

#include <cstdlib>
#include <string>

#ifdef GRAFT_HAVE_X86_ISA
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/check.h"

namespace graft::simd {
namespace {

#ifdef GRAFT_HAVE_X86_ISA
// Bits of cpuid's leaf 7, edx: compilers differ in whether they know these by name.
enum AmxBit { bf16 = 22, tile = 24, int8 = 25 };

// Whether the CPU has tiles and these products of them, and Linux saves their state and lets this process use it:
// permission is requested once, and only where the CPU has tiles.
bool has_amx(AmxBit products) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx >> tile & edx >> products & 1u) == 0) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3u << 17;  // XTILECFG and XTILEDATA
  if ((low & kTileState) != kTileState) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}
#endif

struct Here {
  bool runs = false, pays = false;
};

std::array<Here, kTargetCount> look() {
#ifdef GRAFT_HAVE_X86_ISA
  __builtin_cpu_init();
#define CPU(feature) (__builtin_cpu_supports(#feature) != 0)
#define INTEL (__builtin_cpu_is("intel") != 0)
#define AMX(products) has_amx(AmxBit::products)
#else
#define CPU(feature) false
#define INTEL false
#define AMX(products) false
#endif
  return {{
#define GRAFT_HERE(target, architecture, groups, flags, runs, pays) {kTargetsOf_##architecture && (runs), pays},
      GRAFT_TARGETS(GRAFT_HERE)
#undef GRAFT_HERE
  }};
#undef CPU
#undef INTEL
#undef AMX
}

const Here& here(Isa isa) {
  static const std::array<Here, kTargetCount> all = look();
  return all[static_cast<std::size_t>(isa)];
}

Isa choose() {
  const char* wanted = std::getenv("GRAFT_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    Isa best = Isa::baseline;
    for (const Isa isa : available_isas())
      if (here(isa).pays) best = isa;
    return best;
  }
  std::string names;
  for (const Isa isa : available_isas()) {
    if (wanted == name(isa)) return isa;
    names += (names.empty() ? "" : ", ");
    names += name(isa);
  }
  throw InvalidArgument(str("GRAFT_ISA: expected one of ", names, " on this CPU, got \"", wanted, "\""));
}

}  // namespace

std::string_view name(Isa isa) { return kTargets[static_cast<std::size_t>(isa)].name; }

std::span<const Isa> available_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> out;
    for (std::size_t t = 0; t < kTargetCount; ++t)
      if (here(static_cast<Isa>(t)).runs) out.push_back(static_cast<Isa>(t));
    return out;
  }();
  return isas;
}

bool serves(Isa target, Isa isa) { return here(target).runs && (target == isa || here(target).pays); }

Isa active_isa() {
  static const Isa isa = choose();
  return isa;
}

}  // namespace graft::simd
