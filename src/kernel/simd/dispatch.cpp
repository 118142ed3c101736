#include "kernel/simd/dispatch.h"

#include <cstdlib>
#include <string>

#include "base/check.h"

namespace graft::simd {
namespace {

struct Here {
  bool runs = false, pays = false;
};

std::array<Here, kTargetCount> look() {
#ifdef GRAFT_HAVE_X86_ISA
  __builtin_cpu_init();
#define CPU(feature) (__builtin_cpu_supports(#feature) != 0)
#define INTEL (__builtin_cpu_is("intel") != 0)
#else
#define CPU(feature) false
#define INTEL false
#endif
  return {{
#define GRAFT_HERE(target, architecture, groups, flags, runs, pays) {kTargetsOf_##architecture && (runs), pays},
      GRAFT_TARGETS(GRAFT_HERE)
#undef GRAFT_HERE
  }};
#undef CPU
#undef INTEL
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
