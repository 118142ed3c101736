#include "kernel/matmul/blocks_vec.h"

namespace graft::simd {

std::string_view panels_name(Isa isa) {
  const PanelTable* table = panels(isa);
#ifdef GRAFT_HAVE_X86_ISA
  if (table == &avx512vnni::kPanels) return "avx512vnni";
  if (table == &avx2::kPanels) return "avx2";
#endif
  return table ? "panels" : "";
}

const PanelTable* panels(Isa isa) {
#ifdef GRAFT_HAVE_X86_ISA
  __builtin_cpu_init();
  if (isa >= Isa::avx512 && __builtin_cpu_supports("avx512vnni") != 0) return &avx512vnni::kPanels;
  if (isa >= Isa::avx2) return &avx2::kPanels;
#endif
  static_cast<void>(isa);
  return nullptr;
}

}  // namespace graft::simd
